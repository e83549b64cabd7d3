"""Options of `paddlewheel new` for a model's inputs and outputs, as keys of serving.yml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import ConfigError
from pipeline.launch.command_options import NO_OPTIONS, ModelOptions
from pipeline.models.description import INPUTS_KEY, OUTPUTS_KEY, Description, describe
from pipeline.models.label_names import (
    check_label_count,
    class_counts,
    find_score_fetch,
    given_labels,
)
from pipeline.models.onnx_file import find_producer
from pipeline.models.serving_model import ADDITIONS, LABELS_KEY, ServingModel, Variable, with_service_keys
from pipeline.ops.text_files import EMBEDDINGS, RERANKING, TextSettings, described_texts, task_in_files
from pipeline.ops.tokenizing.tokenizer_files import tokenizer_file

_TASKS_WITHOUT_LABELS = (EMBEDDINGS, RERANKING)
_MAX_LABELS = 5  # best labels of an image in an answer
_TYPES = {"string": "text", "float16": "number", "float32": "number", "float64": "number"}


def with_description(model: ServingModel, options: ModelOptions) -> ServingModel:
    """Return the model with the description of its new serving.yml.

    Raise ConfigError for options that do not fit the model.
    """
    if options == NO_OPTIONS:
        return model
    _check_options(options)
    labels = given_labels(options.labels) or model.labels
    if (
        options.input == "text"
        and not options.output
        and (task := task_in_files(model)) in _TASKS_WITHOUT_LABELS
    ):
        _refuse_described(model, INPUTS_KEY, "--input")
        return described_texts(model, TextSettings(task=task, labels=tuple(given_labels(options.labels))))
    added: dict[str, Any] = {LABELS_KEY: list(labels)} if options.labels else {}
    if options.input:
        _refuse_described(model, INPUTS_KEY, "--input")
        added[INPUTS_KEY] = _INPUTS[options.input](model, options)
    feeds, fetches = ([variable.shape for variable in many] for many in (model.feeds, model.fetches))
    if options.labels and (flaw := check_label_count(labels, class_counts(feeds, fetches))):
        raise ConfigError(flaw)
    if options.output or options.top_k or (options.input and OUTPUTS_KEY not in model.additions):
        _refuse_described(model, OUTPUTS_KEY, "--output and --top-k")
        added[OUTPUTS_KEY] = _outputs(model, labels, options)
    return with_service_keys(model, added, model.directory / ADDITIONS)


def describe_reading(description: Description) -> str:
    """Describe the preprocessing of the inputs, to compare it with the training. Empty for tensors."""
    remarks = [_REMARKS[item.kind](item) for item in description.inputs.values() if item.kind in _REMARKS]
    return " ".join(remarks)


def _image(model: ServingModel, options: ModelOptions) -> dict[str, Any]:
    feeds = [feed.alias for feed in model.feeds if len(feed.shape) == 4]
    if len(feeds) != 1:
        raise ConfigError(
            f"--input image is for a model with one feed [N,C,H,W] or [N,H,W,C]; "
            f"{_describe_tensors(model.feeds)}"
        )
    values: dict[str, Any] = {"kind": "image"}
    if len(model.feeds) > 1:
        values["feed"] = feeds[0]
    (feed,) = (variable for variable in model.feeds if variable.alias == feeds[0])
    grey = 1 in (feed.shape[1], feed.shape[3])
    values["preset"] = options.preset or ("plain" if grey else "torchvision")
    if options.resize:
        values["resize"] = list(options.resize)
    if options.crop:
        values["crop"] = list(options.crop)
    return {"image": values}


def _text(model: ServingModel, options: ModelOptions) -> dict[str, Any]:
    strings = [feed.alias for feed in model.feeds if feed.dtype == "string"]
    if len(strings) == len(model.feeds) == 1:
        return {"text": {"kind": "text", "feed": strings[0]}}
    (name, values) = "text", {"kind": "text"}
    described = describe({INPUTS_KEY: {name: values}}, model.feeds, model.fetches, (), model.directory)
    text = described.inputs[name]
    assert text.kind == "text"
    tokenizer_file(text, [model.directory])
    return {name: values}


def _table(model: ServingModel, options: ModelOptions) -> dict[str, Any]:
    if len(model.feeds) > 1:
        columns = [{"name": feed.alias, "type": _type(feed), "feed": feed.alias} for feed in model.feeds]
        return {"table": {"kind": "table", "columns": columns}}
    (feed,) = model.feeds
    width = feed.shape[1] if len(feed.shape) > 1 else 1
    if not options.columns or (width != -1 and len(options.columns) != width):
        problem = f"{len(options.columns)} are named" if options.columns else "name them"
        count = "any number of" if width == -1 else width
        raise ConfigError(f"feed {feed.alias} takes {count} columns, {problem}: --columns a,b,c in its order")
    return {
        "table": {"kind": "table", "columns": [{"name": n, "type": _type(feed)} for n in options.columns]}
    }


def _tensor(model: ServingModel, options: ModelOptions) -> dict[str, Any]:
    return {feed.alias: {"kind": "tensor"} for feed in model.feeds}


_INPUTS = {"image": _image, "text": _text, "table": _table, "tensor": _tensor}
INPUT_KINDS = tuple(_INPUTS)
OF_TEXTS = ("entities", "zero-shot")
OUTPUT_KINDS = ("classes", "multilabel", "tokens", *OF_TEXTS, "tensor")


def _outputs(model: ServingModel, labels: Sequence[str], options: ModelOptions) -> dict[str, Any]:
    """Return the output keys: labels if the model has scores of classes, else tensors."""
    scores = find_score_fetch(model.fetches, labels)
    kind = options.output or _guess_kind(model, scores, options.input)
    if kind == "tensor" or (scores is None and not options.output):
        return {fetch.alias: {"kind": "tensor"} for fetch in model.fetches}
    if scores is None:
        raise ConfigError(
            f"--output {kind}: no fetch has scores of classes; {_describe_tensors(model.fetches)}"
        )
    if kind in OF_TEXTS and options.input != "text":
        raise ConfigError(f"--output {kind} goes with --input text")
    output: dict[str, Any] = {"kind": kind}
    if kind == "classes":
        classes = scores.shape[-1]
        best = min(_MAX_LABELS, classes) if options.input == "image" and classes > 0 else 1
        if (options.top_k or best) > 1:
            output["top_k"] = options.top_k or best
        chosen = [f.alias for f in model.fetches if f is not scores and f.dtype in ("string", "int64")]
        if len(chosen) == 1 and not labels:
            output["chosen"] = chosen[0]
    elif kind == "multilabel" and find_producer(model.program, scores) == "Sigmoid":
        output["activation"] = "none"
    if options.input in ("", "tensor") and kind != "classes":
        output["raw"] = True
    return {scores.alias: output}


def _guess_kind(model: ServingModel, scores: Variable | None, input_kind: str) -> str:
    if scores is not None and len(scores.shape) == 3:
        return "entities" if input_kind == "text" else "tokens"
    several = scores is not None and find_producer(model.program, scores) == "Sigmoid"
    return "multilabel" if several else "classes"


def _check_options(options: ModelOptions) -> None:
    owners = {
        "--preset": (options.preset, "image"),
        "--resize": (options.resize, "image"),
        "--crop": (options.crop, "image"),
        "--columns": (options.columns, "table"),
    }
    for option, (value, kind) in owners.items():
        if value and options.input != kind:
            raise ConfigError(f"{option} goes with --input {kind}")


def _refuse_described(model: ServingModel, key: str, option: str) -> None:
    if model.additions.get(key) is not None:
        path = model.directory / ADDITIONS
        raise ConfigError(f"{path} has {key} already: leave out {option}, or edit what stands there")


def _type(feed: Variable) -> str:
    return _TYPES.get(feed.dtype, "integer")


def _describe_tensors(variables: Sequence[Variable]) -> str:
    return "it has " + ", ".join(f"{v.alias} {v.dtype} {list(v.shape)}" for v in variables)


def _image_remark(image: Any) -> str:
    steps = []
    if image.resize is not None:
        sides = " x ".join(map(str, image.resize))
        steps.append(f"resized to {sides}" if len(image.resize) == 2 else f"resized (shorter side {sides})")
    if image.crop is not None:
        steps.append(f"cropped to {image.crop[0]} x {image.crop[1]}")
    steps.append(f"normalised by {image.mean} and {image.std}")
    return f"Images are {', '.join(steps)}, as by --preset {image.preset}."


_REMARKS: Mapping[str, Any] = {
    "image": _image_remark,
    "text": lambda text: "Texts are tokenized by the file beside the model." if not text.feed else "",
    "table": lambda table: f"Columns: {', '.join(column.name for column in table.columns)}.",
}

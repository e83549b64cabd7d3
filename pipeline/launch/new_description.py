"""What `paddlewheel new` is told of a model's inputs and outputs, as the keys of serving.yml that say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ConfigError
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
_MOST_TOLD = 5  # of the best labels of an image
_TYPES = {"string": "text", "float16": "number", "float32": "number", "float64": "number"}


@dataclass(frozen=True)
class Asked:
    """The options of `new` about the model; what is empty was not given.

    labels: separated by commas, or a file with one a line.
    """

    input: str = ""
    output: str = ""
    preset: str = ""
    resize: tuple[int, ...] = ()
    crop: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    labels: str = ""
    top_k: int = 0


NOTHING_ASKED = Asked()


def with_description(model: ServingModel, asked: Asked) -> ServingModel:
    """The model as its serving.yml will describe it. Raises ConfigError for options that do not fit it."""
    if asked == NOTHING_ASKED:
        return model
    _check_options(asked)
    labels = given_labels(asked.labels) or model.labels
    if asked.input == "text" and not asked.output and (task := task_in_files(model)) in _TASKS_WITHOUT_LABELS:
        _refuse_described(model, INPUTS_KEY, "--input")
        return described_texts(model, TextSettings(task=task, labels=tuple(given_labels(asked.labels))))
    added: dict[str, Any] = {LABELS_KEY: list(labels)} if asked.labels else {}
    if asked.input:
        _refuse_described(model, INPUTS_KEY, "--input")
        added[INPUTS_KEY] = _INPUTS[asked.input](model, asked)
    feeds, fetches = ([variable.shape for variable in many] for many in (model.feeds, model.fetches))
    if asked.labels and (flaw := check_label_count(labels, class_counts(feeds, fetches))):
        raise ConfigError(flaw)
    if asked.output or asked.top_k or (asked.input and OUTPUTS_KEY not in model.additions):
        _refuse_described(model, OUTPUTS_KEY, "--output and --top-k")
        added[OUTPUTS_KEY] = _outputs(model, labels, asked)
    return with_service_keys(model, added, model.directory / ADDITIONS)


def describe_reading(description: Description) -> str:
    """How the inputs are read, for who knows whether the training did so; empty for tensors."""
    told = [_REMARKS[given.kind](given) for given in description.inputs.values() if given.kind in _REMARKS]
    return " ".join(told)


def _image(model: ServingModel, asked: Asked) -> dict[str, Any]:
    feeds = [feed.alias for feed in model.feeds if len(feed.shape) == 4]
    if len(feeds) != 1:
        raise ConfigError(
            f"--input image is for a model with one feed [N,C,H,W] or [N,H,W,C]; "
            f"{_describe_tensors(model.feeds)}"
        )
    given: dict[str, Any] = {"kind": "image"}
    if len(model.feeds) > 1:
        given["feed"] = feeds[0]
    (feed,) = (variable for variable in model.feeds if variable.alias == feeds[0])
    grey = 1 in (feed.shape[1], feed.shape[3])
    given["preset"] = asked.preset or ("plain" if grey else "torchvision")
    if asked.resize:
        given["resize"] = list(asked.resize)
    if asked.crop:
        given["crop"] = list(asked.crop)
    return {"image": given}


def _text(model: ServingModel, asked: Asked) -> dict[str, Any]:
    strings = [feed.alias for feed in model.feeds if feed.dtype == "string"]
    if len(strings) == len(model.feeds) == 1:
        return {"text": {"kind": "text", "feed": strings[0]}}
    (name, given) = "text", {"kind": "text"}
    described = describe({INPUTS_KEY: {name: given}}, model.feeds, model.fetches, (), model.directory)
    text = described.inputs[name]
    assert text.kind == "text"
    tokenizer_file(text, [model.directory])
    return {name: given}


def _table(model: ServingModel, asked: Asked) -> dict[str, Any]:
    if len(model.feeds) > 1:
        columns = [{"name": feed.alias, "type": _type(feed), "feed": feed.alias} for feed in model.feeds]
        return {"table": {"kind": "table", "columns": columns}}
    (feed,) = model.feeds
    width = feed.shape[1] if len(feed.shape) > 1 else 1
    if not asked.columns or (width != -1 and len(asked.columns) != width):
        told = f"{len(asked.columns)} are named" if asked.columns else "name them"
        count = "any number of" if width == -1 else width
        raise ConfigError(f"feed {feed.alias} takes {count} columns, {told}: --columns a,b,c in its order")
    return {"table": {"kind": "table", "columns": [{"name": n, "type": _type(feed)} for n in asked.columns]}}


def _tensor(model: ServingModel, asked: Asked) -> dict[str, Any]:
    return {feed.alias: {"kind": "tensor"} for feed in model.feeds}


_INPUTS = {"image": _image, "text": _text, "table": _table, "tensor": _tensor}
INPUT_KINDS = tuple(_INPUTS)
OF_TEXTS = ("entities", "zero-shot")
OUTPUT_KINDS = ("classes", "multilabel", "tokens", *OF_TEXTS, "tensor")


def _outputs(model: ServingModel, labels: Sequence[str], asked: Asked) -> dict[str, Any]:
    """What each fetch is answered as: labels where there are scores of classes."""
    scores = find_score_fetch(model.fetches, labels)
    kind = asked.output or _guess_kind(model, scores, asked.input)
    if kind == "tensor" or (scores is None and not asked.output):
        return {fetch.alias: {"kind": "tensor"} for fetch in model.fetches}
    if scores is None:
        raise ConfigError(
            f"--output {kind}: no fetch has scores of classes; {_describe_tensors(model.fetches)}"
        )
    if kind in OF_TEXTS and asked.input != "text":
        raise ConfigError(f"--output {kind} goes with --input text")
    output: dict[str, Any] = {"kind": kind}
    if kind == "classes":
        classes = scores.shape[-1]
        best = min(_MOST_TOLD, classes) if asked.input == "image" and classes > 0 else 1
        if (asked.top_k or best) > 1:
            output["top_k"] = asked.top_k or best
        chosen = [f.alias for f in model.fetches if f is not scores and f.dtype in ("string", "int64")]
        if len(chosen) == 1 and not labels:
            output["chosen"] = chosen[0]
    elif kind == "multilabel" and find_producer(model.program, scores) == "Sigmoid":
        output["activation"] = "none"
    if asked.input in ("", "tensor") and kind != "classes":
        output["raw"] = True
    return {scores.alias: output}


def _guess_kind(model: ServingModel, scores: Variable | None, given: str) -> str:
    if scores is not None and len(scores.shape) == 3:
        return "entities" if given == "text" else "tokens"
    several = scores is not None and find_producer(model.program, scores) == "Sigmoid"
    return "multilabel" if several else "classes"


def _check_options(asked: Asked) -> None:
    owners = {
        "--preset": (asked.preset, "image"),
        "--resize": (asked.resize, "image"),
        "--crop": (asked.crop, "image"),
        "--columns": (asked.columns, "table"),
    }
    for option, (value, kind) in owners.items():
        if value and asked.input != kind:
            raise ConfigError(f"{option} goes with --input {kind}")


def _refuse_described(model: ServingModel, key: str, option: str) -> None:
    if model.additions.get(key) is not None:
        path = model.directory / ADDITIONS
        raise ConfigError(f"{path} has {key} already: leave out {option}, or edit what stands there")


def _type(feed: Variable) -> str:
    return _TYPES.get(feed.dtype, "integer")


def _describe_tensors(variables: Sequence[Variable]) -> str:
    return "it has " + ", ".join(f"{v.alias} {v.dtype} {list(v.shape)}" for v in variables)


def _image_remark(given: Any) -> str:
    steps = []
    if given.resize is not None:
        sides = " x ".join(map(str, given.resize))
        steps.append(f"resized to {sides}" if len(given.resize) == 2 else f"resized (shorter side {sides})")
    if given.crop is not None:
        steps.append(f"cropped to {given.crop[0]} x {given.crop[1]}")
    steps.append(f"normalised by {given.mean} and {given.std}")
    return f"Images are {', '.join(steps)}, as by --preset {given.preset}."


_REMARKS: Mapping[str, Any] = {
    "image": _image_remark,
    "text": lambda given: "Texts are tokenized by the file beside the model." if not given.feed else "",
    "table": lambda given: f"Columns: {', '.join(column.name for column in given.columns)}.",
}

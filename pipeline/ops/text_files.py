"""Finds a text model's task, labels and output tensor from its own files, to serve it without a script.

The files are serving.yml, config.json and files of labels, in the folder of the model and in its parent
folder. An error about a missing setting names the command-line option for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.models.description import INPUTS_KEY, OUTPUTS_KEY, describe
from pipeline.models.label_names import (
    LABEL_FILES,
    find_entailment,
    get_labels,
    get_max_length,
    get_task,
    is_multi_label,
    labels_beside,
)
from pipeline.models.onnx_file import find_producer
from pipeline.models.sentence_files import read_sentence
from pipeline.models.serving_model import ADDITIONS, ServingModel, Variable
from pipeline.ops.tokenizer import tokenizer_file

CLASSIFICATION, MULTI_LABEL, LABELLING, ZERO_SHOT = "classification", "multi-label", "labelling", "zero-shot"
EMBEDDINGS, RERANKING = "embeddings", "reranking"
KINDS: Mapping[str, str] = {
    CLASSIFICATION: "classes",
    MULTI_LABEL: "multilabel",
    LABELLING: "entities",
    ZERO_SHOT: "zero-shot",
    EMBEDDINGS: "embedding",
    RERANKING: "relevance",
}
"""The tasks, and the kind of output of each."""
INPUT, SECOND = "text", "text_pair"
CONFIGS = ("config.json", "model_config.json")
_MAX_BYTES = 16 << 20
_OF_NOTES = {
    "sequence-classification": CLASSIFICATION,
    "token-classification": LABELLING,
    "feature-extraction": EMBEDDINGS,
}
_WITHOUT_LABELS = (EMBEDDINGS, RERANKING)
_KINDS_OF_OLD = {"tokens": LABELLING, **{kind: task for task, kind in KINDS.items()}}


@dataclass(frozen=True)
class TextSettings:
    """Settings of a text service that override those in the model's files.

    Empty settings do not override.
    """

    task: str = ""
    labels: tuple[str, ...] = ()
    tokenizer: str = ""
    pair: bool = False
    too_long: str = ""
    stride: int = 0
    max_tokens: int = 0
    top_k: int = 0
    threshold: float | None = None
    scheme: str = ""
    template: str = ""
    candidates: tuple[str, ...] = ()  # of zero-shot: the labels of requests without any


def described_texts(model: ServingModel, settings: TextSettings) -> ServingModel:
    """Return a copy of the model with a full description for serving texts: task, labels, inputs, outputs.

    Raises ConfigError for a setting that is missing or does not fit, and names the command-line option for
    it.
    """
    folders = [model.directory, model.directory.parent]
    config = _config(folders)
    labels = settings.labels or model.labels or get_labels(config) or labels_beside(folders)
    task = settings.task or _task(model, config, labels)
    if task not in KINDS:
        raise ConfigError(
            f"{model.directory}: what the model is for is told by none of its files ({ADDITIONS}, "
            f"{', '.join(CONFIGS)}): say --task {', '.join(KINDS)}"
        )
    labels = () if task in _WITHOUT_LABELS else labels
    scores = _vectors(model) if task == EMBEDDINGS else _scores(model, task, labels)
    needs_labels = task == LABELLING or scores.shape[-1] == -1 or not _is_head(config, model)
    if not labels and needs_labels and task not in _WITHOUT_LABELS:
        raise ConfigError(
            f"{model.directory}: the names of the classes are in none of {ADDITIONS}, {CONFIGS[0]} and "
            f"{', '.join(LABEL_FILES)}: give --labels A,B or a file with one a line"
        )
    longest = get_max_length(config)
    if task == EMBEDDINGS and (sentence := read_sentence(model.additions, model.directory)).max_tokens:
        longest = sentence.max_tokens
    name, section = _input(model, settings, longest)
    if task == RERANKING:
        section.setdefault("pair", SECOND)
    additions = {
        **model.additions,
        INPUTS_KEY: {name: section},
        OUTPUTS_KEY: {scores.alias: _output(model, scores, task, labels, settings)},
    }
    path = model.directory / ADDITIONS
    described = describe(additions, model.feeds, model.fetches, labels, path)
    rest = [name for name, part in described.inputs.items() if part.kind == "tensor"]
    if rest:
        raise ConfigError(f"{model.directory}: no text makes the feed {rest[0]}; describe it in {path}")
    text = described.inputs[name]
    assert text.kind == "text"
    tokenizer_file(text, folders)
    return replace(model, labels=tuple(labels), description=described, additions=additions)


def _input(model: ServingModel, settings: TextSettings, longest: int) -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of the text input.

    longest: maximum number of tokens in config.json; 0 if unknown.
    """
    described = [item for item in model.description.inputs.items() if item[1].kind == "text"]
    name = described[0][0] if len(described) == 1 else INPUT
    section = {**((model.additions.get(INPUTS_KEY) or {}).get(name) or {"kind": "text"})}
    options = {
        "tokenizer": settings.tokenizer,
        "pair": SECOND if settings.pair else "",
        "too_long": settings.too_long,
        "stride": settings.stride,
        "max_tokens": settings.max_tokens,
    }
    if longest and not any(feed.longest for feed in model.feeds):
        section = {"max_tokens": longest, **section}
    return name, section | {key: value for key, value in options.items() if value}


def _output(
    model: ServingModel, scores: Variable, task: str, labels: Sequence[str], settings: TextSettings
) -> dict[str, Any]:
    described = (model.additions.get(OUTPUTS_KEY) or {}).get(scores.alias) or {}
    kind = KINDS[task]
    output = {**described, "raw": False} if described.get("kind") == kind else {"kind": kind}
    if kind not in ("classes", "multilabel"):
        output.pop("raw", None)
    if settings.labels and task in _WITHOUT_LABELS:
        raise ConfigError(f"--labels: the task {task} has no classes")
    if (
        kind == "multilabel"
        and "activation" not in output
        and find_producer(model.program, scores) == "Sigmoid"
    ):
        output["activation"] = "none"
    if kind == "zero-shot" and output.get("entailment") is None and not settings.labels:
        output["entailment"] = model.additions.get("entailment")  # as the conversion has noted it
    if kind == "zero-shot" and output.get("entailment") is None and find_entailment(labels) is None:
        raise ConfigError(
            f"{model.directory}: none of the labels {', '.join(labels)} is entailment: name the classes by "
            "--labels, as in contradiction,neutral,entailment"
        )
    return output | _get_output_settings(kind, settings)


def _get_output_settings(kind: str, settings: TextSettings) -> dict[str, Any]:
    """Return the options that belong in the `outputs` section of serving.yml for this `kind` of output.

    Raises ConfigError for an option that does not apply to this kind of output.
    """
    options = {
        "top_k": (settings.top_k, ("classes", "multilabel", "zero-shot")),
        "threshold": (settings.threshold, ("classes", "multilabel", "entities", "zero-shot")),
        "scheme": (settings.scheme, ("entities",)),
        "template": (settings.template, ("zero-shot",)),
        "candidates": (list(settings.candidates), ("zero-shot",)),
    }
    for name, (value, kinds) in options.items():
        if value and kind not in kinds:
            tasks = " and ".join(task for task, allowed in KINDS.items() if allowed in kinds)
            raise ConfigError(f"--{name.replace('_', '-')} goes with the task {tasks}")
    return {name: value for name, (value, _) in options.items() if value}


def task_in_files(model: ServingModel) -> str:
    """Return the task that the model's own files imply, such as "classification".

    Empty if the files imply no task.
    """
    folders = [model.directory, model.directory.parent]
    config = _config(folders)
    return _task(model, config, model.labels or get_labels(config) or labels_beside(folders))


def _task(model: ServingModel, config: Mapping[str, Any], labels: Sequence[str]) -> str:
    """Return the task that serving.yml, config.json and the output shapes imply; empty if unclear."""
    described = [output.get("kind") for output in (model.additions.get(OUTPUTS_KEY) or {}).values()]
    kinds = [_KINDS_OF_OLD[kind] for kind in described if kind in _KINDS_OF_OLD]
    if kinds:
        return kinds[0]
    architecture = str(next(iter(config.get("architectures") or []), ""))
    noted = str(model.additions.get("task", "") or get_task(architecture))
    task = _OF_NOTES.get(noted, "")
    if not noted and labels:
        shapes = [fetch.shape for fetch in model.fetches if fetch.shape[-1:] == (len(labels),)]
        ranks = {len(shape) for shape in shapes}
        task = {2: CLASSIFICATION, 3: LABELLING}.get(ranks.pop(), "") if len(ranks) == 1 else ""
    if task == CLASSIFICATION:
        if len(labels) < 2 and any(fetch.shape[-1:] == (1,) for fetch in model.fetches):
            return RERANKING  # a score and no classes: a cross-encoder
        if is_multi_label(config):
            return MULTI_LABEL
        return CLASSIFICATION if find_entailment(labels) is None else ZERO_SHOT
    return task


def _scores(model: ServingModel, task: str, labels: Sequence[str]) -> Variable:
    rank, form = (3, "[N, tokens, classes]") if task == LABELLING else (2, "[N, classes]")
    floats = [fetch for fetch in model.fetches if fetch.dtype.startswith(("float", "bfloat"))]
    heads = [fetch for fetch in floats if len(fetch.shape) in (0, rank)]
    if not heads:
        shapes = ", ".join(f"{fetch.alias} {fetch.dtype} {list(fetch.shape)}" for fetch in model.fetches)
        raise ConfigError(
            f"{model.directory}: --task {task} needs scores {form}, and the model gives {shapes}"
        )
    fitting = [fetch for fetch in heads if not labels or fetch.shape[-1:] in ((len(labels),), (-1,), ())]
    if not fitting:
        shapes = " or ".join(str(fetch.shape[-1]) for fetch in heads)
        raise ConfigError(
            f"{model.directory}: there are {len(labels)} labels, and the model gives {shapes} scores: name "
            "each class once, by --labels"
        )
    if len(fitting) > 1:
        names = ", ".join(fetch.alias for fetch in fitting)
        raise ConfigError(
            f"{model.directory}: which of {names} has the scores can't be told: describe it in "
            f"{model.directory / ADDITIONS}, under {OUTPUTS_KEY}"
        )
    return fitting[0]


def _vectors(model: ServingModel) -> Variable:
    """Return the output tensor with a vector per token, or else the tensor with a vector per text.

    Raises ConfigError if there are several.
    """
    floats = [fetch for fetch in model.fetches if fetch.dtype.startswith(("float", "bfloat"))]
    for rank in (3, 2, 0):
        candidates = [fetch for fetch in floats if len(fetch.shape) == rank]
        if len(candidates) == 1:
            return candidates[0]
    shapes = ", ".join(f"{fetch.alias} {fetch.dtype} {list(fetch.shape)}" for fetch in model.fetches)
    raise ConfigError(
        f"{model.directory}: which of {shapes} has the vectors can't be told: describe it in "
        f"{model.directory / ADDITIONS}, under {OUTPUTS_KEY}"
    )


def _is_head(config: Mapping[str, Any], model: ServingModel) -> bool:
    """Whether the model's files declare a classifier, so that classes without names are acceptable."""
    architecture = str(next(iter(config.get("architectures") or []), ""))
    return str(model.additions.get("task", "") or get_task(architecture)) in _OF_NOTES


def _config(folders: Sequence[Path]) -> dict[str, Any]:
    """Return the config.json of transformers or PaddleNLP from the first folder that has this file.

    Empty if no folder has the file.
    """
    for folder in folders:
        for name in CONFIGS:
            if (folder / name).is_file():
                return _read_json(folder / name)
    return {}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            config = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError) as exc:
        raise ConfigError(f"{path} can't be read as JSON ({exc}): is it whole?") from exc
    return config if isinstance(config, dict) else {}

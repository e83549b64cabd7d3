"""Postprocessing models of exported repositories: for each task, the Python model and its settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.models.sentence_files import LAYERS_FILE
from pipeline.ops.text_tasks.embeddings import EmbeddingTask
from pipeline.ops.text_tasks.entity_spans import parse_labels
from pipeline.ops.text_tasks.text_task import TextTask

LENGTHS, PLACES, PROMPT_TOKENS = "lengths", "places", "prompt_tokens"
"""Outputs of the tokenizer: tokens per row, token and characters of each place, tokens of the prompt."""


@dataclass(frozen=True)
class Postprocess:
    """The Python model that turns scores into the service's answer."""

    module: str  # in `models/`
    settings: Mapping[str, Any]  # parameters in config.pbtxt
    files: Mapping[str, Any] = field(default_factory=dict)  # JSON files in the version's folder
    rows: tuple[str, ...] = ()  # outputs of the tokenizer that it needs in addition to `windows`
    texts: bool = False  # whether it needs the texts
    renamed: Mapping[str, str] = field(default_factory=dict)  # output names in the ensemble, by the service's
    copies: tuple[Path, ...] = ()  # files of the service's model to copy into the version's folder
    tokenizer: Mapping[str, Any] = field(default_factory=dict)  # additional settings of the tokenizer


def create_postprocess(task: TextTask) -> Postprocess:
    """Select the postprocessing model of a task. Raises ConfigError for a task without one."""
    kind = task.output.kind
    if kind not in _FACTORIES:
        reason = _UNSUPPORTED_REASONS.get(kind, "no model is written for it")
        raise ConfigError(
            f"a service of kind {kind} can't be exported: {reason}; exported are {', '.join(_FACTORIES)}"
        )
    return _FACTORIES[kind](task)


def _create_classes(task: TextTask) -> Postprocess:
    output = task.output
    settings = {
        "top_k": output.top_k or 0,  # 0: any number
        "threshold": output.threshold,
        "activation": output.activation,
        "pooling": output.pooling,
    }
    classes = task.fetch.shape[-1]
    if not len(task.labels) and classes < 1:
        raise ConfigError(f"{task.model.directory}: neither labels nor the number of classes is known")
    labels = task.get_class_names(len(task.labels) or classes)
    module = {"classes": "classes", "multilabel": "multi_label"}[output.kind]
    return Postprocess(module, settings, {"labels.json": labels.tolist()})


def _create_entities(task: TextTask) -> Postprocess:
    output = task.output
    tags = parse_labels(task.labels.tolist(), output.scheme, output.outside)
    settings = {"threshold": output.threshold, "text": task.name}
    # An ensemble can't have an input and an output with the same name.
    renamed = {"text": "entity"}
    return Postprocess("entities", settings, {"tags.json": tags}, (PLACES,), texts=True, renamed=renamed)


def _create_embedding(task: TextTask) -> Postprocess:
    assert isinstance(task, EmbeddingTask)
    output, sentence, layers = task.output, task.sentence, task.layers
    settings = {
        "poolings": json.dumps(task.poolings),
        "layers": json.dumps(layers),
        "normalize": output.normalize,
        "dimensions": output.dimensions or 0,  # 0: all
    }
    skips = () if sentence.include_prompt else (PROMPT_TOKENS,)
    copies = (task.model.directory / LAYERS_FILE,) if layers else ()
    prompts = {
        "prompts": json.dumps(sentence.prompts),
        "default_prompt": sentence.default_prompt,
        "lowercase": sentence.lowercase,
    }
    return Postprocess("embedding", settings, rows=(LENGTHS, *skips), copies=copies, tokenizer=prompts)


_FACTORIES: Mapping[str, Callable[[TextTask], Postprocess]] = {
    "classes": _create_classes,
    "multilabel": _create_classes,
    "entities": _create_entities,
    "embedding": _create_embedding,
}
_UNSUPPORTED_REASONS = {
    "zero-shot": "its labels come with each request as parameters, and the tokenizer of an ensemble makes "
    "as many rows as there are texts and labels",
    "similarity": "it reads the two texts of a pair as rows of their own; export the embeddings, and take "
    "the cosine of two of them",
    "relevance": "a query that is sent once for all texts has another number of rows than they have",
}

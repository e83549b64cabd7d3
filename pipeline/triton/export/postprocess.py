"""What makes answers of scores in an exported repository: a Python model for each task, and its settings."""

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
"""What a tokenizer tells of rows: their tokens, of each place the token there, and the tokens of a prompt."""


@dataclass(frozen=True)
class Postprocess:
    """module: of `models/`. settings: its parameters in config.pbtxt. files: JSON files beside it.

    rows: what it needs of the tokenizer beside `windows`. texts: whether it needs the texts, too.
    renamed: names of answers that are others there. copies: files of the model that stand beside it.
    tokenizer: further settings of the tokenizer.
    """

    module: str
    settings: Mapping[str, Any]
    files: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[str, ...] = ()
    texts: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    copies: tuple[Path, ...] = ()
    tokenizer: Mapping[str, Any] = field(default_factory=dict)


def create_postprocess(task: TextTask) -> Postprocess:
    """Raises ConfigError for a task that no exported model does."""
    kind = task.output.kind
    if kind not in _MAKERS:
        why = _WHY_NOT.get(kind, "no model is written for it")
        raise ConfigError(
            f"a service of kind {kind} can't be exported: {why}; exported are {', '.join(_MAKERS)}"
        )
    return _MAKERS[kind](task)


def _classes(task: TextTask) -> Postprocess:
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


def _entities(task: TextTask) -> Postprocess:
    output = task.output
    tags = parse_labels(task.labels.tolist(), output.scheme, output.outside)
    settings = {"threshold": output.threshold, "text": task.name}
    # No ensemble has an input and an output of one name.
    renamed = {"text": "entity"}
    return Postprocess("entities", settings, {"tags.json": tags}, (PLACES,), texts=True, renamed=renamed)


def _embedding(task: TextTask) -> Postprocess:
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
    prompts = {"prompts": json.dumps(sentence.prompts), "default_prompt": sentence.default_prompt}
    return Postprocess("embedding", settings, rows=(LENGTHS, *skips), copies=copies, tokenizer=prompts)


_MAKERS: Mapping[str, Callable[[TextTask], Postprocess]] = {
    "classes": _classes,
    "multilabel": _classes,
    "entities": _entities,
    "embedding": _embedding,
}
_WHY_NOT = {
    "zero-shot": "its labels come with each request as parameters, and the tokenizer of an ensemble makes "
    "as many rows as there are texts and labels",
    "similarity": "it reads the two texts of a pair as rows of their own; export the embeddings, and take "
    "the cosine of two of them",
    "relevance": "a query that is sent once for all texts has another number of rows than they have",
}

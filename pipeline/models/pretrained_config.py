"""Facts in a config.json of transformers or PaddleNLP: the task, the names of the classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Models whose positions start after the padding id.
_POSITIONS_BEHIND_PADDING = ("camembert", "roberta", "xlm-roberta")
_TASKS = {
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMaskedLM": "fill-mask",
    "Model": "feature-extraction",
}


def get_labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names in `id2label`; none where they are the placeholders LABEL_0, ..."""
    named = config.get("id2label")
    if not isinstance(named, dict) or not all(str(index) in named for index in range(len(named))):
        return ()
    labels = tuple(str(named[str(index)]) for index in range(len(named)))
    return () if all(label == f"LABEL_{index}" for index, label in enumerate(labels)) else labels


def is_multi_label(config: Mapping[str, Any]) -> bool:
    """Whether a configuration of transformers or PaddleNLP declares multi-label classification."""
    return config.get("problem_type") == "multi_label_classification"


def get_task(architecture: str) -> str:
    """Return a model hub's name for the task of a transformers or PaddleNLP class; empty if unknown."""
    return next((task for ending, task in _TASKS.items() if architecture.endswith(ending)), "")


def get_max_length(config: Mapping[str, Any]) -> int:
    """Return the maximum number of tokens of a model with learned positions; 0 if unknown."""
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int) or isinstance(positions, bool):
        return 0
    if config.get("model_type") in _POSITIONS_BEHIND_PADDING:
        padding = config.get("pad_token_id", 1)
        positions -= padding + 1 if isinstance(padding, int) else 0
    return max(0, positions)

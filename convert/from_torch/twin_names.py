"""Class names of transformers and of their twins in PaddleNLP."""

from __future__ import annotations

from pipeline.errors import ConversionError

# PaddleNLP has no XLM-R of its own; it is RoBERTa with another vocabulary.
_FAMILIES = {"Bert": "Bert", "Roberta": "Roberta", "XLMRoberta": "Roberta", "Ernie": "Ernie"}
_HEADS = ("Model", "ForSequenceClassification", "ForTokenClassification")
TWINS = "BERT, RoBERTa, ERNIE and XLM-R without a head, or for sequence or token classification"


def has_twin(name: str) -> bool:
    return any(name == family + head for family in _FAMILIES for head in _HEADS)


def twin_name(name: str) -> str:
    """Return PaddleNLP's class for a class of transformers: RobertaModel for XLMRobertaModel."""
    for family, twin in _FAMILIES.items():
        for head in _HEADS:
            if name == family + head:
                return twin + head
    raise ConversionError(f"{name} has no twin in PaddleNLP that weights can be mapped into ({TWINS} have)")

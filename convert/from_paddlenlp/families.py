"""Which models of PaddleNLP can be converted: families of encoders, and heads by their tasks."""

from __future__ import annotations

# By the task: how the name of a class ends.
HEADS = {
    "sequence-classification": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
}
# By `model_type`; XLM-R is RoBERTa with a larger vocabulary.
FAMILIES = {"bert": "Bert", "ernie": "Ernie", "roberta": "Roberta", "xlm-roberta": "Roberta"}
TASKS = tuple(HEADS)

"""The routes from PyTorch, in order, and the classes of transformers with a twin in PaddleNLP."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors import ConversionError

TORCH_OPSETS = range(11, 17)
TORCH_OPSET = 16


@dataclass(frozen=True)
class Route:
    """One route from PyTorch: its step and its product."""

    step: str
    needs: tuple[str, ...]  # packages that the step imports
    name: str
    product: str


ROUTES = {
    "paddle": Route(
        "paddle_step", ("torch", "transformers", "paddle", "paddlenlp"), "Paddle", "Paddle program"
    ),
    "onnx": Route("onnx_step", ("torch", "transformers", "onnx", "onnxruntime"), "ONNX", "ONNX model"),
    "torchscript": Route("torchscript_step", ("torch", "transformers"), "TorchScript", "TorchScript program"),
}


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

"""The ways from PyTorch, in the order in which they are tried."""

from __future__ import annotations

from dataclasses import dataclass

OPSETS = range(11, 17)
OPSET = 16


@dataclass(frozen=True)
class Route:
    """One way from PyTorch: its step, the packages that it imports, and what it makes."""

    step: str
    needs: tuple[str, ...]
    name: str
    made: str


ROUTES = {
    "paddle": Route(
        "paddle_step", ("torch", "transformers", "paddle", "paddlenlp"), "Paddle", "Paddle program"
    ),
    "onnx": Route("onnx_step", ("torch", "transformers", "onnx", "onnxruntime"), "ONNX", "ONNX model"),
    "torchscript": Route("torchscript_step", ("torch", "transformers"), "TorchScript", "TorchScript program"),
}

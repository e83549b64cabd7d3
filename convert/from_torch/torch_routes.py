"""The routes from PyTorch, in the order in which they are tried."""

from __future__ import annotations

from dataclasses import dataclass

OPSETS = range(11, 17)
OPSET = 16


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

"""Functions that convert models to serving models, one for each command of `paddlewheel convert`.

A serving model is the folder that a service loads: graph, weights, and a description of inputs and outputs.
The import of this package imports no framework: attribute access imports the module of a function.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convert.demo.convert_demo import convert_demo
    from convert.from_paddle.convert_paddle import convert_paddle
    from convert.from_paddlenlp.convert_paddlenlp import convert_paddlenlp
    from convert.from_torch.convert_torch import convert_torch
    from convert.inspection.check import check_models, check_serving
    from convert.inspection.shapes import convert_shapes
    from convert.paddle_onnx.to_onnx import convert_to_onnx
    from convert.paddle_onnx.to_paddle import convert_onnx
    from convert.precision.convert_precision import convert_precision
    from convert.result import Conversion, ConversionOptions
    from convert.to_serving.convert_serving import convert_serving
    from convert.whole.convert_all import convert_all
    from convert.whole.step_arguments import StepArguments

__all__ = [
    "Conversion",
    "ConversionOptions",
    "StepArguments",
    "check_models",
    "check_serving",
    "convert_all",
    "convert_demo",
    "convert_onnx",
    "convert_paddle",
    "convert_paddlenlp",
    "convert_precision",
    "convert_serving",
    "convert_shapes",
    "convert_to_onnx",
    "convert_torch",
]

_MODULES = {
    "Conversion": "result",
    "ConversionOptions": "result",
    "StepArguments": "whole.step_arguments",
    "check_models": "inspection.check",
    "check_serving": "inspection.check",
    "convert_all": "whole.convert_all",
    "convert_demo": "demo.convert_demo",
    "convert_onnx": "paddle_onnx.to_paddle",
    "convert_paddle": "from_paddle.convert_paddle",
    "convert_paddlenlp": "from_paddlenlp.convert_paddlenlp",
    "convert_precision": "precision.convert_precision",
    "convert_serving": "to_serving.convert_serving",
    "convert_shapes": "inspection.shapes",
    "convert_to_onnx": "paddle_onnx.to_onnx",
    "convert_torch": "from_torch.convert_torch",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)

"""Makes serving models: what each command of `python -m convert` does, as a function.

Importing this imports no framework: a function comes with its module when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convert.check import check_models, check_serving
    from convert.demo import convert_demo
    from convert.from_onnx import convert_onnx
    from convert.from_paddle import convert_paddle
    from convert.from_paddlenlp import convert_paddlenlp
    from convert.from_torch import convert_torch
    from convert.precision import convert_precision
    from convert.result import Conversion, ConversionOptions
    from convert.shapes import convert_shapes
    from convert.to_onnx import convert_to_onnx
    from convert.to_serving import convert_serving
    from convert.whole import Wanted, convert_all

__all__ = [
    "Conversion",
    "ConversionOptions",
    "Wanted",
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
    "Wanted": "whole",
    "check_models": "check",
    "check_serving": "check",
    "convert_all": "whole",
    "convert_demo": "demo",
    "convert_onnx": "from_onnx",
    "convert_paddle": "from_paddle",
    "convert_paddlenlp": "from_paddlenlp",
    "convert_precision": "precision",
    "convert_serving": "to_serving",
    "convert_shapes": "shapes",
    "convert_to_onnx": "to_onnx",
    "convert_torch": "from_torch",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)

"""The engines that conversions write models for: names, versions, errors, and a quiet import of Paddle."""

from __future__ import annotations

import os
import re
import signal
import threading
import warnings
from importlib import metadata
from types import ModuleType
from typing import TYPE_CHECKING

from pipeline.errors import ConversionError

if TYPE_CHECKING:
    from pipeline.models.serving_model import EngineName

ENGINES: dict[EngineName, str] = {
    "paddle": "Paddle Inference",
    "onnxruntime": "ONNX Runtime",
    "pytorch": "PyTorch",
}

_MAX_CHARS = 400
# C++ messages for a missing key or index.
_LOOKED_UP = re.compile(r"(std::)?(unordered_)?map::at|_Map_base::at|(vector|deque)::_M_range_check.*")

INSTALL_PADDLE = "pip install 'paddlewheel[paddle]'"
_DISTRIBUTIONS = ("paddlepaddle", "paddlepaddle-gpu")


def import_paddle() -> ModuleType:
    """Import Paddle without its log messages, set to the CPU and dynamic mode, and return the module.

    Raises ConversionError if Paddle isn't installed.
    """
    os.environ.setdefault("GLOG_minloglevel", "2")
    warnings.filterwarnings("ignore", module=r"paddle(\..*)?")
    try:
        import paddle
    except ImportError as exc:
        raise ConversionError(f"Paddle can't be imported ({exc}): {INSTALL_PADDLE}") from exc
    _restore_signals(paddle)
    paddle.set_device("cpu")
    paddle.disable_static()
    return paddle  # type: ignore[no-any-return]


def _restore_signals(paddle: ModuleType) -> None:
    """Restore the handler of SIGTERM, which importing Paddle replaces with a stack dump."""
    if threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGTERM)
    paddle.disable_signal_handler()
    signal.signal(signal.SIGTERM, handler)


def onnx_runtime_version() -> str:
    """Return the installed version of ONNX Runtime without importing it.

    Raises ConversionError if ONNX Runtime isn't installed.
    """
    for distribution in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    raise ConversionError("ONNX Runtime isn't installed: pip install onnxruntime")


def paddle_version() -> str:
    """Return the installed version of Paddle without importing it.

    Raises ConversionError if Paddle isn't installed.
    """
    version = find_paddle_version()
    if not version:
        raise ConversionError(f"Paddle isn't installed: {INSTALL_PADDLE}")
    return version


def find_paddle_version() -> str:
    """Return the installed version of Paddle without importing it; empty if Paddle isn't installed."""
    for distribution in _DISTRIBUTIONS:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return ""


def first_line(error: BaseException) -> str:
    """Return a library's error as one line, `Class: sentence`, without its C++ stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Error:" in line or "Hint:" in line or line.startswith("(")]
    text = (telling or lines or [type(error).__name__])[0]
    if text.endswith(":") and lines[-1] != text:  # the message is on the next line
        text = f"{text} {lines[lines.index(text) + 1]}"
    if _LOOKED_UP.fullmatch(text):
        text = f"{text}: the library looked up what it does not have, a fault of its own"
    return f"{type(error).__name__}: {text[:_MAX_CHARS]}".rstrip(".")

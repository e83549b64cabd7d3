"""Ends a worker whose GPU is lost to it: an error of CUDA that every later call of the process repeats.

An index beyond a lookup table, for example, is an assertion in a kernel. It destroys the CUDA context of the
process. The front runs the worker's requests again, each alone in a new worker, and rejects the one that
causes the error.
Source: cudaError_t, https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html: the errors after
which "the process must be terminated and relaunched".
"""

from __future__ import annotations

import logging
import os
import re

from pipeline.errors import DeviceLost, get_error_text
from pipeline.process.log import lines_written, one_line

log = logging.getLogger(__name__)

_NAMES = (
    "device-side assert",
    "an illegal memory access",
    "an illegal instruction",
    "misaligned address",
    "operation not supported on global/shared address space",
    "invalid program counter",
    "unspecified launch failure",
    "the launch timed out",
    "hardware stack error",
    "uncorrectable ECC error",
    "uncorrectable NVLink error",
    "context is destroyed",
)
_NUMBERS = (214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719)
# PyTorch: "CUDA error: device-side assert", ONNX Runtime: "CUDA failure 700: ", Paddle: "CUDA error(719), ".
_KINDS = "|".join(
    [*(f": {re.escape(name)}" for name in _NAMES), *(rf"[ (]{number}\b" for number in _NUMBERS)]
)
_LOST = re.compile(f"CUDA (?:error|failure)(?:{_KINDS})")
_MAX_CHARS = 200


def is_device_lost(reason: str) -> bool:
    """Whether an engine's error message names a CUDA error from which a process can't recover."""
    return _LOST.search(reason) is not None


def end_if_device_is_lost(exc: BaseException) -> None:
    """End this process, after logging a line, if an exception of a model or hook says that the GPU is lost.

    A hook's own exception counts only if it begins with CUDA's message: other texts may quote a request.
    """
    if not isinstance(exc, DeviceLost) and not _begins_with_loss(exc):
        return
    reason = one_line(get_error_text(exc), _MAX_CHARS)
    log.error("the GPU is lost to this worker, which ends: %s", reason)
    lines_written()
    os._exit(1)


def _begins_with_loss(exc: BaseException) -> bool:
    return issubclass(type(exc), RuntimeError) and _LOST.match(get_error_text(exc)) is not None

"""Errors of CUDA after which a process can't use its GPU, in the words of each engine."""

from __future__ import annotations

import pytest

from pipeline.engines.refusals import build_run_error
from pipeline.errors import DeviceLost
from pipeline.process.lost_device import is_device_lost


@pytest.mark.parametrize(
    ("reason", "lost"),
    [
        ("CUDA error: device-side assert triggered", True),
        ("CUDA error: an illegal memory access was encountered", True),
        ("Non-zero status code. CUDA failure 700: an illegal memory access was encountered ; GPU=0", True),
        ("(External) CUDA error(719), unspecified launch failure.", True),
        ("CUDA out of memory. Tried to allocate 20.00 MiB", False),
        ("CUDA error: out of memory", False),
        ("CUDA failure 2: out of memory", False),
        ("CUDA error: invalid device ordinal", False),
        ("CUDA error(7190)", False),
        ("index 8 is out of bounds for dimension 0 with size 8", False),
    ],
)  # fmt: skip
def test_errors_that_a_process_does_not_recover_from(reason: str, lost: bool) -> None:
    assert is_device_lost(reason) is lost
    assert isinstance(build_run_error("PyTorch", [], {}, reason), DeviceLost) is lost

"""Functions called in one process of the conversion environment, which imports PyTorch once for all."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from convert.steps.isolation import run_isolated
from convert.steps.progress import Steps

Call = tuple[str, dict[str, Any]]  # "module:function", and its arguments but for `steps`


def run_steps(*calls: Call, needs: Sequence[str] = ("torch", "transformers")) -> list[Any]:
    """Return the results of the calls, which a process of the conversion environment makes in this order."""
    results: list[Any] = run_isolated(
        f"{__name__}:call_all", {"calls": calls}, converter="a step of the tests", needs=needs
    )
    return results


def call_all(steps: Steps, calls: Sequence[Call]) -> list[Any]:
    """Make the calls in this process."""
    results = []
    for function, arguments in calls:
        module, _, name = function.partition(":")
        results.append(getattr(importlib.import_module(module), name)(steps, **arguments))
    return results

"""The versions of scikit-learn in a pickle and in the conversion environment, and how to match them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from convert.from_tables.pickle_facts import PickleFacts
from convert.result import ConversionOptions
from convert.steps.conversion_environment import CONVERT_PYTHON, conversion_python
from convert.steps.isolation import run_isolated
from pipeline.launch.commands import paddlewheel

SCIKIT_LEARN = "scikit-learn"
SCIKIT_LEARN_NEEDS = ("sklearn", "skl2onnx", "joblib", "onnx")


def describe_mismatch(
    source: Path, facts: PickleFacts, needs: Sequence[str], options: ConversionOptions
) -> str:
    """Name both versions, and the commands that convert with the right one; empty if they match.

    Patch releases of scikit-learn read the pickles of each other.
    """
    if not facts.sklearn:
        return ""
    installed = run_isolated(
        "convert.from_tables.table_model:installed_version",
        {"distribution": SCIKIT_LEARN},
        converter=SCIKIT_LEARN,
        needs=needs,
        timeout_s=options.step_timeout_s,
    )
    if _minor(installed) == _minor(facts.sklearn):
        return ""
    folder = f"{SCIKIT_LEARN}-{facts.sklearn}"
    packages = " ".join((f"{SCIKIT_LEARN}=={facts.sklearn}", *facts.boosters))
    again = options.command or "the conversion"
    return (
        f"{source} was saved by scikit-learn {facts.sklearn}, and {conversion_python(needs)} has "
        f"{installed}, which may misread it. Convert it with {facts.sklearn}: "
        f"`{paddlewheel()} convert-env {folder} --tables {packages} && "
        f"{CONVERT_PYTHON}={folder}/bin/python {again}`"
    )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]

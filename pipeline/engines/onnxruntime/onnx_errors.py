"""Sentences of ONNX Runtime's errors: without its codes and places, with a remedy if one is known."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.engines.refusals import Beyond

MAX_ERROR_CHARS = 400

# "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : the sentence", and the source file's place before a sentence.
_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_PLACE = re.compile(r"/\S+:\d+ [^()]*\([^)]*\) (const )?")
_LATER_OPSET = re.compile(r"Opset (\d+) is under development.* till opset (\d+)")
_NO_OPERATOR = re.compile(
    r"No Op registered for (\S+) with|([\w.]*:?\w+)\(-?\d+\) is not a registered function"
)
# Gather's own words, and those of GatherElements.
_BEYOND = (
    re.compile(
        r"idx=(?P<given>-?\d+) must be within the inclusive range \[(?P<least>-?\d+),(?P<most>-?\d+)\]"
    ),
    re.compile(r"within bounds \[(?P<least>-?\d+) ?, ?(?P<most>-?\d+)\].*?Actual value is (?P<given>-?\d+)"),
)


def looked_up(exc: Exception) -> Beyond | None:
    """The number that a run looked up in vain; None where it failed of something else."""
    found = next((match for pattern in _BEYOND if (match := pattern.search(str(exc)))), None)
    return found and Beyond(int(found["given"]), int(found["least"]), int(found["most"]))


def error_sentence(exc: Exception) -> str:
    """ONNX Runtime's own sentence."""
    text = " ".join(_PLACE.sub("", _CODE.sub("", str(exc))).split())
    return (text or type(exc).__name__)[:MAX_ERROR_CHARS].strip()


def load_sentence(program: Path, exc: Exception) -> str:
    """Why a model can't be loaded."""
    import onnxruntime

    engine, text = f"ONNX Runtime {onnxruntime.__version__}", " ".join(str(exc).split())
    if found := _LATER_OPSET.search(text):
        return (
            f"{program} is of opset {found[1]}, but {engine} takes up to {found[2]}: export it again at that"
        )
    if found := _NO_OPERATOR.search(text):
        return (
            f"{program} has the operator {found[1] or found[2]}, which {engine} lacks: export the model with "
            "operators of the standard"
        )
    return f"{program} can't be loaded by {engine}: {error_sentence(exc)}"

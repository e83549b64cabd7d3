"""Paddle's own sentence out of what it raises."""

from __future__ import annotations

import re

from pipeline.engines.refusals import Beyond

# The sentence of an error: "(InvalidArgument) ..." or "InvalidArgumentError: ...", after lines of preamble.
_SENTENCE = re.compile(r"^\s*(\([A-Z]\w+\) .+|\w+Error: .+)$", re.MULTILINE)
MAX_ERROR_CHARS = 400
# Of embedding; the end is the first number that the table lacks.
_BEYOND = re.compile(r"expected >= 0 and < (?P<end>\d+), but got (?P<given>-?\d+)")


def looked_up(exc: Exception) -> Beyond | None:
    """The number that a run looked up in vain; None where it failed of something else."""
    found = _BEYOND.search(str(exc))
    return found and Beyond(int(found["given"]), 0, int(found["end"]) - 1)


def error_sentence(exc: Exception) -> str:
    """Paddle's own sentence out of an error that comes with hints and a native traceback."""
    text = str(exc)
    match = _SENTENCE.search(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    sentence = match[1] if match else lines[0] if lines else type(exc).__name__
    return sentence[:MAX_ERROR_CHARS].strip()

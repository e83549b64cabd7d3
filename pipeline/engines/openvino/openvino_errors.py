"""Sentences of OpenVINO's errors: without its source files and the checks that failed there."""

from __future__ import annotations

import re

MAX_ERROR_CHARS = 400

# "Exception from src/...cpp:84:", and "Check '...' failed at src/...cpp:151:" before a sentence or within it.
_PLACE = re.compile(r"(Caught exception: )?Exception from \S+:\d+:|Check '.*?' failed at \S+:\d+:")


def error_sentence(exc: Exception) -> str:
    """OpenVINO's own words; the check itself where it has none."""
    text = str(exc)
    told = " ".join(_PLACE.sub(" ", text).split()) or " ".join(text.split())
    return (told or type(exc).__name__)[:MAX_ERROR_CHARS].strip()

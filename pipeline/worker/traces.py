"""Exceptions of the user's code as the log tells them: in a sentence, and by the user's own lines."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

from pipeline.errors import get_error_text

_OURS = str(Path(__file__).resolve().parents[1]) + "/"
MOST_TRACE_CHARS = 16_000  # an exception's text may hold a whole request
_RUNNERS = ("<frozen runpy>", "<frozen importlib")


def said_by(exc: BaseException) -> str:
    """The class of an exception and its text: many a text says nothing without, that of a KeyError say."""
    text = get_error_text(exc)
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def format_user_traceback(exc: BaseException) -> str:
    """The exception's traceback, without the frames of ours that come before the first of the user's."""
    try:
        trace = exc.__traceback__
        while trace is not None and _leads_there(trace):
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(exc), exc, trace or exc.__traceback__)).rstrip()
    except BaseException:  # of the exception's own methods
        return f"{type(exc).__name__}, of which no traceback can be printed"
    if len(text) <= MOST_TRACE_CHARS:
        return text
    half = MOST_TRACE_CHARS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters ...\n{text[-half:]}"


def format_cause(error: BaseException) -> str:
    """The traceback of what an error came of, else its own; empty for one that was never raised."""
    exc = error.__cause__ or error
    return format_user_traceback(exc) if exc.__traceback__ is not None else ""


def _leads_there(trace: TracebackType) -> bool:
    file = trace.tb_frame.f_code.co_filename
    return file.startswith((_OURS, *_RUNNERS))

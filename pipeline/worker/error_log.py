"""ErrorLog: logs errors of the app's code and of models, at most one traceback of a line in ten seconds.

Clients may cause an error with every request. The front sums the errors that are not logged here, as it sums
refusals.
"""

from __future__ import annotations

import logging
import sysconfig
import threading
import time
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from pipeline.errors import ServingError, get_error_text
from pipeline.process.log import QUIET_S

log = logging.getLogger(__name__)

_MAX_PLACES = 256
_MAX_CHARS = 300  # of an error's text, where it stands for the place
_MAX_FRAMES = 1000
# Folders of this package, of installed packages and of Python's library, which hold no user code.
_LIBRARIES = (
    f"{Path(__file__).resolve().parents[1]}/",
    *(f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib", "stdlib")),
    "<",
)


class Place(NamedTuple):
    """Identifies errors of one cause: the class of an exception and the line of code that raised it.

    Wrong results of user hooks have no such line: then `file` holds the text of the error.
    """

    kind: str
    file: str = ""
    line: int = 0


class ErrorLog:
    """Logs an error unless one of the same class and line was logged in the last seconds.

    All threads of a worker share the instance `ERRORS`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged_at: dict[Place, float] = {}

    def log_error(self, exc: BaseException, message: str, *args: object) -> bool:
        """Log a message at level ERROR, unless an error of the same class and line was logged a moment ago.

        exc: the exception with this class and line. Returns whether the message was logged.
        """
        if not self._admit(find_place(exc), time.monotonic()):
            return False
        log.error(message, *args)
        return True

    def _admit(self, place: Place, now: float) -> bool:
        with self._lock:
            if now - self._logged_at.get(place, -QUIET_S) < QUIET_S:
                return False
            if len(self._logged_at) >= _MAX_PLACES:
                recent = {key: at for key, at in self._logged_at.items() if now - at < QUIET_S}
                self._logged_at = recent
                if len(recent) >= _MAX_PLACES:
                    return False
            self._logged_at[place] = now
            return True


def find_place(exc: BaseException) -> Place:
    """Return the class and line of an exception, or of the exception that caused it."""
    cause = exc.__cause__ or exc
    trace = cause.__traceback__
    if trace is None:
        return Place(type(cause).__name__, get_error_text(cause)[:_MAX_CHARS])
    while trace.tb_next is not None:
        trace = trace.tb_next
    return Place(type(cause).__name__, trace.tb_frame.f_code.co_filename, trace.tb_lineno)


def record_user_place(error: ServingError, exc: BaseException) -> None:
    """Set `user_place` of an error: the place in user code that raised it.

    exc: the exception of user code.
    """
    try:
        error.user_place = error.user_place or _describe_user_place(exc)
    except BaseException:  # of an exception of the app's own class
        return


def _describe_user_place(exc: BaseException) -> str:
    """Return class, function, file and line of an exception: "ValueError in preprocess, web_service.py:41".

    The line is the last line of user code before the exception. Empty if no user code was running. The text
    of the exception is left out, because it may hold values of a request.
    """
    place: tuple[CodeType, int] | None = None
    trace = exc.__traceback__
    for _ in range(_MAX_FRAMES):
        if trace is None:
            break
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(_LIBRARIES):
            place = code, trace.tb_lineno
        trace = trace.tb_next
    if place is None:
        return ""
    code, line = place
    return f"{type(exc).__name__} in {code.co_name}, {Path(code.co_filename).name}:{line}"


ERRORS = ErrorLog()

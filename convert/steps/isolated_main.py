"""The main of a process that runs one conversion step: calls a function, sends progress and result."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import traceback
from typing import Any, NoReturn

from convert.steps.conversion_environment import require_packages
from convert.steps.progress import Steps
from pipeline.errors import ConversionError, ParityError, ServingError
from pipeline.process.processes import die_with


class ReportedSteps(Steps):
    """Sends a step's progress as JSON lines through a pipe to `convert.steps.isolation`, which shows it."""

    def __init__(self, events: int) -> None:
        self._events = os.fdopen(events, "w", encoding="utf-8")

    def step(self, name: str, total: int = 1) -> None:
        self.send_event({"step": name, "total": total})

    def advance(self) -> None:
        self.send_event({"advance": 1})

    def say(self, text: str) -> None:
        self.send_event({"say": text})

    def hear(self, text: str) -> None:
        """Do nothing: the output of libraries is in the log of this process."""

    def send_event(self, event: dict[str, Any]) -> None:
        line = json.dumps(event)
        self._events.write(f"{line}\n")
        self._events.flush()


def main() -> NoReturn:
    """Run the function named in the JSON request on stdin, send its result or error, and exit.

    argv: the file descriptor for events, and the parent's process id.
    """
    events, parent = (int(argument) for argument in sys.argv[1:])
    die_with(parent)
    os.set_inheritable(events, False)
    steps = ReportedSteps(events)
    try:
        steps.send_event({"result": _call_function(json.load(sys.stdin), steps)})
    except ServingError as exc:
        kind = ParityError.__name__ if isinstance(exc, ParityError) else ConversionError.__name__
        steps.send_event({"error": exc.message, "kind": kind, "traceback": traceback.format_exc()})
    except Exception as exc:
        from convert.output.staging import DISK_IS_FULL
        from convert.programs.engines import first_line

        event: dict[str, Any] = {"error": first_line(exc), "kind": "", "traceback": traceback.format_exc()}
        if isinstance(exc, OSError) and exc.errno in DISK_IS_FULL:
            event |= {"error": exc.strerror, "kind": OSError.__name__, "errno": exc.errno}
        steps.send_event(event)
    # The converter's output may explain an error. The result is sent: skip the exit of native libraries,
    # which may crash.
    ctypes.CDLL(None).fflush(None)
    os._exit(0)


def _call_function(request: dict[str, Any], steps: Steps) -> object:
    require_packages(request["needs"])
    module, _, name = request["function"].partition(":")
    function = getattr(importlib.import_module(module), name)
    return function(steps, **request["arguments"])


if __name__ == "__main__":
    main()

"""Runs a conversion step in a separate process of the conversion environment, and returns its result."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from convert.steps.conversion_environment import conversion_python
from convert.steps.progress import SilentSteps, Steps
from pipeline.errors import ConversionError, ParityError, ServingError
from pipeline.process.helper_process import read_outputs, start_program
from pipeline.process.processes import python_module, signal_name

_LOG_BYTES = 64 * 1024
_EVENT_BYTES = 16 * 1024 * 1024
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TELLING = re.compile(r"error|fail|unsupported|not support|operator|cannot|can't", re.IGNORECASE)
_NAMING = re.compile(r"\[OP: |\boperator\b", re.IGNORECASE)
# The start of the reports of faulthandler and Paddle about a signal, below the converter's output.
_CRASH_REPORT = re.compile(r"^(Fatal Python error|-{20}|C\+\+ Traceback|FatalError: `)", re.MULTILINE)


class StepLog(Exception):
    """Cause (`__cause__`) of a failed step's error: the step's log and traceback, shown with --debug."""


class ConverterCrashed(ConversionError):
    """Raised when the process of a conversion step is killed by a signal."""


class StepProcess:
    """Collects the output of a running step's process: the end of its log, progress, and the result.

    converter: the step's name in messages. steps: receives the progress.
    """

    def __init__(self, converter: str, steps: Steps) -> None:
        self._converter = converter
        self._steps = steps
        self._log = bytearray()
        self._events = bytearray()
        self._answer: dict[str, Any] | None = None

    @property
    def has_answer(self) -> bool:
        """Whether the process has sent a result or an error."""
        return self._answer is not None

    def result(self, exit_code: int | None, timeout_s: float) -> Any:
        """Return the step's result or raise its error; `exit_code` is None after a timeout."""
        if self._answer is None:
            raise self._unanswered(exit_code, timeout_s)
        if "result" in self._answer:
            return self._answer["result"]
        error = self._answer["error"]
        cause = StepLog(f"{self._decode_log()}\n{self._answer['traceback']}")
        match self._answer["kind"]:
            case "ParityError":
                raise ParityError(error) from cause
            case "ConversionError":
                raise ConversionError(error) from cause
            case "OSError":
                raise OSError(self._answer["errno"], error) from cause
        raise ConversionError(f"{self._converter} failed ({error}).") from cause

    def add_log(self, data: bytes) -> None:
        """Append process output to the log, of which only the end is kept, and show it as progress."""
        self._log += data
        del self._log[:-_LOG_BYTES]
        self._steps.hear(_ESCAPES.sub("", data.decode("utf-8", "replace")))

    def add_events(self, data: bytes) -> None:
        """Handle the complete lines of JSON from the process, and keep the rest for the next call."""
        *lines, rest = (self._events + data).split(b"\n")
        self._events = rest
        if len(rest) > _EVENT_BYTES:
            raise ConversionError(f"{self._converter}: its result is over {_EVENT_BYTES} bytes of JSON.")
        for line in lines:
            self._handle_event(json.loads(line))

    def _handle_event(self, event: dict[str, Any]) -> None:
        if "step" in event:
            self._steps.step(event["step"], event["total"])
        elif "advance" in event:
            self._steps.advance()
        elif "say" in event:
            self._steps.say(event["say"])
        else:
            self._answer = event

    def _unanswered(self, exit_code: int | None, timeout_s: float) -> ServingError:
        if exit_code is None:
            what = f"took longer than {timeout_s:g} s and was stopped; give it more with --step-timeout"
        elif exit_code == -signal.SIGKILL:
            what = "was killed (SIGKILL), as the kernel does where memory runs out"
        elif exit_code < 0:
            what = f"crashed in native code ({signal_name(-exit_code)})"
        else:
            what = f"ended with exit code {exit_code} before it had a result"
        kind = ConverterCrashed if exit_code is not None and exit_code < 0 else ConversionError
        error = kind(f"{self._converter} {what}{self._last_words()}.")
        error.__cause__ = StepLog(self._decode_log())
        return error

    def _decode_log(self) -> str:
        return _ESCAPES.sub("", self._log.decode("utf-8", "replace"))

    def _last_words(self) -> str:
        """Return the last log line that names an operator, or else an error, as "; the last it said: ..."."""
        output = _CRASH_REPORT.split(self._decode_log(), maxsplit=1)[0]
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        naming, telling = (list(filter(pattern.search, lines)) for pattern in (_NAMING, _TELLING))
        last = (naming or telling or lines or [""])[-1]
        return f"; the last it said: {last[:300].rstrip('.')}" if last else ""


STEP_TIMEOUT_S = 3600.0
_MAIN = "convert.steps.isolated_main"


def run_isolated(
    function: str,
    arguments: Mapping[str, object],
    *,
    converter: str,
    needs: Sequence[str],
    steps: Steps | None = None,
    timeout_s: float = STEP_TIMEOUT_S,
    variables: Mapping[str, str] | None = None,
) -> Any:
    """Call `function` ("module:name") as `name(steps, **arguments)` in the conversion environment.

    The function is called in a new process with the converters' packages. Arguments and result are JSON
    values; tensors and models go through files. `converter` names the step in messages. `needs` are the
    import names of the packages that the function imports. `variables` are added to the process's environment
    variables. An error message quotes the end of the process's output. Raises ConversionError when the
    function fails, crashes natively, ends without a result or takes longer than `timeout_s`. Raises
    ParityError if the function raises it, and OSError when the disk is full.
    """
    python = conversion_python(needs)
    request = {"function": function, "arguments": dict(arguments), "needs": list(needs)}
    step = StepProcess(converter, steps or SilentSteps())
    events, child_events = os.pipe()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, events)
        try:
            process = stack.enter_context(
                start_program(
                    [*python_module(_MAIN, python), str(child_events), str(os.getpid())],
                    stdin=json.dumps(request).encode(),
                    stderr=subprocess.STDOUT,
                    pass_fds=[child_events],
                    env=_environment() | dict(variables or {}),
                )
            )
        except OSError as exc:
            raise ConversionError(f"{python} can't be started ({exc.strerror}); name another.") from exc
        finally:
            os.close(child_events)
        assert process.stdout is not None
        sinks = {events: step.add_events, process.stdout.fileno(): step.add_log}
        in_time = read_outputs(process, sinks, time.monotonic() + timeout_s, lambda: step.has_answer)
    # Leaving the block has killed the step with its children, as Ctrl-C does. (Ctrl-C before the start
    # returns ends the command, and then the kernel ends the step: `die_with`.)
    return step.result(process.returncode if in_time else None, timeout_s)


def _environment() -> dict[str, str]:
    """Return this process's environment variables, plus settings that keep paddle2onnx off pip's index.

    paddle2onnx may call pip by itself.
    """
    return {**os.environ, "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1", "PIP_NO_INDEX": "1"}

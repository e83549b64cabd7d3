"""A step of a conversion in a process of its own, in the conversion environment."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from convert.steps.conversion_environment import conversion_python
from convert.steps.progress import SilentSteps, Steps
from pipeline.errors import ConversionError, ParityError, ServingError
from pipeline.process.processes import python_module, signal_name

_LOG_BYTES = 64 * 1024
_EVENT_BYTES = 16 * 1024 * 1024
_READ_BYTES = 64 * 1024
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TELLING = re.compile(r"error|fail|unsupported|not support|operator|cannot|can't", re.IGNORECASE)
_NAMING = re.compile(r"\[OP: |\boperator\b", re.IGNORECASE)
# The start of the reports of faulthandler and Paddle about a signal, below the converter's output.
_CRASH_REPORT = re.compile(r"^(Fatal Python error|-{20}|C\+\+ Traceback|FatalError: `)", re.MULTILINE)


class StepLog(Exception):
    """The log and traceback of a failed step: the cause of its error, for --debug."""


class ConverterCrashed(ConversionError):
    """A step's process died of a signal."""


class StepProcess:
    """A running step: the end of its log, and its answer once it has come."""

    def __init__(self, converter: str, steps: Steps) -> None:
        self._converter = converter
        self._steps = steps
        self._log = bytearray()
        self._events = bytearray()
        self._answer: dict[str, Any] | None = None

    def follow(self, process: subprocess.Popen[bytes], events: int, timeout_s: float) -> bool:
        """Read events until the answer or the end; return whether one came in time."""
        assert process.stdout is not None
        process_ends = os.pidfd_open(process.pid)
        try:
            with process.stdout as log, selectors.DefaultSelector() as selector:
                for source, take in ((events, self._take_events), (log.fileno(), self._take_log)):
                    os.set_blocking(source, False)
                    selector.register(source, selectors.EVENT_READ, take)
                selector.register(process_ends, selectors.EVENT_READ)
                ended = self._wait(selector, process_ends, time.monotonic() + timeout_s)
                self._drain(log.fileno(), self._take_log)
                if self._answer is None:
                    self._drain(events, self._take_events)
        finally:
            os.close(process_ends)
        return ended

    def result(self, exit_code: int | None, timeout_s: float) -> Any:
        """Return the step's result or raise its error; `exit_code` is None after a timeout."""
        if self._answer is None:
            raise self._unanswered(exit_code, timeout_s)
        if "result" in self._answer:
            return self._answer["result"]
        error = self._answer["error"]
        cause = StepLog(f"{self._text()}\n{self._answer['traceback']}")
        match self._answer["kind"]:
            case "ParityError":
                raise ParityError(error) from cause
            case "ConversionError":
                raise ConversionError(error) from cause
            case "OSError":
                raise OSError(self._answer["errno"], error) from cause
        raise ConversionError(f"{self._converter} failed ({error}).") from cause

    def _wait(self, selector: selectors.BaseSelector, process_ends: int, deadline: float) -> bool:
        """Read until the answer or the end of the process; return False if the deadline passes first."""
        while self._answer is None:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return False
            for key, _ in selector.select(remaining_s):
                if key.fd == process_ends:
                    return True
                if self._read_once(key.fd, key.data) == b"":
                    selector.unregister(key.fd)
        return True

    def _drain(self, source: int, take: Callable[[bytes], None]) -> None:
        """Read the rest of a pipe, within a limit: a grandchild may hold the other end and write on."""
        for _ in range(_EVENT_BYTES // _READ_BYTES):
            if not self._read_once(source, take):
                return

    def _read_once(self, source: int, take: Callable[[bytes], None]) -> bytes | None:
        """Read once; return b"" at the end of the pipe, None if it is empty."""
        try:
            data = os.read(source, _READ_BYTES)
        except BlockingIOError:
            return None
        take(data)
        return data

    def _take_log(self, data: bytes) -> None:
        self._log += data
        del self._log[:-_LOG_BYTES]
        self._steps.hear(_ESCAPES.sub("", data.decode("utf-8", "replace")))

    def _take_events(self, data: bytes) -> None:
        *lines, rest = (self._events + data).split(b"\n")
        self._events = rest
        if len(rest) > _EVENT_BYTES:
            raise ConversionError(f"{self._converter}: its result is over {_EVENT_BYTES} bytes of JSON.")
        for line in lines:
            self._take_event(json.loads(line))

    def _take_event(self, event: dict[str, Any]) -> None:
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
        error.__cause__ = StepLog(self._text())
        return error

    def _text(self) -> str:
        return _ESCAPES.sub("", self._log.decode("utf-8", "replace"))

    def _last_words(self) -> str:
        """Return the last line of the log that names an operator, else an error, as a sentence's end."""
        output = _CRASH_REPORT.split(self._text(), maxsplit=1)[0]
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

    Arguments and result are JSON values; tensors and models go through files. `converter` names the step in
    messages. `needs` are the import names of the packages that it imports. `variables` are added to its
    environment. An error message quotes the end of its output. Raises ConversionError when the function
    fails, crashes natively, ends without a result or takes longer than `timeout_s`. Raises ParityError if the
    function does, and OSError when the disk is full.
    """
    python = conversion_python(needs)
    request = {"function": function, "arguments": dict(arguments), "needs": list(needs)}
    step = StepProcess(converter, steps or SilentSteps())
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        json.dump(request, file)
        file.seek(0)
        events, child_events = os.pipe()
        try:
            process = subprocess.Popen(
                [*python_module(_MAIN, python), str(child_events), str(os.getpid())],
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[child_events],
                env=_environment() | dict(variables or {}),
                start_new_session=True,
            )
        except OSError as exc:
            os.close(events)
            raise ConversionError(f"{python} can't be started ({exc.strerror}); name another.") from exc
        finally:
            os.close(child_events)
    try:
        ended = step.follow(process, events, timeout_s)
    finally:
        # Kill the step with its children, also after Ctrl-C. (Ctrl-C before Popen returns ends the command,
        # and then the kernel ends the step: `die_with`.)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(events)
    return step.result(process.returncode if ended else None, timeout_s)


def _environment() -> dict[str, str]:
    """Return our environment with settings for the step; paddle2onnx must not install packages."""
    return {**os.environ, "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1", "PIP_NO_INDEX": "1"}

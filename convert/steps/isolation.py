"""A step of a conversion in a process of its own, with the conversion environment's interpreter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from convert.steps.conversion_environment import conversion_python
from convert.steps.progress import SilentSteps, Steps
from convert.steps.step_process import StepProcess
from pipeline.errors import ConversionError
from pipeline.process.processes import python_module

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

    Arguments and result are what JSON can hold; tensors and models go through files. `converter` names the
    step in messages, `needs` are the packages it imports, by their import names, `variables` are set in
    its environment. What it prints is kept for the message of a failure. Raises ConversionError (ParityError
    if that is what the function raised) when it fails, crashes natively, ends without a result or takes
    longer than `timeout_s`; OSError when the disk is full.
    """
    python = conversion_python(needs)
    request = {"function": function, "arguments": dict(arguments), "needs": list(needs)}
    step = StepProcess(converter, steps or SilentSteps())
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        json.dump(request, file)
        file.seek(0)
        events, theirs = os.pipe()
        try:
            process = subprocess.Popen(
                [*python_module(_MAIN, python), str(theirs), str(os.getpid())],
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs],
                env=_environment() | dict(variables or {}),
                start_new_session=True,
            )
        except OSError as exc:
            os.close(events)
            raise ConversionError(f"{python} can't be started ({exc.strerror}); name another.") from exc
        finally:
            os.close(theirs)
    try:
        ended = step.follow(process, events, timeout_s)
    finally:
        # Whatever it started goes with it, also when Ctrl-C ends the wait. (One that comes before Popen
        # returns ends the command, and the kernel then the process: `die_with`.)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(events)
    return step.result(process.returncode if ended else None, timeout_s)


def _environment() -> dict[str, str]:
    """Ours; and a converter that would install something on its way must not (paddle2onnx tries to)."""
    return {**os.environ, "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1", "PIP_NO_INDEX": "1"}

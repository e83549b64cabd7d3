"""A step of a conversion in a process of its own, in the conversion environment."""

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

"""Paddle and a real prediction, tried in a child process: a crash of its is a finding, not our end."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass, field
from typing import Any

from pipeline.launch.doctor.finding import REINSTALL, Finding, miss, note, ok
from pipeline.plugins import Library
from pipeline.process.processes import python_module, signal_name

TRIAL_TIMEOUT_S = 300.0  # a first import from a slow disk takes minutes
PADDLE = Library("paddle", "paddlewheel[paddle]")


@dataclass(frozen=True)
class Trial:
    """What the child told, and how it ended: its `failure` is empty when it ended well.

    with_paddle: whether Paddle is installed; if not, `paddle` is empty, and ONNX Runtime predicts.
    """

    with_paddle: bool = True
    paddle: dict[str, Any] = field(default_factory=dict)
    predictions: tuple[dict[str, Any], ...] = ()
    failure: str = ""


def try_prediction() -> Trial:
    """Run the child. Takes seconds where it imports Paddle."""
    with_paddle = PADDLE.is_installed
    child = "pipeline.launch.doctor." + ("trial" if with_paddle else "onnx_trial")
    with tempfile.TemporaryDirectory(prefix="paddlewheel-doctor-") as folder:
        try:
            done = subprocess.run(
                [*python_module(child), folder],
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TRIAL_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Trial(with_paddle, failure=f"no answer within {TRIAL_TIMEOUT_S:g} s")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    predictions = tuple(line for line in lines if "device" in line)
    paddle: dict[str, Any] = next((line for line in lines if "version" in line), {})
    return Trial(with_paddle, paddle, predictions, _failure(done.returncode, done.stderr))


def check_paddle(trial: Trial) -> Finding:
    if not trial.with_paddle:
        remedy = f"To serve Paddle models: pip install '{PADDLE.requirement}'"
        return note("Paddle", "not installed; ONNX models are served without it", remedy)
    if not trial.paddle:
        return miss("Paddle", f"can't be imported: {trial.failure}", f"{REINSTALL}.")
    cuda = trial.paddle["cuda"]
    build = f"built with CUDA {cuda}" if cuda else "CPU build"
    return ok("Paddle", f"{trial.paddle['version']}, {build}")


def check_predictions(trial: Trial) -> list[Finding]:
    """One finding a device; a child that told of no prediction is a miss as well."""
    findings = [
        ok(f"Prediction on the {told['device']}", told["prediction"])
        if "prediction" in told
        else miss(
            f"Prediction on the {told['device']}",
            told["error"],
            f"{REINSTALL}; if it stays, report it with this text.",
        )
        for told in trial.predictions
    ]
    tried = bool(trial.paddle) or not trial.with_paddle
    if tried and trial.failure:
        findings.append(
            miss("Prediction", trial.failure, f"{REINSTALL}; if it stays, report it with this text.")
        )
    if not tried:
        findings.append(miss("Prediction", "not tried", "Mend Paddle first, then run the doctor again."))
    return findings


def _failure(code: int, errors: str) -> str:
    if code == 0:
        return ""
    if code < 0:
        return f"the process died of {signal_name(-code)}"
    lines = [line for line in errors.splitlines() if line.strip()]
    return lines[-1][:400] if lines else f"exit code {code}"

"""The promises under load and faults, as `python -m tests.chaos` judges them; and that it does judge."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.service_process import APPS, ROOT

ENDPOINTS = {"key/value HTTP", "PipelineService gRPC", "v1 HTTP", "v2 HTTP", "v2 gRPC"}


def chaos(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report of a short run."""
    command = [sys.executable, "-m", "tests.chaos", "--json", "--texts", "300", "--every", "0.1", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, report


def test_no_fault_costs_a_caller_its_own_answer() -> None:
    """Killed, hung and exchanged workers, a restart, a flood, poison; clients that leave or send rubbish."""
    code, report = chaos("--seconds", "2")
    assert report["broken"] == []
    assert code == 0
    assert all(count >= 1 for count in report["faults"].values())
    assert all(report["doors"][endpoint]["answered"] > 10 for endpoint in ENDPOINTS)
    assert len(report["deaths"]["retried"]) == report["faults"]["kill"]
    assert report["refused"]["poison"] == report["faults"]["poison"]
    assert report["refused"]["malformed"] == 7 * report["faults"]["malform"]
    assert set(report["refused"]) <= {"poison", "malformed", "overloaded", "restarting"}


def test_no_fault_mixes_sequences_or_streams() -> None:
    code, report = chaos("--sequences", "--seconds", "1", "--faults", "kill,leave", "--callers", "2")
    assert report["broken"] == []
    assert code == 0
    kinds = ("sequence", "stream", "generative stream")
    assert all(report["doors"][kind]["answered"] >= 1 for kind in kinds)
    assert set(report["refused"]) <= {"a worker died under a stream"}


@pytest.mark.parametrize("threads", [True, False], ids=["threads", "processes"])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_what_hooks_hand_on_by_self_is_the_requests_own_under_load_and_faults(
    batch_size: int, threads: bool
) -> None:
    """Preprocess to process to postprocess, with runs over the Op's `timeout`, deaths and cancelled calls."""
    mode = ["--keeps-state", "--batch-size", str(batch_size), *(["--threads"] if threads else [])]
    code, report = chaos("--seconds", "1", "--faults", "stall,kill,cancel,disconnect", *mode)
    assert report["broken"] == []
    assert code == 0
    assert all(count >= 1 for count in report["faults"].values())
    assert all(report["doors"][endpoint]["answered"] > 10 for endpoint in ENDPOINTS)
    assert set(report["refused"]) <= {"overloaded"}


def test_a_service_that_mixes_callers_up_is_found_out() -> None:
    lying = ("--script", str(APPS / "liar.py"), "--faults", "none", "--seconds", "1", "--instances", "1")
    code, report = chaos(*lying)
    assert code == 1
    assert any("mismatched" in sentence for sentence in report["broken"])

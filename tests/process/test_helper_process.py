"""Helper processes: their input and output, and their limits."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pipeline.process.helper_process import HelperFailed, HelperResult, run_helper, run_program
from tests.support.service_process import is_running, wait_until

MAIN = "tests.support.helper_main"


def test_a_helper_reads_its_input_and_its_outputs_come_back() -> None:
    assert run_helper(MAIN, "shouts", stdin=b"hello", timeout_s=60) == HelperResult(3, "HELLO", "done")


def test_a_program_runs_in_a_folder_with_variables_and_descriptors(tmp_path: Path) -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as answer:
        script = f"pwd; printf %s $WORD >&{write}; kill -9 $$"
        result = run_program(
            ["bash", "-c", script], timeout_s=60, cwd=str(tmp_path), env={"WORD": "yes"}, pass_fds=[write]
        )
        os.close(write)
        assert result == HelperResult(-signal.SIGKILL, f"{tmp_path}\n", "")
        assert answer.read() == b"yes"


def test_a_helper_over_its_output_limit_is_ended() -> None:
    with pytest.raises(HelperFailed, match="wrote over 1000000 bytes"):
        run_helper(MAIN, "floods", timeout_s=60, max_output_bytes=1_000_000)


def test_a_helper_over_its_time_is_ended_with_its_children(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with pytest.raises(HelperFailed, match="took over 4 s"):
        run_helper(MAIN, "hangs", str(path), timeout_s=4)
    child = int(path.read_text())
    wait_until(lambda: not is_running(child), "the child is gone")


def test_a_child_that_holds_the_pipes_open_does_not_keep_a_helper_waiting() -> None:
    result = run_helper(MAIN, "leaves a child", timeout_s=60)
    child = int(result.last_line())
    assert result.status == 0
    wait_until(lambda: not is_running(child), "the child is gone")

"""Steps in a process of their own: results, progress, and one sentence for whatever becomes of it."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from convert.steps.conversion_environment import CONVERT_PYTHON
from convert.steps.isolation import run_isolated
from convert.steps.progress import SilentSteps
from pipeline.errors import ConversionError, ParityError
from tests.support.service_process import PATIENCE_S

ROOT = Path(__file__).parents[2]


class Recorded(SilentSteps):
    def __init__(self) -> None:
        self.events: list[object] = []

    def step(self, name: str, total: int = 1) -> None:
        self.events.append((name, total))

    def advance(self) -> None:
        self.events.append("+")

    def say(self, text: str) -> None:
        self.events.append(text)


@pytest.fixture(autouse=True)
def steps_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "support"))
    monkeypatch.delenv(CONVERT_PYTHON, raising=False)


def run(function: str, timeout_s: float = 60.0, **arguments: object) -> Any:
    return run_isolated(
        f"isolated_steps:{function}", arguments, converter="the converter", needs=(), timeout_s=timeout_s
    )


def failure(function: str, **arguments: Any) -> ConversionError:
    with pytest.raises(ConversionError) as caught:
        run(function, **arguments)
    assert "\n" not in caught.value.message
    return caught.value


def test_a_step_gives_its_result_and_its_progress_from_another_process() -> None:
    recorded = Recorded()
    result = run_isolated(
        "isolated_steps:add",
        {"numbers": [1, 2, 39], "note": "天气 [bold]"},
        converter="adding",
        needs=("json",),
        steps=recorded,
    )
    assert result["total"] == 42 and result["process"] != os.getpid()
    assert result["python"] == sys.executable
    assert recorded.events == [("Adding", 3), "+", "+", "+", "天气 [bold]"]


def test_what_a_step_prints_is_not_taken_for_its_result() -> None:
    assert run("chatter") == "true"


def test_a_result_larger_than_a_pipe_arrives_whole() -> None:
    assert run("large", size=3_000_000) == "x" * 3_000_000


def test_a_result_over_the_limit_is_refused() -> None:
    assert "over 16777216 bytes" in failure("large", size=17 << 20).message


def test_a_result_that_json_cannot_hold_is_an_error_of_the_step() -> None:
    assert "not JSON serializable" in failure("unsayable").message


def test_errors_of_ours_keep_their_class_and_message() -> None:
    with pytest.raises(ParityError, match=r"^the reason$"):
        run("fail", kind="parity")
    assert type(error := failure("fail", kind="conversion")) is ConversionError
    assert error.message == "the reason"


def test_another_exception_is_told_in_one_sentence_and_its_traceback_kept_for_debug() -> None:
    error = failure("fail", kind="other")
    assert error.message == "the converter failed (KeyError: 'the reason')."
    shown = "".join(traceback.format_exception(error))
    assert "in fail" in shown and "isolated_steps.py" in shown


def test_a_full_disk_stays_an_error_of_the_disk_which_names_what_was_to_be_written() -> None:
    with pytest.raises(OSError, match="No space left on device") as caught:
        run("fill_the_disk")
    assert caught.value.errno == errno.ENOSPC


def test_a_native_crash_is_told_with_its_signal_and_what_the_converter_said_of_the_operator() -> None:
    error = failure("crash", number=signal.SIGSEGV)
    assert error.message == (
        "the converter crashed in native code (SIGSEGV); "
        "the last it said: [ERROR] operator scatter_nd_add is not supported."
    )
    # Where it was in Python, too.
    assert "the last line" in str(error.__cause__) and "in crash" in str(error.__cause__)


def test_a_kill_is_told_as_want_of_memory() -> None:
    error = failure("crash", number=signal.SIGKILL)
    assert "was killed (SIGKILL), as the kernel does where memory runs out" in error.message


def test_an_end_without_a_result_is_told_with_the_exit_code() -> None:
    assert failure("leave", code=3).message == (
        "the converter ended with exit code 3 before it had a result; the last it said: giving up."
    )
    assert "exit code 0 before" in failure("leave", code=0).message


def test_a_crash_after_the_result_costs_nothing() -> None:
    assert run("crash_at_exit") == "done"


def test_a_step_that_talks_on_and_on_is_stopped_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pids"
    error = failure("hang", timeout_s=6.0, pid_file=str(pid_file))
    assert error.message.startswith("the converter took longer than 6 s and was stopped")
    assert all(has_ended(int(pid)) for pid in pid_file.read_text("utf-8").split())


def test_an_interrupted_command_leaves_no_process(tmp_path: Path) -> None:
    pid_file = tmp_path / "pids"
    script = (
        "import signal; signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        "from convert.steps.isolation import run_isolated\n"
        f"run_isolated('isolated_steps:hang', {{'pid_file': {str(pid_file)!r}}}, converter='x', needs=())"
    )
    os.mkfifo(pid_file)
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.PIPE) as command:
        pids = pid_file.read_text("utf-8").split()  # waits until the step writes
        command.terminate()
        assert command.wait(PATIENCE_S) != 0
    assert len(pids) == 2 and all(has_ended(int(pid)) for pid in pids)


def test_a_missing_environment_is_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("convert.steps.conversion_environment.FOLDER", tmp_path / ".venv-convert")
    with pytest.raises(ConversionError) as caught:
        run_isolated("x:y", {}, converter="x", needs=("json", "no_such_package"))
    assert caught.value.message == (
        "no_such_package can't be imported here, and there is no conversion environment "
        f"({tmp_path / '.venv-convert'}); make it with `make convert-env`."
    )


def test_an_environment_that_lacks_a_package_is_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CONVERT_PYTHON, sys.executable)
    with pytest.raises(ConversionError) as caught:
        run_isolated("isolated_steps:add", {}, converter="x", needs=("json", "no_such_package"))
    assert caught.value.message == (
        f"{sys.executable} lacks no_such_package, which this conversion needs; run `make convert-env`."
    )


def test_a_missing_pytorch_is_told_with_what_adds_it_and_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONVERT_PYTHON, sys.executable)
    with pytest.raises(ConversionError) as caught:
        run_isolated("isolated_steps:add", {}, converter="x", needs=("torch",))
    assert caught.value.message == (
        f"{sys.executable} lacks torch, which this conversion needs; run `make convert-env TORCH_INDEX=pip` "
        "(PyTorch from pip's own index is 2.7 GB to fetch, for CUDA comes with it; the address of an index "
        "with its CPU builds in place of `pip` spares most of that)."
    )


def test_the_environment_variable_names_the_interpreter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nOTHER=yes exec {sys.executable} "$@"\n', "utf-8")
    other.chmod(0o755)
    monkeypatch.setenv(CONVERT_PYTHON, str(other))
    assert run("variable", name="OTHER") == "yes"


def test_a_variable_that_names_no_interpreter_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONVERT_PYTHON, "/no/such/python")
    assert failure("add").message == (
        f"{CONVERT_PYTHON} names '/no/such/python', which is no program; "
        "name a Python interpreter or unset it."
    )
    monkeypatch.setenv(CONVERT_PYTHON, "false")
    assert "ended with exit code 1 before it had a result" in failure("add").message


def has_ended(pid: int) -> bool:
    """Whether the process has ended, or does so within ten seconds."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 10)[0])
    finally:
        os.close(process)

"""What native code and `print` write to descriptors 1 and 2: lines of the log, whoever crashes or is slow."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.service_process import APPS, ServiceProcess, is_running, wait_until

NATIVE = APPS / "native.py"
JSON: dict[str, Any] = {"logging": {"format": "json"}}
F_SETPIPE_SZ = 1031
LINE_CHARS = 1000
TRIES = 2  # of a request whose worker dies


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess(NATIVE, JSON) as running:
        yield running


def events(service: ServiceProcess, text: str, times: int = 1) -> list[dict[str, Any]]:
    """The log's lines about this text, once there are so many; each line is JSON whatever it tells."""
    service.wait_for_log(text, times)
    lines = service.log.splitlines()
    script, *lines = lines if lines[0].startswith("{") else lines[1:]  # the script is none of the processes
    told: list[dict[str, Any]] = [json.loads(line) for line in [script, *lines]]
    return [event for event in told if text in event["message"]]


LINES = [
    ("print", "1", "printed by a hook", "INFO"),
    ("write", "1", "by native code", "INFO"),
    ("write", "2", "by native code on the other", "WARNING"),
    ("write", "2", "I1123 12:00:00.000001 7 a.cc:1] glog informs", "INFO"),
    ("write", "1", "W1123 12:00:00.000001 7 a.cc:1] glog warns", "WARNING"),
    ("write", "2", "F1123 12:00:00.000001 7 a.cc:1] glog gives up", "CRITICAL"),
    ("write", "2", "2026-11-23 12:00:00.1 [E:onnxruntime:, x.cc:1 f] a session fails", "ERROR"),
    ("write", "2", "app.py:3: UserWarning: of Python's warnings", "WARNING"),
    ("write", "1", "[ERROR] a word in front", "ERROR"),
    ("write", "2", "terminate called after throwing an instance of 'x'", "CRITICAL"),
    ("write", "1", "ends in \x1b[31mcolour\x1b[0m", "INFO"),
]


@pytest.mark.parametrize(("do", "fd", "text", "level"), LINES, ids=[text[-20:] for *_, text, _ in LINES])
def test_a_line_has_level_process_and_source(
    service: ServiceProcess, do: str, fd: str, text: str, level: str
) -> None:
    service.predict({"do": do, "fd": fd, "text": text})
    told = text.replace("\x1b", "\\x1b")
    (event,) = [one for one in events(service, told.split("\\")[0]) if one["message"] == told]
    source = {"1": "stdout", "2": "stderr"}[fd]
    assert (event["level"], event["process"], event["logger"]) == (level, "native.0", source)
    assert event["service"] == "test"


def test_what_is_written_while_a_worker_starts_is_told_as_well(service: ServiceProcess) -> None:
    (event,) = [one for one in events(service, "the script runs") if one["process"] == "native.0"]
    assert (event["level"], event["logger"]) == ("ERROR", "stderr")


def test_a_long_line_becomes_several_of_a_bounded_length_and_nothing_is_lost(service: ServiceProcess) -> None:
    text = "a long line begins" + "长" * 25_000 + "and ends here"
    service.predict({"do": "write", "text": text})
    service.wait_for_log("and ends here")
    parts = [json.loads(line)["message"] for line in service.log.splitlines() if "长长" in line]
    assert "".join(parts) == text and max(map(len, parts)) == LINE_CHARS


def test_a_progress_bar_is_its_last_state(service: ServiceProcess) -> None:
    service.predict({"do": "write", "fd": "2", "text": "10 % of bar\r50 % of bar\r100 % of bar"})
    assert [event["message"] for event in events(service, "% of bar")] == ["100 % of bar"]


@pytest.mark.parametrize("do", ["abort", "segfault"])
def test_the_last_words_of_a_worker_that_crashes_are_there(service: ServiceProcess, do: str) -> None:
    service.ask({"do": do, "text": f"last words before the {do}"})
    said = events(service, f"last words before the {do}", TRIES)
    assert [event["process"] for event in said] == ["native.0"] * TRIES
    if do == "segfault":
        fatal = events(service, "Fatal Python error: Segmentation fault")
        assert {(event["level"], event["logger"]) for event in fatal} == {("CRITICAL", "stderr")}
    service.wait_until_ready()
    service.predict({"do": "print", "text": "goes on"})  # who dies before any answer is replaced ever later


def test_half_a_line_before_a_crash_is_there(service: ServiceProcess) -> None:
    service.predict({"do": "begin", "fd": "2", "text": "the end of the line is missing"})
    service.kill_worker()
    assert len(events(service, "the end of the line is missing")) == 1
    service.wait_until_ready()


def test_another_reader_takes_the_place_of_one_that_was_killed(service: ServiceProcess) -> None:
    killed = service.output_reader()
    os.kill(killed, signal.SIGKILL)
    for number in range(20):
        service.predict({"do": "print", "text": f"meanwhile {number}."})
    service.predict({"do": "flood", "text": "400000"})  # more than a pipe holds: a hook waits, and goes on
    events(service, "The output reader ended with -9; another takes its place")
    assert len([events(service, f"meanwhile {number}.") for number in range(20)]) == 20
    assert service.output_reader() != killed


def test_text_lines_name_process_and_source() -> None:
    with ServiceProcess(NATIVE, {"logging": {"level": "WARNING"}}) as service:
        service.predict({"do": "print", "text": "not at this level"})
        service.predict({"do": "write", "fd": "2", "text": "at this level"})
        service.wait_for_log("at this level")
        lines = [line for line in service.log.splitlines() if "level" in line]
    assert [line.partition(" WARNING ")[2] for line in lines] == ["[native.0 stderr] at this level"]


def test_what_the_front_s_own_libraries_write_is_a_line_of_the_front_s() -> None:
    with ServiceProcess(NATIVE, JSON, env={"GRPC_VERBOSITY": "DEBUG", "GRPC_TRACE": "http"}) as service:
        service.rpc({"do": "print", "text": "a call"})
        wait_until(lambda: "stderr" in service.log, "gRPC has told something")
        service.terminate()
        assert service.exit_code() == 0
        told = [json.loads(line) for line in service.log.splitlines() if line.startswith("{")]
    written = [event for event in told if event["process"] == "front" and event["logger"] == "stderr"]
    assert written and "Service test has stopped" in [event["message"] for event in told]


def test_with_a_folder_of_logs_they_have_a_file_of_their_own(tmp_path: Path) -> None:
    with ServiceProcess(NATIVE, {"logging": {"directory": str(tmp_path)}}) as service:
        service.predict({"do": "print", "text": "a printed line"})
        service.wait_for_log("a printed line")
    assert "INFO [native.0 stdout] a printed line" in (tmp_path / "test.output.log").read_text("utf-8")


def test_where_nobody_reads_the_log_who_writes_much_does_not_wait() -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, F_SETPIPE_SZ, 4096)
    try:
        with ServiceProcess(NATIVE, stdout=writer) as service, ThreadPoolExecutor(4) as pool:
            workers = service.worker_pids()
            for answer in pool.map(service.ask, [{"do": "flood", "text": "200000"}] * 8):
                assert answer["err_no"] == 0
            assert service.worker_pids() == workers
            service.terminate()
            assert service.exit_code() == 0
    finally:
        os.close(reader)
        os.close(writer)


def test_nothing_is_left_of_a_service_whose_front_was_killed() -> None:
    with ServiceProcess(NATIVE) as service:
        output_reader = service.output_reader()
        service.process.kill()
        service.process.wait()
        wait_until(lambda: not is_running(output_reader), "the reader has ended")


def test_a_reader_that_is_stopped_holds_up_no_worker() -> None:
    with ServiceProcess(APPS / "echo.py") as service:
        reader = service.output_reader()
        os.kill(reader, signal.SIGSTOP)
        lines = "\n".join("printed while stopped" for _ in range(10_000))
        assert service.ask({"action": "print", "argument": lines})["err_no"] == 0
        service.wait_for_log("The output reader takes no more lines")
        service.wait_for_log("printed while stopped")
        wait_until(lambda: not is_running(reader), "the stopped reader has ended")
        assert service.ask({"number": "1"})["err_no"] == 0


def test_signals_of_users_end_no_process_of_a_service() -> None:
    with ServiceProcess(APPS / "echo.py") as service:
        (worker,), reader = service.worker_pids(), service.output_reader()
        for pid, numbers in (
            (worker, (signal.SIGUSR1, signal.SIGUSR2)),
            (reader, (signal.SIGUSR1, signal.SIGUSR2)),
            (service.process.pid, (signal.SIGUSR1,)),
        ):
            for number in numbers:
                os.kill(pid, number)
        service.wait_for_log("SIGUSR1 has no meaning for this service: ignored")
        assert service.ask({"number": "1"})["err_no"] == 0
        assert (service.worker_pids(), service.output_reader()) == ([worker], reader)
        assert "ended with" not in service.log

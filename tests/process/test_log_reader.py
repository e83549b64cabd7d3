"""A service whose log nobody reads, or that the disk has no room for: it serves and stops as ever."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.process.log import LogQueue
from tests.support.service_process import APPS, PATIENCE_S, ROOT, ServiceProcess, key_value, wait_until

ECHO = APPS / "echo.py"
F_SETPIPE_SZ = 1031
FRONT = {"logging": {"level": "DEBUG"}}  # a line of the front's for each request
UNKNOWN = "/other/prediction"
TRIES = 2  # of a request whose worker dies


class Pipe:
    """What a service writes to, of the smallest size that there is; its reader reads when it is told to."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        fcntl.fcntl(self.writer, F_SETPIPE_SZ, 4096)
        self.text = ""

    def start_reading(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with os.fdopen(self.reader, encoding="utf-8") as lines:
            for line in lines:
                self.text += line

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.text, f"{text!r} is read", on_timeout=lambda: self.text[-3000:])


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    os.close(pipe.writer)


def fill_with_lines_of_the_worker(service: ServiceProcess) -> None:
    for number in range(30):
        assert service.ask({"action": "tell", "argument": f"line {number}."})["err_no"] == 0


def ask_and_forget(service: ServiceProcess, times: int) -> None:
    """So many requests on one connection, all of them answered."""
    body = key_value({})
    head = f"POST {UNKNOWN} HTTP/1.1\r\nhost: test\r\ncontent-length: {len(body)}\r\n"
    requests = [
        f"{head}connection: {'keep-alive' if n else 'close'}\r\n\r\n".encode() + body for n in range(times)
    ]
    with socket.create_connection(("127.0.0.1", service.http_port), PATIENCE_S) as connection:
        threading.Thread(target=connection.sendall, args=(b"".join(reversed(requests)),)).start()
        with connection.makefile("rb") as answers:
            assert answers.read().count(b"HTTP/1.1 ") == times


def assert_serves(service: ServiceProcess) -> None:
    assert service.http("/health/live").status == 200
    assert service.http("/health/ready").status == 200
    assert service.predict({"number": "4"})["doubled"] == "8"
    assert service.rpc({"number": "4"}).err_no == 0


class TestNobodyReads:
    @pytest.mark.parametrize("config", [{}, FRONT], ids=["worker's lines", "front's lines too"])
    def test_it_serves_and_stops_as_ever(self, pipe: Pipe, config: dict[str, object]) -> None:
        with ServiceProcess(ECHO, config, stdout=pipe.writer) as service:
            workers = service.worker_pids()
            fill_with_lines_of_the_worker(service)
            assert service.http(UNKNOWN, key_value({})).status == 200
            assert_serves(service)
            assert service.worker_pids() == workers
            service.terminate()
            assert service.exit_code() == 0
            assert service.log == ""

    def test_a_worker_that_dies_is_replaced(self, pipe: Pipe) -> None:
        with ServiceProcess(ECHO, stdout=pipe.writer) as service:
            fill_with_lines_of_the_worker(service)
            service.ask({"action": "die"})
            service.wait_until_ready()
            assert_serves(service)

    def test_the_file_has_all_lines(self, pipe: Pipe, tmp_path: Path) -> None:
        config = {"logging": {"directory": str(tmp_path)}}
        with ServiceProcess(ECHO, config, stdout=pipe.writer) as service:
            fill_with_lines_of_the_worker(service)
            assert_serves(service)
            service.terminate()
            assert service.exit_code() == 0
        of_worker = (tmp_path / "test.echo.0.log").read_text("utf-8")
        assert re.findall(r"line (\d+)\.$", of_worker, re.MULTILINE) == [*map(str, range(30))]
        assert "has stopped" in (tmp_path / "test.front.log").read_text("utf-8")

    def test_who_reads_at_last_finds_the_lines_in_their_order(self, pipe: Pipe) -> None:
        with ServiceProcess(ECHO, stdout=pipe.writer) as service:
            fill_with_lines_of_the_worker(service)
            pipe.start_reading()
            pipe.wait_for("line 29.")
        found = re.findall(r"line (\d+)\.$", pipe.text, re.MULTILINE)
        assert found == [*map(str, range(30))]


class TestLinesAreDropped:
    def test_a_line_tells_how_many_the_worker_dropped(self, pipe: Pipe) -> None:
        with ServiceProcess(ECHO, {"logging": {"format": "json"}}, stdout=pipe.writer) as service:
            for number in range(80):
                service.ask({"action": "tell", "argument": f"told {number}.".ljust(100_000, "x")})
            pipe.start_reading()
            pipe.wait_for("log lines are missing here")
            service.ask({"action": "tell", "argument": "told at last"})
            pipe.wait_for("told at last")
            events = [json.loads(line) for line in pipe.text.splitlines()]
        told = [event["message"] for event in events if event["process"] == "echo.0"]
        told = [message for message in told if "told" in message or "missing" in message]
        missing = int(told[-2].split()[0])
        assert missing + len(told) - 2 == 80
        assert "told at last" in told[-1]
        numbers = [re.search(r"told (\d+)\.", message) for message in told[:-2]]
        assert [number and int(number[1]) for number in numbers] == [*range(len(told) - 2)]

    def test_metrics_tell_how_many_the_front_dropped(self, pipe: Pipe) -> None:
        with ServiceProcess(ECHO, FRONT, stdout=pipe.writer) as service:
            assert service.metric("paddlewheel_log_lines_dropped_total") == 0
            ask_and_forget(service, 5000)
            dropped = service.metric("paddlewheel_log_lines_dropped_total")
            assert 0 < dropped < 5000
            pipe.start_reading()
            pipe.wait_for(f"WARNING [front] {dropped:.0f} log lines are missing here")


def test_it_serves_and_stops_as_ever_when_its_reader_has_gone(pipe: Pipe) -> None:
    with ServiceProcess(ECHO, FRONT, stdout=pipe.writer) as service:
        os.close(pipe.reader)
        fill_with_lines_of_the_worker(service)
        assert_serves(service)
        service.terminate()
        assert service.exit_code() == 0
        assert service.log == ""


def test_what_a_worker_told_before_it_was_killed_is_there() -> None:
    with ServiceProcess(ECHO) as service:
        for number in range(3):
            service.ask({"action": "tell_and_die", "argument": f"last words {number}"})
        assert service.log.count("WARNING [echo.0] last words") == 3 * TRIES


def test_a_process_that_a_hook_has_forked_tells_in_its_worker_s_name(tmp_path: Path) -> None:
    with ServiceProcess(ECHO, {"logging": {"directory": str(tmp_path)}}) as service:
        service.predict({"action": "tell_in_fork", "argument": "from a fork"})
        assert service.log.count("WARNING [echo.0] from a fork") == 1
        assert (tmp_path / "test.echo.0.log").read_text("utf-8").count("from a fork") == 1


class TestFullDisk:
    def test_each_file_is_reported_once_and_its_lines_are_counted(self, tmp_path: Path) -> None:
        for process in ("front", "echo.0"):
            (tmp_path / f"test.{process}.log").symlink_to("/dev/full")
        with ServiceProcess(ECHO, {"logging": {"level": "DEBUG", "directory": str(tmp_path)}}) as service:
            fill_with_lines_of_the_worker(service)
            ask_and_forget(service, 20)
            assert service.metric("paddlewheel_log_lines_dropped_total") > 20
            service.terminate()
            assert service.exit_code() == 0
            log = service.log
        for process in ("front", "echo.0"):
            file = tmp_path / f"test.{process}.log"
            assert log.count(f"The log can't be written to {file}, and its lines are dropped") == 1
        assert "No space left on device" in log
        assert "Traceback" not in log
        assert "line 29." in log

    def test_a_line_has_the_count_when_there_is_room_again(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "service.log"
        blocks = [True]

        class Disk(logging.FileHandler):
            def emit(self, record: logging.LogRecord) -> None:
                try:
                    if blocks:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    super().emit(record)
                except OSError:
                    self.handleError(record)

        lines = LogQueue(lambda: Disk(file), PATIENCE_S)
        for text in ("a", "b", "c"):
            lines.handle(logging.makeLogRecord({"msg": text}))
        blocks.clear()
        lines.handle(logging.makeLogRecord({"msg": "d"}))
        assert lines.mark().wait(PATIENCE_S)
        written = ["3 log lines are missing here: they could not be written", "d"]
        assert file.read_text("utf-8").splitlines() == written
        assert lines.dropped == 3
        assert capfd.readouterr().err.count("The log can't be written") == 1

    def test_a_line_that_fits_in_part_is_taken_back(self, tmp_path: Path) -> None:
        code = """
import resource, signal, sys
from pipeline.process.log import LineFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
file = LineFile(sys.argv[1], "ab")
file.write(b"whole\\n")
try:
    file.write(b"too long\\n")
except OSError:
    file.write(b"fit\\n")
"""
        command = [sys.executable, "-c", code, str(tmp_path / "log")]
        subprocess.run(command, cwd=ROOT, check=True)
        assert (tmp_path / "log").read_bytes() == b"whole\nfit\n"

"""`logging` in config.yml: what a log tells, where it goes, and how it stands beside an app's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from tests.support.free_ports import free_port
from tests.support.service_process import APPS, PATIENCE_S, ROOT, ServiceProcess, key_value, wait_until

ECHO, TALKATIVE = APPS / "echo.py", APPS / "own_logging.py"
BODY = key_value({"number": "1"})


def finished(service: ServiceProcess) -> list[str]:
    """The lines of a service after its orderly end."""
    service.terminate()
    assert service.exit_code() == 0
    return service.log.splitlines()


def in_order(lines: list[str], *texts: str) -> bool:
    numbers = [next((n for n, line in enumerate(lines) if text in line), -1) for text in texts]
    return -1 not in numbers and numbers == sorted(numbers)


def test_the_log_is_on_standard_output_and_tells_the_life_of_the_service(tmp_path: Path) -> None:
    config = tmp_path / "config.yml"
    config.write_text(yaml.safe_dump({"http_port": free_port(), "rpc_port": free_port()}), "utf-8")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SERVICE_CONFIG": str(config)}
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen([sys.executable, str(ECHO)], env=env, stdout=stdout, stderr=stderr)
    try:
        wait_until(
            lambda: "is ready: http_port" in out.read_text("utf-8"), "it is ready", on_timeout=err.read_text
        )
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
    told = out.read_text("utf-8").splitlines()
    life = (
        "Service test starts: Op echo in 1 process (no model)",
        "Worker echo.0 is ready",
        "Service test is ready",
        "Stopping:",
        "has stopped",
    )
    assert in_order(told, *life), told
    assert "Service test starts: " in told[0], "the first line is about the service"
    ports = yaml.safe_load(config.read_text("utf-8"))
    (ready,) = [line for line in told if "Service test is ready" in line]
    assert ready.endswith(f"; try it at http://localhost:{ports['http_port']}/docs")
    assert err.read_text("utf-8") == ""


def test_a_line_of_json_for_each_event_with_time_level_and_origin() -> None:
    with ServiceProcess(ECHO, {"logging": {"format": "json"}}) as service:
        service.ask({"action": "raise", "argument": "two\nlines"})
        service.kill_worker()
        service.wait_for_log('"message": "Worker echo.0 is ready', times=2)
        events = [json.loads(line) for line in finished(service)]
    assert all(
        event.keys() >= {"time", "level", "service", "process", "logger", "message"} for event in events
    )
    assert all(datetime.fromisoformat(event["time"]).tzinfo is not None for event in events)
    assert {event["service"] for event in events} == {"test"}
    (raised,) = [event for event in events if "preprocess of Op echo raised" in event["message"]]
    assert (raised["process"], raised["level"]) == ("echo.0", "ERROR")
    assert "Traceback" in raised["message"]
    (died,) = [event for event in events if "died: killed by SIGKILL" in event["message"]]
    assert (died["process"], died["level"]) == ("front", "ERROR")


class TestLevels:
    def test_at_warning_a_service_without_trouble_says_nothing(self) -> None:
        closed = {"model_control": "none"}  # open, without API keys, it is warned of
        with ServiceProcess(ECHO, {"logging": {"level": "warning"}, "v2": closed}) as service:
            service.predict({"number": "1"})
            assert finished(service) == []

    def test_at_debug_each_request_has_a_line(self) -> None:
        with ServiceProcess(ECHO, {"logging": {"level": "DEBUG"}}) as service:
            service.predict({"number": "1"})
            service.ask({"action": "refuse_51"})
            service.rpc({"number": "1"})
            lines = [line for line in finished(service) if "DEBUG" in line]
        assert [" ".join(line.split("] ")[1].split(" in ")[0].split()[2:]) for line in lines] == [
            "POST /test/prediction: ok",
            "POST /test/prediction: err_no 51",
            "/baidu.paddle_serving.pipeline_serving.PipelineService/inference: ok",
        ]

    def test_by_default_requests_have_none(self) -> None:
        with ServiceProcess(ECHO) as service:
            service.wait_for_log("Service test is ready")
            before = service.log
            service.predict({"number": "1"})
            assert service.log == before


class TestRefusals:
    def test_many_of_a_kind_are_one_line_and_their_number(self) -> None:
        with ServiceProcess(ECHO) as service:
            for _ in range(20):
                assert service.http("/other/prediction", BODY).json["err_no"] == 3002
            service.wait_for_log("UnknownService")
            told = [line for line in service.log.splitlines() if "UnknownService" in line]
            assert len(told) == 1 and "INFO" in told[0] and "there is no service 'other'" in told[0]
            summed = finished(service)[-2]
            assert "UnknownService over http from 127.0.0.1: 19 more in the last 10 s, the latest: " in summed
            assert "there is no service 'other'" in summed

    def test_what_the_service_can_not_do_is_a_warning_with_its_reason(self, tmp_path: Path) -> None:
        with ServiceProcess(ECHO, {"dag": {"request_timeout": 0.2}}) as service:
            assert service.ask({"action": "wait_once", "argument": str(tmp_path / "x")})["err_no"] == 6000
            service.wait_for_log(
                "WARNING [front] DeadlineExceeded over http from 127.0.0.1: the request's deadline passed"
            )
            (tmp_path / "x.gate").touch()

    def test_what_is_no_request_is_counted_and_told(self) -> None:
        with ServiceProcess(ECHO, {"limits": {"body_bytes": 100}}) as service:
            assert service.http("/test/prediction", b"x" * 101).status == 413
            service.wait_for_log(
                "INFO [front] TooLarge over http from 127.0.0.1: content-length 101 is over 100 bytes"
            )
            assert service.metric("paddlewheel_requests_total", door="http", err_no="5000") == 1

    @pytest.mark.parametrize(("method", "path"), [("GET", "/v2/nothing"), ("POST", "/v2/health/live")])
    def test_a_path_of_v2_that_is_not_answered_is_told(self, method: str, path: str) -> None:
        with ServiceProcess(ECHO) as service:
            answer = service.http(path, method=method)
            told = {404: "Not Found", 405: "Method Not Allowed"}[answer.status]
            assert answer.json == {"error": told}
            service.wait_for_log(f"Refused over v2-http from 127.0.0.1: {told}: {method} {path}")

    def test_what_a_client_sent_can_not_begin_a_line(self) -> None:
        with ServiceProcess(ECHO) as service:
            service.http("/a%0A2026-01-01 ERROR [front] forged/b/c".replace(" ", "%20"), BODY)
            service.wait_for_log("forged")
            (line,) = [line for line in service.log.splitlines() if "forged" in line]
        assert (
            "INFO [front] UnknownService over http from 127.0.0.1: there is nothing at /a\\n2026-01-01 ERROR"
            in line
        )


class TestErrors:
    """Errors of hooks, whose text is a client's: no flood of them fills the log, and none forges a line."""

    @pytest.mark.parametrize("style", ["text", "json"])
    def test_each_place_has_one_traceback_and_a_sum(self, style: str) -> None:
        with ServiceProcess(ECHO, {"logging": {"format": style}}) as service:
            for number in range(200):
                argument = f"fault {number}. {'x' * 2000}"
                assert service.ask({"action": "raise", "argument": argument})["err_no"] == 10000
            log = "\n".join(finished(service))
        assert log.count("Traceback (most recent call last)") == 1
        assert "request 1: preprocess of Op echo raised" in log
        assert "HookFailed over http from 127.0.0.1: Log_id" in log
        assert "HookFailed over http from 127.0.0.1: 198 more in the last 10 s, the latest: Log_id" in log
        assert len(log) < 20_000

    def test_no_text_of_a_client_can_begin_a_line_or_command_a_terminal(self) -> None:
        forged = "x\n2026-01-01 00:00:00,000 ERROR [front] forged\r\x1b[2J\x9b2J\u2028\u202eend"
        with ServiceProcess(ECHO) as service:
            service.ask({"action": "refuse", "argument": forged})
            service.ask({"action": "tell", "argument": forged})
            service.ask({"action": "raise_text", "argument": forged})
            service.wait_for_log("RuntimeError: x")
            service.wait_for_log("forged", times=3)
            log = service.log
        lines = log.split("\n")
        assert all(line.isprintable() for line in lines)
        assert [line for line in lines if line.startswith("2026-01-01")] == []
        shown = r"2026-01-01 00:00:00,000 ERROR [front] forged\r\x1b[2J\x9b2J\u2028\u202eend"
        assert [line for line in lines if line == f"    {shown}"] == [f"    {shown}"] * 2
        assert all(
            line.startswith("    ")
            for line in lines[lines.index("    Traceback (most recent call last):") :][:5]
        )

    def test_json_lines_escape_what_a_terminal_may_obey(self) -> None:
        with ServiceProcess(ECHO, {"logging": {"format": "json"}}) as service:
            service.ask({"action": "tell", "argument": "a\x9b2J\u2028\u202e\U000e0001国end"})
            service.wait_for_log("end")
            (line,) = [line for line in service.log.split("\n") if "end" in line and "2J" in line]
        assert line.isprintable()
        assert "国" in line
        assert json.loads(line)["message"] == "a\x9b2J\u2028\u202e\U000e0001国end"


class TestFiles:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path / "a" / "logs"

    def config(self, instances: int = 1, **rotation: int) -> dict[str, object]:
        section = {"directory": "a/logs", "rotation": rotation}
        processes = {"dag": {"is_thread_op": False}, "op": {"echo": {"concurrency": instances}}}
        return {**processes, "logging": section}

    def test_each_process_has_its_own_and_they_hold_what_standard_output_has(
        self, folder: Path, tmp_path: Path
    ) -> None:
        with ServiceProcess(ECHO, self.config(instances=2), folder=tmp_path) as service:
            wait_until(lambda: service.metric("paddlewheel_op_ready_instances") == 2, "both are ready")
            service.ask({"action": "raise", "argument": "the reason"})
            lines = finished(service)
        files = {path.name: path.read_text("utf-8") for path in folder.iterdir()}
        assert files.keys() == {"test.front.log", "test.echo.0.log", "test.echo.1.log"}
        assert sorted("".join(files.values()).splitlines()) == sorted(lines)
        assert "Service test has stopped" in files["test.front.log"]
        assert "the reason" in files["test.echo.0.log"] + files["test.echo.1.log"]

    def test_a_file_that_is_full_is_moved_aside_and_so_many_are_kept(
        self, folder: Path, tmp_path: Path
    ) -> None:
        with ServiceProcess(ECHO, self.config(max_bytes=3000, backup_count=2), folder=tmp_path) as service:
            for number in range(30):
                service.ask({"action": "tell", "argument": f"{number} in worker {'x' * 300}"})
            assert service.log.count(" in worker ") == 30
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        assert max(sizes.values()) <= 3000
        kept = sorted(name for name in sizes if name.startswith("test.echo.0"))
        assert kept == ["test.echo.0.log", "test.echo.0.log.1", "test.echo.0.log.2"]
        assert "29 in worker" in (folder / "test.echo.0.log").read_text("utf-8")

    def test_without_rotation_a_file_that_was_moved_is_opened_anew(
        self, folder: Path, tmp_path: Path
    ) -> None:
        with ServiceProcess(ECHO, self.config(max_bytes=0), folder=tmp_path) as service:
            log = folder / "test.front.log"
            wait_until(lambda: "is ready" in log.read_text("utf-8"), "the line of readiness is written")
            log.rename(folder / "moved")
            finished(service)
        assert "is ready" in (folder / "moved").read_text("utf-8")
        assert "has stopped" in (folder / "test.front.log").read_text("utf-8")

    @pytest.mark.parametrize("max_bytes", [0, 3000])
    def test_a_folder_that_is_deleted_costs_lines_and_no_request(
        self, folder: Path, tmp_path: Path, max_bytes: int
    ) -> None:
        with ServiceProcess(ECHO, self.config(max_bytes=max_bytes), folder=tmp_path) as service:
            shutil.rmtree(folder.parent)
            for _ in range(30):
                answer = service.ask({"action": "raise", "argument": "the reason"})
                assert "the reason" in answer["err_msg"]
            service.kill_worker()
            assert service.ask({"number": "1"})["err_no"] == 0
            finished(service)

    def test_a_folder_that_has_become_a_file_keeps_no_worker_from_starting(
        self, folder: Path, tmp_path: Path
    ) -> None:
        with ServiceProcess(ECHO, self.config(), folder=tmp_path) as service:
            shutil.rmtree(folder)
            folder.touch()
            service.kill_worker()
            assert service.ask({"number": "1"})["err_no"] == 0
            service.wait_for_log("[echo.0] logging.directory: this process has no file")

    def test_a_folder_that_can_not_be_made_is_a_mistake_in_the_configuration(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("a file", "utf-8")
        with ServiceProcess(ECHO, self.config(), folder=tmp_path, wait=False) as service:
            assert service.exit_code() == 2
            assert service.log == f"logging.directory: {tmp_path / 'a'} is a file; name a folder\n"

    def test_a_rotation_that_keeps_nothing_is_refused(self, tmp_path: Path) -> None:
        with ServiceProcess(ECHO, self.config(backup_count=0), folder=tmp_path, wait=False) as service:
            assert service.exit_code() == 2
            assert "logging.rotation.backup_count: 0 given; it must be" in service.log


@pytest.fixture(scope="class", params=["nothing", "dictConfig", "reload", "reload and dictConfig"])
def talkative(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    """An app that has set logging up as named, and was asked twice, the second time in vain."""
    folder = tmp_path_factory.mktemp("talkative")
    with ServiceProcess(TALKATIVE, arguments=[request.param], folder=folder) as service:
        service.own = folder / "own.log" if "dictConfig" in request.param else None
        service.ask({"text": "a text"})
        service.ask({"text": "another", "fail": "the reason"})
        yield service


class TestAnAppsOwnLogging:
    def test_our_lines_stay_where_they_were(self, talkative: ServiceProcess) -> None:
        talkative.wait_for_log("] request ")
        assert "ERROR [talk.0] request " in talkative.log
        assert "KeyError: 'the reason'" in talkative.log
        assert "INFO [talk.0] a logger of ours that is made late: a text" in talkative.log

    def test_the_app_s_lines_go_where_the_app_wants_them(self, talkative: ServiceProcess) -> None:
        assert "asked for" not in talkative.log
        if talkative.own is not None:
            own = talkative.own.read_text("utf-8")
            assert "own app asked for a text\nown app asked for another\n" in own
            assert "pipeline" not in own

    def test_what_hooks_print_is_there_at_once(self, talkative: ServiceProcess) -> None:
        talkative.wait_for_log("printed: a text\n")

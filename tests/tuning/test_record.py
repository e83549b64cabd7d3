"""`paddlewheel tune --record`: what a running service answers becomes a sample to tune it with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.process import recording
from pipeline.tuning.sample import Example, build_requests, read_sample_lines
from tests.support.command_line import paddlewheel, refused
from tests.support.service_process import APPS, ROOT, ServiceProcess, wait_until

SCRIPT = APPS / "echo.py"
V1 = "/v1/models/test:predict"


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess(SCRIPT, {"dag": {"http_errors": "status"}}) as running:
        yield running


def begun(service: ServiceProcess, to: Path) -> subprocess.Popen[str]:
    """The command, once the service records."""
    before = service.log.count("Requests are recorded to")
    options = ["tune", str(SCRIPT), "--config", str(service.config_path), "--record", str(to)]
    command = subprocess.Popen(
        [sys.executable, "-m", "pipeline", *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    service.wait_for_log("Requests are recorded to", before + 1)
    return command


def ended(command: subprocess.Popen[str]) -> str:
    """What it has said, when it leaves with 0."""
    _, said = command.communicate(timeout=60)
    assert command.returncode == 0, said
    return said


def body(number: int) -> bytes:
    return json.dumps({"key": ["number"], "value": [str(number)]}, indent=1).encode()


def test_what_is_answered_meanwhile_is_written_a_body_a_line(service: ServiceProcess, tmp_path: Path) -> None:
    assert service.http("/test/prediction", body(1)).status == 200
    command = begun(service, tmp_path / "asked.jsonl")
    held = recording.get_recording_path(service.process.pid)
    assert held.stat().st_mode & 0o777 == 0o600
    assert service.http("/test/prediction", body(2)).status == 200
    assert service.http(V1, b'{"instances": [{"number": "3"}]}').status == 200
    assert service.http("/test/other", body(4)).status == 200  # at a path that a sample does not name
    refusal = json.dumps({"key": ["action"], "value": ["refuse"]}).encode()
    assert service.http("/test/prediction", refusal).status == 400
    assert service.http("/health/live").status == 200
    command.send_signal(signal.SIGINT)
    said = ended(command)
    assert service.http("/test/prediction", body(5)).status == 200
    assert "2 requests recorded" in said and "--sample" in said
    written = [json.loads(line) for line in (tmp_path / "asked.jsonl").read_text("utf-8").splitlines()]
    assert written == [{"key": ["number"], "value": ["2"]}, {"instances": [{"number": "3"}]}]
    asked = build_requests(
        read_sample_lines(tmp_path / "asked.jsonl"), as_texts=False, example=Example("test", {})
    )
    assert [one.path for one in asked] == ["/test/prediction", V1]
    assert not held.exists()
    service.wait_for_log("2 requests were recorded")
    assert service.log.count("2 requests were recorded") == 1


def test_a_recording_ends_by_itself_with_its_most_requests(service: ServiceProcess, tmp_path: Path) -> None:
    command = begun(service, tmp_path / "asked.jsonl")
    with ThreadPoolExecutor(16) as pool:
        numbers = range(recording.MAX_REQUESTS + 10)
        statuses = pool.map(lambda number: service.http("/test/prediction", body(number)).status, numbers)
        assert set(statuses) == {200}
    assert f"{recording.MAX_REQUESTS} requests recorded" in ended(command)
    assert len((tmp_path / "asked.jsonl").read_bytes().splitlines()) == recording.MAX_REQUESTS


def test_without_a_request_nothing_is_written_and_that_is_said(
    service: ServiceProcess, tmp_path: Path
) -> None:
    options = ["--config", service.config_path, "--record", tmp_path / "asked.jsonl", "--budget", "5s"]
    told = refused(paddlewheel("tune", SCRIPT, *options))
    assert "has answered no request that can be asked again" in told
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_another_could_have_put_there_is_not_written_to(
    service: ServiceProcess, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("")
    held = recording.get_recording_path(service.process.pid)
    refusals = service.log.count("No request is recorded")
    for number, put in enumerate((lambda: held.symlink_to(mine), lambda: held.write_text("")), refusals + 1):
        put()
        try:
            service.process.send_signal(recording.SIGNAL)
            service.wait_for_log("No request is recorded", number)
        finally:
            held.unlink()
    assert service.http("/test/prediction", body(1)).status == 200
    assert mine.read_text() == ""


def test_a_mistake_is_told_in_one_sentence(service: ServiceProcess, tmp_path: Path) -> None:
    def told(*options: str | Path) -> str:
        return refused(paddlewheel("tune", SCRIPT, "--config", service.config_path, *options))

    there = tmp_path / "there.jsonl"
    there.touch()
    assert "is there already: name a new file *.jsonl" in told("--record", there)
    assert f"{tmp_path / 'no'} is no folder" in told("--record", tmp_path / "no" / "a.jsonl")
    assert "has another ending" in told("--record", tmp_path / "texts.txt")
    assert "record first, then tune with it" in told("--record", tmp_path / "a.jsonl", "--sample", there)
    held = recording.get_recording_path(service.process.pid)
    held.touch()
    try:
        assert "another recording is under way" in told("--record", tmp_path / "a.jsonl")
    finally:
        held.unlink()


def test_where_no_service_runs_that_is_told(service: ServiceProcess, tmp_path: Path) -> None:
    config = tmp_path / "config.yml"
    config.write_text("rpc_port: 18088\n", "utf-8")
    options = ["--config", config, "--record", tmp_path / "asked.jsonl"]
    assert "has no http_port" in refused(paddlewheel("tune", SCRIPT, *options))
    config.write_text("http_port: 1999\n", "utf-8")
    done = paddlewheel("tune", SCRIPT, *options)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "Nothing that this user may see listens on port 1999" in done.stderr


def test_a_client_that_asks_after_the_command_has_died_is_answered(
    service: ServiceProcess, tmp_path: Path
) -> None:
    command = begun(service, tmp_path / "asked.jsonl")
    command.kill()
    command.communicate()
    assert service.http("/test/prediction", body(1)).status == 200
    recording.get_recording_path(service.process.pid).unlink()  # as the next command tells to do
    ends = service.log.count("were recorded")
    service.process.send_signal(recording.SIGNAL)
    wait_until(lambda: service.log.count("were recorded") == ends + 1, "the recording ends")

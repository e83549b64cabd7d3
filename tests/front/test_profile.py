"""`dag.use_profile` and `dag.tracer`: where the time of requests went, told to clients and in the log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from client.protos.pipeline_service_pb2 import Request
from tests.support.service_process import APPS, PATIENCE_S, RPC_METHOD, ServiceProcess, key_value, wait_until

STAGES = ("queue", "preprocess", "process", "postprocess")
ENTRY = re.compile(r"([!#$%&'*+\-.^`|~\w]+);dur=(\d+\.\d{3})", re.ASCII)


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "echo.py", {"dag": {"use_profile": True}}) as process:
        yield process


def durations(header: str) -> dict[str, float]:
    """Milliseconds by name; the header must hold nothing else."""
    found = {match[1]: float(match[2]) for match in map(ENTRY.fullmatch, header.split(", ")) if match}
    assert len(found) == header.count(";dur="), header
    return found


def server_timing(service: ServiceProcess, inputs: dict[str, str]) -> dict[str, float]:
    return durations(service.http("/test/prediction", key_value(inputs)).headers["server-timing"])


def rpc_metadata(service: ServiceProcess, inputs: dict[str, str]) -> dict[str, str]:
    message = Request(key=list(inputs), value=list(inputs.values())).SerializeToString()
    with service.channel() as channel:
        _, call = channel.unary_unary(RPC_METHOD).with_call(message, timeout=PATIENCE_S)
        return {entry.key: entry.value for entry in call.trailing_metadata()}


class TestServerTiming:
    def test_an_http_answer_tells_each_stage_and_the_total(self, service: ServiceProcess) -> None:
        told = server_timing(service, {"number": "1"})
        assert list(told) == ["total", *(f"echo.{stage}" for stage in STAGES)]
        assert 0 < sum(told.values()) - told["total"] <= told["total"]
        assert min(told[f"echo.{stage}"] for stage in STAGES[1:]) > 0

    def test_grpc_tells_the_same_in_its_trailing_metadata(self, service: ServiceProcess) -> None:
        told = durations(rpc_metadata(service, {"number": "1"})["server-timing"])
        assert list(told) == ["total", *(f"echo.{stage}" for stage in STAGES)]

    def test_time_in_preprocess_and_in_the_queue_is_told_as_such(
        self, service: ServiceProcess, tmp_path: Path
    ) -> None:
        gate = tmp_path / "gate"
        held = {"action": "wait", "argument": str(gate)}
        with ThreadPoolExecutor(3) as pool:
            first = pool.submit(server_timing, service, held)
            wait_until(Path(f"{gate}.waiting").exists, "the worker is busy")
            others = [pool.submit(server_timing, service, {"number": "2"}) for _ in range(2)]
            wait_until(lambda: service.metric("paddlewheel_pending_requests") == 3, "all are admitted")
            gate.touch()
            told = first.result()
            assert told["echo.preprocess"] == max(told[f"echo.{stage}"] for stage in STAGES)
            for other in others:
                told = other.result()
                assert told["echo.queue"] == max(told[f"echo.{stage}"] for stage in STAGES)

    def test_a_refused_request_tells_how_far_it_came(self, service: ServiceProcess) -> None:
        told = server_timing(service, {"action": "refuse_51"})
        assert told["echo.preprocess"] > 0 and told["echo.process"] == 0
        unread = service.http("/test/prediction", b"no JSON")
        assert "server-timing" not in unread.headers

    def test_every_op_of_a_graph_is_told_once_however_often_it_ran(self) -> None:
        config = {"dag": {"use_profile": True}}
        with ServiceProcess(APPS / "shapes.py", config, arguments=["loop"]) as service:
            told = server_timing(service, {"jumps": "2"})
        assert list(told) == ["total", *(f"{op}.{stage}" for op in "abcd" for stage in STAGES)]
        assert min(told[f"{op}.preprocess"] for op in "abcd") > 0

    def test_without_it_there_is_no_header(self) -> None:
        with ServiceProcess(APPS / "echo.py") as service:
            assert "server-timing" not in service.http("/test/prediction", key_value({"number": "1"})).headers
            assert "server-timing" not in rpc_metadata(service, {"number": "1"})


class TestTracer:
    LINE = re.compile(
        r"INFO \[front\] Op echo in 1 s: (\d+) requests, queue [\d.]+ ms; "
        r"(\d+) batches of ([\d.]+) rows, predictor [\d.]+ ms; (\d+) errors\n"
    )

    def test_every_interval_has_a_line_for_each_op(self) -> None:
        with ServiceProcess(APPS / "echo.py", {"dag": {"tracer": {"interval_s": 1}}}) as service:
            for _ in range(5):
                service.predict({"number": "1"})
            service.ask({"action": "refuse_51"})
            wait_until(
                lambda: self.sums(service.log) == (6, 5, 1), "all are told", on_timeout=lambda: service.log
            )
            wait_until(lambda: " 0 requests, " in service.log, "a quiet interval is told, too")
            assert service.metric("paddlewheel_op_errors_total", op="echo") == 1

    def sums(self, log: str) -> tuple[int, int, int]:
        told = self.LINE.findall(log)
        return tuple(sum(int(line[index]) for line in told) for index in (0, 1, 3))

    def test_by_default_there_is_none(self) -> None:
        with ServiceProcess(APPS / "echo.py", {"dag": {"tracer": {"interval_s": -1}}}) as service:
            service.predict({"number": "1"})
            service.terminate()
            assert service.exit_code() == 0
            assert "requests, queue" not in service.log

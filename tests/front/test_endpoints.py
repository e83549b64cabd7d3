"""Requests of all endpoints meet in one batcher."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

from client.protos.pipeline_service_pb2 import Request
from client.values import parse_value
from tests.support.service_process import APPS, ServiceProcess, wait_until

Answer = tuple[list[int], list[int]]  # doubled, rows


def by_key_value(service: ServiceProcess, numbers: list[int]) -> Answer:
    answer = service.predict({"numbers": " ".join(map(str, numbers))})
    return parse_value(answer["doubled"]), parse_value(answer["rows"])


def by_pipeline_rpc(service: ServiceProcess, numbers: list[int]) -> Answer:
    request = Request(name="test", method="prediction", key=["numbers"], value=[" ".join(map(str, numbers))])
    answer = service.rpc(request)
    given = dict(zip(answer.key, answer.value, strict=True))
    return parse_value(given["doubled"]), parse_value(given["rows"])


def by_v1(service: ServiceProcess, numbers: list[int]) -> Answer:
    body = json.dumps({"instances": [{"numbers": number} for number in numbers]})
    predictions = service.http("/v1/models/test:predict", body).json["predictions"]
    return [one["doubled"] for one in predictions], [one["rows"] for one in predictions]


def by_v2(module: Any, port: int, numbers: list[int]) -> Answer:
    given = module.InferInput("numbers", [len(numbers)], "INT64")
    given.set_data_from_numpy(np.array(numbers, np.int64))
    with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
        answer = client.infer("test", [given])
    return answer.as_numpy("doubled").tolist(), answer.as_numpy("rows").tolist()


ENDPOINTS: dict[str, tuple[Callable[[ServiceProcess, list[int]], Answer], list[int]]] = {
    "key/value": (by_key_value, [1]),
    "PipelineService": (by_pipeline_rpc, [20, 30]),
    "v1": (by_v1, [400, 500, 600]),
    "v2 HTTP": (lambda s, numbers: by_v2(tritonclient.http, s.http_port, numbers), [7, 8, 9, 10]),
    "v2 gRPC": (lambda s, numbers: by_v2(tritonclient.grpc, s.rpc_port, numbers), [1100, 1200]),
}
ROWS = sum(len(numbers) for _, numbers in ENDPOINTS.values())


def test_rows_of_all_endpoints_share_one_run_and_each_has_its_own_answer(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    config = {"op": {"double": {"concurrency": 1, "batch_size": 16}}}
    with (
        ServiceProcess(APPS / "endpoints.py", config, env={"GATE": str(gate)}) as service,
        ThreadPoolExecutor(8) as pool,
    ):

        def wait_for_pending(count: int) -> None:
            wait_until(
                lambda: service.metric("paddlewheel_pending_requests") == count, f"{count} are admitted"
            )

        holding = pool.submit(by_key_value, service, [-1])
        wait_until(Path(f"{gate}.waiting").exists, "the worker is busy")
        asked = {name: pool.submit(ask, service, numbers) for name, (ask, numbers) in ENDPOINTS.items()}
        wait_for_pending(1 + len(ENDPOINTS))
        gate.touch()
        for name, (_, numbers) in ENDPOINTS.items():
            assert asked[name].result() == ([2 * n for n in numbers], [ROWS] * len(numbers)), name
        assert holding.result() == ([-2], [1])
        assert service.metric("paddlewheel_op_batch_rows_sum", op="double") == ROWS + 1
        assert service.metric("paddlewheel_op_batch_rows_count", op="double") == 2
        outcomes = {
            endpoint: service.metric("paddlewheel_requests_total", door=endpoint)
            for endpoint in ("http", "grpc", "v1-http", "v2-http", "v2-grpc")
        }
        assert outcomes == {"http": 2, "grpc": 1, "v1-http": 1, "v2-http": 1, "v2-grpc": 1}
        took = {
            endpoint: service.metric("paddlewheel_request_seconds_count", door=endpoint)
            for endpoint in outcomes
        }
        assert took == outcomes

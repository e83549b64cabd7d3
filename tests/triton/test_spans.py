"""Spans of requests for an OpenTelemetry collector: names, nesting, batches, dead workers, failures."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as http

from tests.support.collector import Collector, get_attributes
from tests.support.free_ports import free_port
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import PATIENCE_S, wait_until
from tests.support.triton_repository import write_model

TENSORS = """
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
"""
# Waits for the file of the name in "until", once "starts" is there; with "kills" it ends its first process.
WAITS = """
import json, os, time
from pathlib import Path

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            parameters = json.loads(request.parameters())
            if "starts" in parameters:
                Path(parameters["starts"]).touch()
            while "until" in parameters and not Path(parameters["until"]).exists():
                time.sleep(0.002)
            if "kills" in parameters and not Path(parameters["kills"]).exists():
                Path(parameters["kills"]).touch()
                os._exit(3)
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
        return answers
"""
BATCHED = f'backend: "python"\nmax_batch_size: 8\ndynamic_batching {{ }}\n{TENSORS}'
ENSEMBLE = f"""
platform: "ensemble"
max_batch_size: 8
{TENSORS}
ensemble_scheduling {{ step {{
  model_name: "waits" model_version: -1
  input_map {{ key: "X" value: "X" }} output_map {{ key: "Y" value: "Y" }}
}} }}
"""
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spans")
    write_model(folder, "waits", BATCHED, WAITS)
    (write_model(folder, "around", ENSEMBLE) / "1").mkdir(exist_ok=True)
    return folder


def list_flags(port: int, *settings: str) -> list[str]:
    settings = (
        "level=TIMESTAMPS", "rate=1", "mode=opentelemetry", f"opentelemetry,url=localhost:{port}/v1/traces",
        "opentelemetry,bsp_schedule_delay=50", *settings,
    )  # fmt: skip
    return [f"--trace-config={setting}" for setting in settings]


@pytest.fixture(scope="module")
def service(repository: Path, collector: Collector) -> Iterator[RepositoryProcess]:
    flags = list_flags(collector.port, "opentelemetry,resource=service.name=test")
    with RepositoryProcess(repository, arguments=flags) as service:
        yield service


def infer(service: RepositoryProcess, model: str, *, headers: Any = None, **parameters: Any) -> None:
    x = http.InferInput("X", [1, 1], "FP32")
    x.set_data_from_numpy(np.ones((1, 1), np.float32))
    with http.InferenceServerClient(f"127.0.0.1:{service.http_port}", network_timeout=PATIENCE_S) as client:
        client.infer(model, [x], parameters=parameters or None, headers=headers)


def list_events(span: dict[str, Any]) -> list[str]:
    instants = [int(event["timeUnixNano"]) for event in span["events"]]
    assert instants == sorted(instants)
    assert int(span["startTimeUnixNano"]) <= instants[0] and instants[-1] <= int(span["endTimeUnixNano"])
    return [event["name"] for event in span["events"]]


def test_spans_have_triton_s_names_and_continue_the_client_s_trace(
    service: RepositoryProcess, collector: Collector
) -> None:
    infer(service, "around", headers=HEADERS)
    (root,) = collector.wait("InferRequest")
    (ensemble,), (step,), (compute,) = (collector.wait(name) for name in ("around", "waits", "compute"))
    assert (root["traceId"], root["parentSpanId"]) == (TRACE_ID, SPAN_ID)
    assert {span["traceId"] for span in (ensemble, step, compute)} == {TRACE_ID}
    above = [span["parentSpanId"] for span in (ensemble, step, compute)]
    assert above == [span["spanId"] for span in (root, ensemble, step)]
    assert list_events(root) == [
        "HTTP_RECV_START", "HTTP_RECV_END", "INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END",
    ]  # fmt: skip
    for span in (ensemble, step):
        assert list_events(span) == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    assert list_events(compute) == [
        "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END",
    ]  # fmt: skip
    attributes = get_attributes(step)
    assert (attributes["triton.model_name"], attributes["triton.model_version"]) == ("waits", "1")
    assert attributes["triton.trace_parent_id"] == get_attributes(ensemble)["triton.trace_id"]
    assert get_attributes(collector.resources[0])["service.name"] == "test"


def test_the_span_of_a_batch_is_linked_to_all_its_requests(
    service: RepositoryProcess, collector: Collector, tmp_path: Path
) -> None:
    starts, until = str(tmp_path / "starts"), str(tmp_path / "until")
    expected = len(collector.find("waits")) + 4
    with ThreadPoolExecutor(4) as pool:
        try:
            held = pool.submit(infer, service, "waits", starts=starts, until=until)
            wait_until(Path(starts).exists, "the worker is busy")
            others = [pool.submit(infer, service, "waits") for _ in range(3)]
            wait_until(lambda: service.metric("paddlewheel_pending_requests") == 4, "all are admitted")
        finally:
            Path(until).touch()
        for sent in (held, *others):
            sent.result()

    def list_links() -> list[str]:
        return sorted(link["spanId"] for batch in collector.find("batch") for link in batch["links"])

    def list_models() -> list[str]:
        return sorted(span["spanId"] for span in collector.find("waits"))

    def list_runs() -> set[str]:
        return {link["spanId"] for span in collector.find("compute") for link in span["links"]}

    wait_until(lambda: len(list_models()) == expected, "a model span of each request")
    wait_until(lambda: list_links() == list_models(), "batches of all requests")
    batches = collector.find("batch")
    assert sum(int(get_attributes(batch)["paddlewheel.requests"]) for batch in batches) == len(list_models())
    wait_until(
        lambda: list_runs() == {batch["spanId"] for batch in batches}, "a compute span of each request"
    )


def test_a_dead_worker_leaves_a_failed_batch_and_a_trace_that_goes_on(
    service: RepositoryProcess, collector: Collector, tmp_path: Path
) -> None:
    infer(service, "waits", kills=str(tmp_path / "killed"))
    wait_until(lambda: any("status" in span for span in collector.find("batch")), "a failed batch")
    (failed,) = [span for span in collector.find("batch") if "status" in span]
    (link,) = failed["links"]

    def find(name: str, key: str) -> list[dict[str, Any]]:
        return [span for span in collector.find(name) if span[key] == link["spanId"]]

    wait_until(
        lambda: find("waits", "spanId") and find("compute", "parentSpanId"), "the spans of the request"
    )
    (model,), (compute,) = find("waits", "spanId"), find("compute", "parentSpanId")
    assert list_events(model) == ["REQUEST_START", "QUEUE_START", "REQUEUED", "REQUEST_END"]
    assert len(compute["links"]) == 2


def test_a_collector_that_is_down_loses_traces_and_no_request(repository: Path) -> None:
    flags = list_flags(free_port(), "opentelemetry,bsp_max_export_batch_size=1")
    with RepositoryProcess(repository, arguments=flags) as service:
        for _ in range(3):
            infer(service, "waits")
        wait_until(lambda: service.metric("paddlewheel_traces_dropped_total") == 3, "three dropped traces")
        wait_until(lambda: "does not accept spans" in service.log, "the log line")
        told = [line for line in service.log.splitlines() if "does not accept spans" in line]
        assert len(told) == 1 and "--trace-config opentelemetry,url" in told[0]


def test_a_slow_collector_loses_traces_and_delays_no_request(repository: Path) -> None:
    collector = Collector()
    collector.is_open.clear()
    flags = list_flags(
        collector.port, "opentelemetry,bsp_max_queue_size=2", "opentelemetry,bsp_max_export_batch_size=1"
    )
    try:
        with RepositoryProcess(repository, arguments=flags) as service:
            for _ in range(9):  # one is sent, two wait, the rest is dropped
                infer(service, "waits")
            assert not collector.spans
            wait_until(lambda: service.metric("paddlewheel_traces_dropped_total") >= 6, "dropped traces")
            collector.is_open.set()

            def is_traced() -> bool:
                infer(service, "waits")
                return len(collector.find("waits")) > 3

            wait_until(is_traced, "later traces arrive")
    finally:
        collector.is_open.set()
        collector.close()

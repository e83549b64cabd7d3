"""Traces of requests in Triton's JSON: instants, settings of models, ensembles, tensors, full disks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as rpc
import tritonclient.http as http

from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import PATIENCE_S, wait_until
from tests.support.triton_repository import write_model

TENSORS = """
input { name: "X" data_type: TYPE_FP32 dims: -1 }
output { name: "Y" data_type: TYPE_FP32 dims: -1 }
"""
PYTHON = f'backend: "python"\n{TENSORS}'
DOUBLES = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", 2 * x)]))
        return answers
"""
CALLS = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            inputs = [pb_utils.get_input_tensor_by_name(request, "X")]
            call = pb_utils.InferenceRequest(
                model_name="doubles", requested_output_names=["Y"], inputs=inputs, trace=request.trace()
            )
            answers.append(pb_utils.InferenceResponse(call.exec().output_tensors()))
        return answers
"""
STEP = """{{
  model_name: "doubles" model_version: -1
  input_map {{ key: "X" value: "{}" }} output_map {{ key: "Y" value: "{}" }}
}}"""
ENSEMBLE = f"""
platform: "ensemble"
{TENSORS}
ensemble_scheduling {{ step [ {STEP.format("X", "M")}, {STEP.format("M", "Y")} ] }}
"""
MODEL_EVENTS = [
    "REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START",
    "COMPUTE_END", "INFER_RESPONSE_COMPLETE", "REQUEST_END",
]  # fmt: skip
HTTP_EVENTS = ["HTTP_RECV_START", "HTTP_RECV_END", *MODEL_EVENTS, "HTTP_SEND_START", "HTTP_SEND_END"]
GRPC_EVENTS = [
    "GRPC_WAITREAD_START", "GRPC_WAITREAD_END", *MODEL_EVENTS, "GRPC_SEND_START", "GRPC_SEND_END",
]  # fmt: skip
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traced")
    write_model(folder, "doubles", PYTHON, DOUBLES)
    write_model(folder, "calls", PYTHON, CALLS)
    (write_model(folder, "twice", ENSEMBLE) / "1").mkdir(exist_ok=True)
    return folder


class Traced:
    """A server whose traces are in a file."""

    def __init__(self, service: RepositoryProcess, file: Path) -> None:
        self.service = service
        self.file = file
        self.client = http.InferenceServerClient(f"127.0.0.1:{service.http_port}", network_timeout=PATIENCE_S)

    def read(self, path: Path | None = None) -> list[dict[str, Any]]:
        """The entries of the file so far; the server may be writing further ones."""
        path = path or self.file
        entries: list[dict[str, Any]] = []

        def is_whole() -> bool:
            try:
                entries[:] = json.loads(path.read_bytes() or b"[]") if path.exists() else []
            except ValueError:
                return False
            return True

        wait_until(is_whole, f"{path} is JSON")
        return entries

    def wait(self, model: str, count: int = 1, path: Path | None = None) -> list[list[dict[str, Any]]]:
        """The entries of each of a model's traces, once there are so many."""

        def find() -> list[list[dict[str, Any]]]:
            entries = self.read(path)
            numbers = [entry["id"] for entry in entries if entry.get("model_name") == model]
            return [[entry for entry in entries if entry["id"] == number] for number in numbers]

        wait_until(lambda: len(find()) >= count, f"{count} traces of {model}")
        return find()

    def wait_for_steps(self, parent: int, count: int = 1) -> list[list[dict[str, Any]]]:
        """The entries of each trace of "doubles" with a given parent, once there are so many.

        The trace of a step may be written after its parent's.
        """

        def find() -> list[list[dict[str, Any]]]:
            return [each for each in self.wait("doubles", 0) if get_head(each).get("parent_id") == parent]

        wait_until(lambda: len(find()) >= count, f"{count} traces under {parent}")
        return find()

    def infer(self, model: str, **options: Any) -> Any:
        x = http.InferInput("X", [2], "FP32")
        x.set_data_from_numpy(np.array([1, 2.5], np.float32))
        return self.client.infer(model, [x], **options)

    def infer_rpc(self, model: str, **options: Any) -> Any:
        x = rpc.InferInput("X", [2], "FP32")
        x.set_data_from_numpy(np.array([1, 2.5], np.float32))
        with rpc.InferenceServerClient(f"127.0.0.1:{self.service.rpc_port}") as client:
            return client.infer(model, [x], client_timeout=PATIENCE_S, **options)


@pytest.fixture(scope="module")
def traced(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    file = tmp_path_factory.mktemp("traces") / "trace.json"
    flags = [f"--trace-config=triton,file={file}", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1"]
    with RepositoryProcess(repository, arguments=flags) as service:
        yield Traced(service, file)


def get_head(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return next(entry for entry in entries if "model_name" in entry)


def list_events(entries: list[dict[str, Any]]) -> list[str]:
    """The names of the instants, which must not decrease."""
    events = [event for entry in entries for event in entry.get("timestamps", [])]
    instants = [event["ns"] for event in events]
    assert instants == sorted(instants) and instants[0] > 0
    return [event["name"] for event in events]


@pytest.mark.parametrize(("send", "events"), [("infer", HTTP_EVENTS), ("infer_rpc", GRPC_EVENTS)])
def test_the_instants_of_a_request_are_in_order(traced: Traced, send: str, events: list[str]) -> None:
    seen = len(traced.read()) and len(traced.wait("doubles"))
    getattr(traced, send)("doubles", request_id="a")
    entries = traced.wait("doubles", seen + 1)[-1]
    assert list_events(entries) == events
    head = get_head(entries)
    assert (head["model_version"], head["request_id"]) == (1, "a") and "parent_id" not in head


def test_the_steps_of_an_ensemble_have_its_trace_as_parent(traced: Traced) -> None:
    traced.infer("twice")
    (ensemble,) = traced.wait("twice")
    number = get_head(ensemble)["id"]
    without_compute = [name for name in HTTP_EVENTS if not name.startswith("COMPUTE")]
    assert list_events(ensemble) == without_compute
    steps = traced.wait_for_steps(number, 2)
    assert [list_events(step) for step in steps] == 2 * [
        [name for name in MODEL_EVENTS if name != "INFER_RESPONSE_COMPLETE"]
    ]


def test_a_model_that_a_python_model_calls_is_traced_under_the_caller(traced: Traced) -> None:
    traced.infer("calls")
    (caller,) = traced.wait("calls")
    number = get_head(caller)["id"]
    (called,) = traced.wait_for_steps(number)
    assert list_events(called) == MODEL_EVENTS


def test_requests_of_other_protocols_are_traced(traced: Traced) -> None:
    seen = len(traced.read()) and len(traced.wait("doubles"))
    answer = traced.service.http("/v1/models/doubles:predict", json.dumps({"inputs": {"X": [1.5]}}))
    assert answer.status == 200
    assert list_events(traced.wait("doubles", seen + 1)[-1]) == HTTP_EVENTS
    tensor = {"name": "X", "elem_type": 1, "shape": [2], "float_data": [1, 2]}
    answer = traced.service.http("/doubles/prediction", json.dumps({"tensors": [tensor]}))
    assert answer.status == 200
    assert list_events(traced.wait("doubles", seen + 2)[-1]) == HTTP_EVENTS


def test_a_model_has_settings_of_its_own_and_a_traceparent_is_traced_at_any_rate(
    repository: Path, tmp_path: Path
) -> None:
    file = tmp_path / "trace.json"
    flags = [f"--trace-file={file}", "--trace-level=TIMESTAMPS", "--trace-rate=1000000"]
    with RepositoryProcess(repository, arguments=flags) as service:
        traced = Traced(service, file)
        for send in (traced.infer, traced.infer_rpc):
            send("doubles")
            send("doubles", headers={"traceparent": TRACEPARENT}, request_id="called")
            send("doubles", headers={"traceparent": "00-0-0-01"})
        heads = [get_head(each) for each in traced.wait("doubles", 2)]
        assert [head["request_id"] for head in heads] == ["called"] * 2
        settings = {"trace_rate": "2", "trace_count": "2", "trace_level": ["TIMESTAMPS", "TENSORS"]}
        told = traced.client.update_trace_settings("doubles", settings)
        assert {name: told[name] for name in settings} == settings and told["trace_file"] == str(file)
        for name in "abcdef":
            traced.infer("doubles", request_id=name)
        counted = traced.wait("doubles", 2, file.with_name("trace.json.0"))
        assert [get_head(each)["request_id"] for each in counted] == ["b", "d"]
        tensors = [entry for entry in counted[0] if "tensor" in entry]
        assert [(entry["activity"], entry["tensor"]) for entry in tensors] == [
            ("TENSOR_QUEUE_INPUT", {"name": "X", "data": "1.0,2.5", "shape": "2", "dtype": "FP32"}),
            ("TENSOR_BACKEND_OUTPUT", {"name": "Y", "data": "2.0,5.0", "shape": "2", "dtype": "FP32"}),
        ]
        assert traced.client.get_trace_settings("doubles")["trace_count"] == "0"
        assert traced.client.get_trace_settings()["trace_rate"] == "1000000"
        assert len(traced.wait("doubles", 2)) == 2
        told = traced.client.update_trace_settings(
            "doubles", {"trace_level": ["OFF"], "trace_count": None, "trace_rate": "1", "log_frequency": "2"}
        )
        traced.infer("doubles", headers={"traceparent": TRACEPARENT})
        traced.client.update_trace_settings("doubles", {"trace_level": None})
        for name in "ghi":
            traced.infer("doubles", request_id=name)
        grouped = traced.wait("doubles", 2, file.with_name("trace.json.1"))
        assert [get_head(each)["request_id"] for each in grouped] == ["g", "h"]
        service.terminate()
        assert service.exit_code() == 0
    last = traced.wait("doubles", 1, file.with_name("trace.json.2"))
    assert [get_head(each)["request_id"] for each in last] == ["i"]


def test_a_full_disk_loses_traces_and_no_request(repository: Path) -> None:
    flags = [
        "--trace-config=triton,file=/dev/full",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1",
    ]
    with RepositoryProcess(repository, arguments=flags) as service:
        traced = Traced(service, Path("/dev/full"))
        for _ in range(3):
            assert traced.infer("doubles").as_numpy("Y").tolist() == [2, 5]
        dropped = "paddlewheel_traces_dropped_total"
        wait_until(lambda: service.metric(dropped) == 3, "three dropped traces")
        wait_until(lambda: "the trace file /dev/full" in service.log, "the log line")
        told = [line for line in service.log.splitlines() if "the trace file /dev/full" in line]
        assert len(told) == 1 and "No space left on device" in told[0]

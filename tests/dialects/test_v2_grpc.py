"""KServe v2 over gRPC, asked with Triton's own client."""

from __future__ import annotations

import asyncio
import itertools
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as v2
import tritonclient.grpc.aio as v2_aio
from tritonclient.utils import InferenceServerException

from client.protos.kserve_v2_pb2 import ModelInferRequest, ModelInferResponse
from tests.support.service_process import APPS, PATIENCE_S, ROOT, ServiceProcess, wait_until

ONES = np.ones((2, 16), np.int32)
IMPORTS = ("tritonclient.grpc", "client", "pipeline", "client.protos.kserve_v2_pb2")


@pytest.fixture(scope="module")
def simple(triton: Callable[[str], ServiceProcess]) -> ServiceProcess:
    return triton("simple")


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[ServiceProcess, Path]]:
    """A service whose worker waits for a file, and then for no more, when the first number is 77."""
    gate = tmp_path / "gate"
    env = {"MODEL": "simple", "WAIT_FOR": str(gate)}
    with ServiceProcess(APPS / "triton.py", name="simple", env=env) as service:
        yield service, gate
        gate.touch()


def address(service: ServiceProcess) -> str:
    return f"127.0.0.1:{service.rpc_port}"


def inputs(first: int) -> list[v2.InferInput]:
    given = []
    for name, array in (("INPUT0", np.full((2, 16), first, np.int32)), ("INPUT1", ONES)):
        one = v2.InferInput(name, [2, 16], "INT32")
        one.set_data_from_numpy(array)
        given.append(one)
    return given


def test_the_server_and_its_model_tell_what_they_are(simple: ServiceProcess) -> None:
    with v2.InferenceServerClient(address(simple)) as asking:
        assert asking.is_server_live() and asking.is_server_ready() and asking.is_model_ready("simple")
        assert not asking.is_model_ready("nope")
        assert asking.get_server_metadata().name == "triton"
        metadata = asking.get_model_metadata("simple", as_json=True)
        assert metadata["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": ["-1", "16"]}
        assert [model.name for model in asking.get_model_repository_index().models] == ["simple"]


def test_a_request_is_answered_with_raw_tensors(simple: ServiceProcess) -> None:
    with v2.InferenceServerClient(address(simple)) as asking:
        wanted = [v2.InferRequestedOutput("OUTPUT1")]
        result = asking.infer("simple", inputs(5), request_id="r", outputs=wanted, priority=1, timeout=10**7)
        assert result.get_response().id == "r"
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), np.full((2, 16), 4))
        assert result.as_numpy("OUTPUT0") is None


async def test_requests_over_asyncio_are_answered_each_with_its_own(simple: ServiceProcess) -> None:
    async with v2_aio.InferenceServerClient(address(simple)) as asking:
        results = await asyncio.gather(*(asking.infer("simple", inputs(number)) for number in range(20)))
    assert [result.as_numpy("OUTPUT0")[0, 0] for result in results] == list(range(1, 21))


def test_a_stream_has_several_requests_in_flight_and_answers_them_in_order(
    held: tuple[ServiceProcess, Path],
) -> None:
    service, gate = held
    answers: queue.Queue[tuple[v2.InferResult | None, Exception | None]] = queue.Queue()
    with v2.InferenceServerClient(address(service)) as asking:
        asking.start_stream(lambda result, error: answers.put((result, error)))
        for number in (77, 1, 2):
            asking.async_stream_infer("simple", inputs(number), request_id=str(number))
        asking.async_stream_infer("nope", inputs(1), request_id="bad")
        asking.async_stream_infer("simple", inputs(3), request_id="3")
        wait_until(lambda: service.metric("paddlewheel_pending_requests") == 4, "all are in flight")
        assert answers.empty()  # the refusal is there already, and waits for its turn as in Triton
        gate.touch()
        told = [answers.get(timeout=PATIENCE_S) for _ in range(5)]
        assert "unknown model: 'nope'" in str(told.pop(3)[1])
        found = [(one.get_response().id, one.as_numpy("OUTPUT0")[0, 0]) for one, _ in told if one]
        assert found == [("77", 78), ("1", 2), ("2", 3), ("3", 4)]
        asking.stop_stream()


def test_a_refusal_ends_a_stream_whose_client_asks_for_codes(simple: ServiceProcess) -> None:
    answers: queue.Queue[tuple[v2.InferResult | None, Any]] = queue.Queue()
    with v2.InferenceServerClient(address(simple)) as asking:
        asking.start_stream(
            lambda result, error: answers.put((result, error)), headers={"triton_grpc_error": "true"}
        )
        asking.async_stream_infer("simple", inputs(1))
        result, error = answers.get(timeout=PATIENCE_S)
        assert error is None and result is not None and result.as_numpy("OUTPUT0")[0, 0] == 2
        asking.async_stream_infer("nope", inputs(1))
        result, error = answers.get(timeout=PATIENCE_S)
        assert result is None and error.status() == "StatusCode.NOT_FOUND"
        assert error.message() == "Request for unknown model: 'nope' is not found"
        with pytest.raises(InferenceServerException, match="stream is no longer in valid state"):
            asking.async_stream_infer("simple", inputs(1))
        asking.stop_stream()


def test_a_cancelled_request_is_dropped_from_the_queue(held: tuple[ServiceProcess, Path]) -> None:
    service, gate = held
    pending = "paddlewheel_pending_requests"
    with v2.InferenceServerClient(address(service)) as asking:
        results: queue.Queue[tuple[v2.InferResult | None, Exception | None]] = queue.Queue()
        calls = [
            asking.async_infer(
                "simple", inputs(77), callback=lambda result, error: results.put((result, error))
            )
            for _ in range(3)
        ]
        wait_until(lambda: service.metric(pending) == 3, "all are admitted")
        for call in calls:
            call.cancel()
        wait_until(lambda: service.metric(pending) == 0, "none is pending any more")
        assert service.metric("nv_inference_request_failure", reason="CANCELED") == 3
        assert all("CANCELLED" in str(results.get(timeout=PATIENCE_S)[1]).upper() for _ in calls)
        gate.touch()
        assert asking.infer("simple", inputs(1)).as_numpy("OUTPUT0")[0, 0] == 2


def test_a_stream_that_its_client_leaves_is_dropped(held: tuple[ServiceProcess, Path]) -> None:
    service, _ = held
    pending = "paddlewheel_pending_requests"
    with v2.InferenceServerClient(address(service)) as asking:
        asking.start_stream(lambda result, error: None)
        for _ in range(3):
            asking.async_stream_infer("simple", inputs(77))
        wait_until(lambda: service.metric(pending) == 3, "all are admitted")
        asking.stop_stream(cancel_requests=True)
        wait_until(lambda: service.metric(pending) == 0, "none is pending any more")


def test_a_deadline_of_the_caller_is_kept(held: tuple[ServiceProcess, Path]) -> None:
    service, _ = held
    with v2.InferenceServerClient(address(service)) as asking:
        with pytest.raises(InferenceServerException, match="Request timeout expired"):
            asking.infer("simple", inputs(77), timeout=50_000)
        with pytest.raises(InferenceServerException) as passed:
            asking.infer("simple", inputs(77), client_timeout=0.05)
        assert passed.value.status() == str(grpc.StatusCode.DEADLINE_EXCEEDED)


@pytest.mark.parametrize("order", list(itertools.permutations(IMPORTS[:3])), ids="-".join)
def test_triton_s_client_and_ours_live_in_one_process(order: tuple[str, ...]) -> None:
    script = "".join(f"import {module}\n" for module in (*order, IMPORTS[3]))
    script += "from tritonclient.grpc import service_pb2\n"
    script += "ours = client.protos.kserve_v2_pb2.ModelInferRequest(model_name='m')\n"
    script += "print(service_pb2.ModelInferRequest.FromString(ours.SerializeToString()).model_name)\n"
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert ran.stdout == "m\n", ran.stderr


def test_a_large_message_is_read_wherever_its_contents_stand(simple: ServiceProcess) -> None:
    arrays = [np.full((8, 16), number, np.int32) for number in (5, 3)]
    head = ModelInferRequest(model_name="simple", id="large" * 5000)
    for name in ("INPUT0", "INPUT1"):
        head.inputs.add(name=name, datatype="INT32", shape=[8, 16])
    raws = [ModelInferRequest(raw_input_contents=[array.tobytes()]).SerializeToString() for array in arrays]
    method = "/inference.GRPCInferenceService/ModelInfer"
    fields = head.SerializeToString()
    for data in (raws[0] + fields + raws[1], fields + raws[0] + raws[1], raws[0] + raws[1] + fields):
        answer = ModelInferResponse.FromString(simple.raw_rpc(data, method=method))
        assert answer.id == head.id
        assert np.frombuffer(answer.raw_output_contents[1], np.int32).tolist() == [2] * 128
    for broken in (data[:-1], data + b"\x0f", data + b"\x3a\xff\xff\x03"):
        with pytest.raises(grpc.RpcError) as caught:
            simple.raw_rpc(broken, method=method)
        assert caught.value.details() == "Unable to parse request"

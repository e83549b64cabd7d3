"""`is_ready` of Python models: readiness follows it, and requests are served whatever it says."""

from __future__ import annotations

import json
import queue
import threading
from pathlib import Path

import pytest
import tritonclient.grpc as rpc

from pipeline.messages.messages import Message, ModelReadiness
from pipeline.worker import readiness
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import PATIENCE_S, wait_until
from tests.support.triton_repository import write_model

CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
"""
MODEL = """
from pathlib import Path

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests
        ]

    DEF is_ready(self):
        return RESULT
"""
BODY = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}]})


def test_readiness_of_a_model_is_what_its_is_ready_says(tmp_path: Path) -> None:
    gate, repository = tmp_path / "open", tmp_path / "models"
    results = {"gated": f"Path({str(gate)!r}).exists()", "awaited": "True", "wrong": "1", "raising": "1 / 0"}
    for name, result in results.items():
        define = "async def" if name == "awaited" else "def"
        write_model(repository, name, CONFIG, MODEL.replace("DEF", define).replace("RESULT", result))
    with (
        RepositoryProcess(repository) as service,
        rpc.InferenceServerClient(f"127.0.0.1:{service.rpc_port}") as client,
    ):

        def is_ready(name: str) -> bool:
            ready = service.http(f"/v2/models/{name}/ready").status == 200
            assert client.is_model_ready(name, client_timeout=PATIENCE_S) is ready or name == "gated"
            return ready

        assert [name for name in results if is_ready(name)] == ["awaited"]
        assert service.http("/v2/models/gated/infer", BODY).status == 200
        gate.touch()
        wait_until(lambda: is_ready("gated"), "the model is ready")
        gate.unlink()
        wait_until(lambda: not is_ready("gated"), "the model is not ready")
        service.wait_for_log("Model wrong is not ready: is_ready returned a 'int', and must return a bool")
        service.wait_for_log("Model raising is not ready: is_ready raised ZeroDivisionError")
        assert service.log.count("Model raising is not ready") == 1


def test_a_call_that_hangs_makes_the_model_unready_until_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "INTERVAL_S", 0.0)
    monkeypatch.setattr(readiness, "TIMEOUT_S", 0.01)
    sent = queue.SimpleQueue[Message]()
    calls, returns = iter(range(10)), threading.Event()

    class Front:
        def send(self, message: Message) -> None:
            if returns.is_set() and isinstance(message, ModelReadiness) and message.is_ready:
                sent.put(message)
                raise OSError("the connection is closed")  # ends the thread
            sent.put(message)

    def check() -> bool:
        if next(calls):
            returns.wait(PATIENCE_S)
        return True

    readiness.watch_readiness(check, Front())
    first, second = (sent.get(timeout=PATIENCE_S) for _ in range(2))
    returns.set()
    third = sent.get(timeout=PATIENCE_S)
    states = [message.is_ready for message in (first, second, third) if isinstance(message, ModelReadiness)]
    assert states == [True, False, True]

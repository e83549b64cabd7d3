"""The port of Amazon SageMaker, started as Triton's `serve` script starts it."""

from __future__ import annotations

import json
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as v2_http

from pipeline.dialects.kserve_v2.sagemaker import BINARY_TYPE, read_settings
from pipeline.errors import ConfigError
from tests.support.free_ports import free_port
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import PATIENCE_S
from tests.support.triton_repository import write_model

CONFIG = """
backend: "identity"
input { name: "I" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "O" data_type: TYPE_FP32 dims: [ 2 ] }
"""
MODEL = "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
INPUT = {"name": "I", "datatype": "FP32", "shape": [2], "data": [1, 2]}
ALONE = ["--allow-http=false", "--allow-grpc=false", "--allow-metrics=false", "--model-control-mode=explicit"]


def _start(models: Path, *flags: str, **environment: str) -> RepositoryProcess:
    """Start a server whose `http_port` is the port of SageMaker."""
    port = free_port()
    server = RepositoryProcess(
        models, arguments=["--allow-sagemaker=true", f"--sagemaker-port={port}", *flags], wait=False,
        env=environment,
    )  # fmt: skip
    server.http_port = port
    return server


def _ask(
    port: int, path: str, method: str = "GET", body: bytes = b"", content_type: str = "application/json"
) -> tuple[int, str, bytes]:
    """Return status, content type and body of the response."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as connection:
        connection.request(method, path, body, {"content-type": content_type, "accept-encoding": "gzip"})
        with connection.getresponse() as response:
            return response.status, response.headers["content-type"], response.read()


def test_one_model_is_served_with_json_and_with_raw_tensors(tmp_path: Path) -> None:
    write_model(tmp_path, "same", CONFIG)
    write_model(tmp_path, "unused", CONFIG)
    with _start(tmp_path, *ALONE, "--load-model=same") as server:
        server.wait_for_log("is ready: v2.sagemaker_port")
        port = server.http_port
        assert _ask(port, "/ping")[0] == 200
        body = json.dumps({"inputs": [INPUT]}).encode()
        status, content_type, answer = _ask(port, "/invocations", "POST", body)
        document = json.loads(answer)
        assert (status, content_type, document["outputs"][0]["data"]) == (200, "application/json", [1, 2])

        tensor = v2_http.InferInput("I", [2], "FP32")
        tensor.set_data_from_numpy(np.array([3, 4], np.float32))
        body, length = v2_http.InferenceServerClient.generate_request_body([tensor])
        status, content_type, answer = _ask(port, "/invocations", "POST", body, f"{BINARY_TYPE}{length}")
        assert (status, content_type.startswith(BINARY_TYPE)) == (200, True)
        result = v2_http.InferenceServerClient.parse_response_body(
            answer, header_length=int(content_type.removeprefix(BINARY_TYPE))
        )
        assert result.as_numpy("O").tolist() == [3, 4]

        other = json.dumps({"inputs": [{**INPUT, "name": "J"}]}).encode()
        assert _ask(port, "/invocations", "POST", other)[:2] == (400, "application/json")
        assert _ask(port, "/invocations", "POST", body, f"{BINARY_TYPE}9999")[0] == 400
        assert _ask(port, "/invocations")[0] == 405
        assert _ask(port, "/v2/models/same/infer", "POST", b"{}")[0] == 400


def test_environment_variables_choose_model_and_inference(tmp_path: Path) -> None:
    write_model(tmp_path, "same", CONFIG)
    write_model(tmp_path, "other", CONFIG)
    settings = {MODEL: "other", "SAGEMAKER_TRITON_INFERENCE_TYPE": "generate"}
    with _start(tmp_path, **settings) as server:
        server.wait_for_log("is ready: http_port")
        status, _, answer = _ask(server.http_port, "/invocations", "POST", b'{"I": [1, 2]}')
        document = json.loads(answer)
        assert (status, document["model_name"], document["O"]) == (200, "other", [1, 2])


def test_several_models_need_the_name_of_one(tmp_path: Path) -> None:
    write_model(tmp_path, "same", CONFIG)
    write_model(tmp_path, "other", CONFIG)
    with _start(tmp_path) as server:
        server.wait_for_log("is ready: http_port")
        status, _, answer = _ask(
            server.http_port, "/invocations", "POST", json.dumps({"inputs": [INPUT]}).encode()
        )
        assert (status, f"set {MODEL}" in json.loads(answer)["error"]) == (400, True)


def test_models_are_loaded_from_folders_and_unloaded(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_model(tmp_path / "a", "first", f'name: "first"\n{CONFIG}')
    write_model(tmp_path / "b", "second", CONFIG)
    write_model(tmp_path / "flawed", "flawed", 'backend: "none"\n')
    body = json.dumps({"inputs": [INPUT]}).encode()

    def load(name: object, url: object) -> int:
        document = json.dumps({"model_name": name, "url": url}).encode()
        return _ask(server.http_port, "/models", "POST", document)[0]

    with _start(tmp_path / "empty", *ALONE) as server:
        server.wait_for_log("is ready: v2.sagemaker_port")
        port = server.http_port
        a, b = (str(path) for path in (tmp_path / "a", tmp_path / "b" / "second"))
        assert [load("0a", a), load("0b", b), load("0a", a)] == [200, 200, 409]
        listed = [{"modelName": "0a", "modelUrl": a}, {"modelName": "0b", "modelUrl": b}]
        assert json.loads(_ask(port, "/models")[2]) == {"models": listed}
        assert json.loads(_ask(port, "/models/0b")[2]) == listed[1]
        status, _, answer = _ask(port, "/models/0a/invoke", "POST", body)
        assert (status, json.loads(answer)["model_name"]) == (200, "0a")

        assert _ask(port, "/models/0a", "DELETE")[0] == 200
        assert [_ask(port, "/models/0a", method)[0] for method in ("GET", "DELETE")] == [404, 404]
        assert _ask(port, "/models/0a/invoke", "POST", body)[0] == 404
        assert _ask(port, "/models/0b/invoke", "POST", body)[0] == 200
        assert load("0a", a) == 200

        wrong = [load("x", "a"), load("x", str(tmp_path)), load(1, a), load("../x", a)]
        assert wrong == [400] * 4
        assert load("x", str(tmp_path / "flawed")) in (400, 500)
        assert _ask(port, "/models/x")[0] == 404
        assert _ask(port, "/models", "DELETE")[0] == 405


def test_an_unknown_mode_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="SAGEMAKER_TRITON_PING_MODE is 'often': write ready or live"):
        read_settings({"SAGEMAKER_TRITON_PING_MODE": "often"})

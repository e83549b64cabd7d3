"""Flags that protect a model repository's server, asked by Triton's clients over HTTP and gRPC."""

from __future__ import annotations

import contextlib
import hashlib
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as v2_grpc
import tritonclient.http as v2_http
from tritonclient.utils import InferenceServerException

from tests.support.command_line import paddlewheel
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import PATIENCE_S
from tests.support.triton_repository import write_model

TENSORS = """
backend: "identity"
input { name: "I" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "O" data_type: TYPE_FP32 dims: [ 2 ] }
"""
ASKS = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "I")
            asked = pb_utils.InferenceRequest(
                model_name="same", requested_output_names=["O"], inputs=[tensor]
            ).exec()
            answers.append(asked)
        return answers
"""
ADMIN = "model-repository,statistics,trace,logging,shared-memory,model-config:admin-key=a=secret"
CLIENT = "inference,metadata:infer-key=infer-value"
GRPC = "triton-grpc-protocol-"
HTTP_KEYS = ({"admin-key": "a=secret"}, {"infer-key": "infer-value"})
GRPC_KEYS = tuple({GRPC + key: value for key, value in group.items()} for group in HTTP_KEYS)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    models = tmp_path_factory.mktemp("models")
    write_model(models, "same", TENSORS)
    write_model(models, "asks", TENSORS.replace('"identity"', '"python"'), ASKS)
    flags = [f"--http-restricted-api={group}" for group in (ADMIN, CLIENT)]
    flags += [f"--grpc-restricted-protocol={group}" for group in (ADMIN, CLIENT)]
    flags += ["--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=false"]
    with RepositoryProcess(models, arguments=flags) as started:
        yield started


@pytest.fixture(params=[v2_http, v2_grpc], ids=["http", "grpc"])
def asking(request: pytest.FixtureRequest, service: RepositoryProcess) -> tuple[Any, Any, Any]:
    """The module of a client, the client, and the headers of both groups."""
    protocol = request.param
    port = service.http_port if protocol is v2_http else service.rpc_port
    keys = HTTP_KEYS if protocol is v2_http else GRPC_KEYS
    return protocol, protocol.InferenceServerClient(f"127.0.0.1:{port}"), keys


def _calls(protocol: Any, client: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The calls of both groups: each takes headers."""
    tensor = protocol.InferInput("I", [2], "FP32")
    tensor.set_data_from_numpy(np.float32([1, 2]))
    administration = {
        "index": client.get_model_repository_index,
        "load": lambda headers: client.load_model("same", headers=headers),
        "unload": lambda headers: client.unload_model("nothing", headers=headers),
        "statistics": lambda headers: client.get_inference_statistics("same", headers=headers),
        "all statistics": lambda headers: client.get_inference_statistics(headers=headers),
        "trace": lambda headers: client.get_trace_settings(headers=headers),
        "model's trace": lambda headers: client.get_trace_settings("same", headers=headers),
        "logging": lambda headers: client.get_log_settings(headers=headers),
        "config": lambda headers: client.get_model_config("same", headers=headers),
    }
    use = {
        "server": lambda headers: client.get_server_metadata(headers=headers),
        "model": lambda headers: client.get_model_metadata("same", headers=headers),
        "infer": lambda headers: client.infer("same", [tensor], headers=headers),
        "bls": lambda headers: client.infer("asks", [tensor], headers=headers),
    }
    return administration, use


def test_each_api_answers_only_with_the_header_of_its_group(asking: tuple[Any, Any, Any]) -> None:
    protocol, client, keys = asking
    code = "403" if protocol is v2_http else "StatusCode.UNAVAILABLE"
    for calls, header, other in zip(_calls(protocol, client), keys, reversed(keys), strict=True):
        ((name, value),) = header.items()
        for call in calls.values():
            for wrong in ({}, other, {name: f"{value}x"}):
                with pytest.raises(
                    InferenceServerException, match=f"restricted, expecting header '{name}'"
                ) as refusal:
                    call(headers=wrong)
                assert refusal.value.status() == code
            call(headers=header)
    assert client.is_server_live()  # health is in no group
    assert client.is_server_ready()
    assert client.is_model_ready("same")


def test_shared_memory_is_off_and_restricted(asking: tuple[Any, Any, Any]) -> None:
    _, client, (admin, _) = asking
    with pytest.raises(InferenceServerException, match="restricted, expecting header"):
        client.register_system_shared_memory("r", "/x", 1)
    with pytest.raises(InferenceServerException, match="Start the server with '--allow-client-shm=true'"):
        client.register_system_shared_memory("r", "/x", 1, headers=admin)
    with pytest.raises(InferenceServerException, match="Start the server with '--allow-client-shm=true'"):
        client.get_system_shared_memory_status(headers=admin)


def test_no_other_protocol_or_spelling_of_a_path_leads_around_a_restriction(
    service: RepositoryProcess,
) -> None:
    body = b'{"inputs": [{"name": "I", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}'
    for method, path in (
        ("POST", "/v1/models/same:predict"), ("GET", "/v1/models"), ("POST", "/same/prediction"),
        ("POST", "/v2/models/same/versions/1/infer"), ("POST", "/v2/models/same/%69nfer"),
        ("POST", "/v2/models/same/generate"), ("POST", "/v2/models/same/infer?admin-key=a"),
        ("POST", "http://host/v2/models/same/infer"), ("POST", "/v2/repository/models/same/%75nload"),
        ("POST", "/v2/repository/any/index"), ("GET", "/openapi.json"), ("GET", "/docs"), ("GET", "/metrics"),
        ("GET", "/v2/models/same/versions/1/stats"), ("POST", "/v2/models/same/trace/setting"),
        ("POST", "/v2/repository/models/same/upgrade"), ("DELETE", "/v2/repository/models/same/upgrade"),
        ("GET", "/v2/repository/models/same/upgrade"), ("GET", "/v2/repository/models/same/upgrade/accepted"),
    ):  # fmt: skip
        connection = service.connection()
        with contextlib.closing(connection):
            connection.request(method, path, body if method == "POST" else None)
            answer = connection.getresponse()
            assert (answer.status, b"This API is restricted" in answer.read()) == (403, True), path
    with grpc.insecure_channel(service.rpc_address) as channel, pytest.raises(grpc.RpcError) as refusal:
        channel.unary_unary("/baidu.paddle_serving.pipeline_serving.PipelineService/inference")(b"")
    assert "protocol is restricted" in refusal.value.details()


def test_a_stream_is_restricted_as_a_call_is(service: RepositoryProcess) -> None:
    with grpc.insecure_channel(service.rpc_address) as channel:
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        with pytest.raises(grpc.RpcError) as refusal:
            next(stream(iter([b""])))
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "expecting header 'triton-grpc-protocol-infer-key'" in refusal.value.details()
        assert b"Unable to parse" not in next(stream(iter([b""]), metadata=tuple(GRPC_KEYS[1].items())))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--http-restricted-api=health"], "write API,API,...:KEY=VALUE"),
        (["--http-restricted-api=health:k="], "write API,API,...:KEY=VALUE"),
        (["--grpc-restricted-protocol=health,nothing:k=v"], "unknown API 'nothing'; use health, metadata"),
        (
            [
                "--http-restricted-api=model-repository,health:k1=v",
                "--http-restricted-api=metadata,health:k2=v",
            ],
            "--http-restricted-api: 'health' can not be in more than one group",
        ),
        (["--model-load-gpu-limit=0:0.5"], "--model-load-gpu-limit is refused: the GPU memory"),
        (["--grpc-restricted-protocol=health:a b=v"], "--grpc-restricted-protocol: the key is part"),
    ],
)
def test_a_restriction_that_can_not_be_kept_ends_the_start(
    flags: list[str], expected: str, tmp_path: Path
) -> None:
    answer = paddlewheel("serve", f"--model-repository={tmp_path}", *flags)
    assert (answer.returncode, expected in answer.stderr) == (2, True), answer.stderr


def _checksum(algorithm_and_file: str, digest: str) -> str:
    parameter = f'parameters {{ key: "{algorithm_and_file}" value: "{digest}" }}'
    return f'{TENSORS} model_repository_agents {{ agents [ {{ name: "checksum" {parameter} }} ] }}'


def test_the_checksum_agent_refuses_files_of_another_content_before_they_run(tmp_path: Path) -> None:
    models = tmp_path / "models"
    content = b"pickle of an embedding"
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    ran = f"open({str(tmp_path / 'ran')!r}, 'w')\n{ASKS}"
    for name, key, value in (
        ("good", "MD5:table", digest), ("other", "MD5:table", digest[::-1]), ("gone", "md5:1/none", digest),
        ("out", "MD5:../good/table", digest), ("sha", "SHA256:table", digest), ("colon", "table", digest),
    ):  # fmt: skip
        folder = write_model(models, name, _checksum(key, value))
        (folder / "table").write_bytes(content)
    code = write_model(models, "code", _checksum("MD5:1/model.py", digest).replace("identity", "python"), ran)
    assert (code / "1" / "model.py").is_file()
    write_model(models, "agent", TENSORS + 'model_repository_agents { agents { name: "decrypt" } }')
    with RepositoryProcess(models, arguments=["--strict-readiness=false"]) as service:
        index = service.http("/v2/repository/index", b"{}").json
        reasons = {model["name"]: model.get("reason", model["state"]) for model in index}
        assert reasons.pop("good") == "READY"
        for name, reason in (
            ("other", f"Mismatched MD5 hash for file table, expect: {digest[::-1]}, got: {digest}"),
            ("gone", "failed to open file for read 1/none"),
            ("out", "leads out of the model's folder"),
            ("sha", "Unsupported checksum algorithm: SHA256"),
            ("colon", "failed to parse key: table"),
            ("code", "Mismatched MD5 hash for file 1/model.py"),
            ("agent", "there is no agent 'decrypt' here"),
        ):
            assert reason in reasons.pop(name)
        assert reasons == {}
    assert not (tmp_path / "ran").exists()


def test_connections_over_grpc_have_the_greatest_age_that_a_flag_sets(tmp_path: Path) -> None:
    write_model(tmp_path, "same", TENSORS)
    flags = ["--grpc-max-connection-age=100", "--grpc-max-connection-age-grace=100"]
    nothing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with (
        RepositoryProcess(tmp_path, arguments=flags) as service,
        grpc.insecure_channel(service.rpc_address) as channel,
    ):
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        with pytest.raises(grpc.RpcError) as ended:
            next(stream(iter(nothing.get, None), timeout=PATIENCE_S))
        nothing.put(None)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE

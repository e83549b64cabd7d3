"""API keys on every endpoint: who may ask, how much, and that no key is ever told."""

from __future__ import annotations

import hashlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from client.errors import RequestRefused
from client.headers import VARIABLE
from client.http_client import HttpClient
from client.protos.kserve_v2_pb2 import ModelInferRequest
from client.protos.pipeline_service_pb2 import Request
from client.rpc_client import RpcClient
from pipeline.config.api_keys import read_api_keys
from pipeline.config.config_file import SecurityConfig
from pipeline.errors import ConfigError
from tests.fuzz import http2
from tests.support.raw_answers import received_until
from tests.support.service_process import (
    APPS,
    PATIENCE_S,
    ROOT,
    RPC_METHOD,
    ServiceProcess,
    key_value,
    wait_until,
)

ALICE, BOB, CAROL = "alice-0123456789abcdef", "bob-0123456789abcdef", "carol-0123456789abcdef"
GOOD = key_value({"number": "21"})
V2 = "/inference.GRPCInferenceService/"
V2_BODY = b'{"inputs":[{"name":"number","shape":[1],"datatype":"BYTES","data":["21"]}]}'


def keys_text(*names: str) -> str:
    digest = hashlib.sha256(BOB.encode()).hexdigest()
    lines = {
        "alice": f"alice:{ALICE}",
        "bob": f"bob:sha256:{digest}  pending=2",
        "carol": f"carol:{CAROL} rate=0.001",
    }
    return "# who may ask\n\n" + "".join(lines[name] + "\n" for name in names)


class Guarded(ServiceProcess):
    """Asks with Alice's key where a test does not say otherwise."""

    def http(self, path: str, body: Any = None, **more: Any) -> Any:
        more["headers"] = {"X-API-Key": ALICE, **(more.get("headers") or {})}
        return super().http(path, body, **more)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(keys_text("alice", "bob", "carol"))
    path.chmod(0o644)
    return path


@pytest.fixture(scope="module")
def service(keys: Path) -> Iterator[Guarded]:
    config = {"security": {"api_keys": str(keys)}, "logging": {"level": "DEBUG"}}
    with Guarded(APPS / "echo.py", config) as process:
        yield process


def test_openais_and_teis_clients_are_refused_in_their_forms(service: Guarded) -> None:
    body = json.dumps({"input": "a", "inputs": "a"})

    def ask(path: str, key: str) -> Any:
        return ServiceProcess.http(service, path, body, headers={"Authorization": f"Bearer {key}"})

    refused = ask("/v1/embeddings", "nobody")
    assert refused.status == 401 and refused.json["error"]["code"] == "invalid_api_key"
    assert ask("/embed", "nobody").json["error_type"] == "Validation"
    assert ask("/v1/embeddings", ALICE).status == 404  # for the service has no vectors


def called(service: ServiceProcess, method: str, data: bytes, *metadata: tuple[str, str]) -> Any:
    """The answer's bytes, or the status code."""
    with service.channel() as channel:
        try:
            return channel.unary_unary(method)(data, metadata=metadata, timeout=30)
        except grpc.RpcError as exc:
            return exc.code()


NO_KEY: list[dict[str, str]] = [
    {"X-API-Key": ""},
    {"X-API-Key": "nobody-0123456789abcdef"},
    {"X-API-Key": "", "Authorization": f"Basic {ALICE}"},
    {"X-API-Key": ALICE[:-1]},
    {"X-API-Key": hashlib.sha256(BOB.encode()).hexdigest()},
]


@pytest.mark.parametrize("headers", NO_KEY, ids=["none", "unknown", "another scheme", "cut off", "a digest"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/test/prediction", GOOD),
        ("/v2/models/test/infer", V2_BODY),
        ("/v2", None),
        ("/metrics", None),
        ("/v1/models/test:predict", b'{"instances":["a"]}'),
        ("/v2/systemsharedmemory/status", None),
    ],
)
def test_without_a_key_every_path_is_401_in_its_own_form(
    service: ServiceProcess, path: str, body: bytes | None, headers: dict[str, str]
) -> None:
    answer = service.http(path, body, headers=headers)
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    kserve = path.startswith(("/v1", "/v2"))
    told = answer.json["error" if kserve else "err_msg"]
    assert "API key" in told and "X-API-Key" in told
    if not kserve:
        assert answer.json["err_no"] == 3004


@pytest.mark.parametrize(
    "headers",
    [{}, {"X-API-Key": BOB}, {"X-API-Key": "", "authorization": f"bearer {BOB}"}],
    ids=["plain", "hashed", "bearer"],
)
def test_a_key_of_the_file_opens_http(service: ServiceProcess, headers: dict[str, str]) -> None:
    if not headers.get("X-API-Key", ALICE):
        headers = {"Authorization": f"Bearer {BOB}"}
        answer = ServiceProcess.http(service, "/test/prediction", GOOD, headers=headers)
    else:
        answer = service.http("/test/prediction", GOOD, headers=headers)
    assert (answer.status, answer.json["err_no"]) == (200, 0)
    assert service.http("/v2/models/test/infer", V2_BODY).status == 200


def test_a_stranger_is_refused_before_its_body(service: ServiceProcess) -> None:
    connection = service.connection()
    connection.putrequest("POST", "/test/prediction")
    connection.putheader("Content-Length", "50000000")
    connection.endheaders()  # and not a byte of the body
    assert connection.getresponse().status == 401
    connection.close()


RPC_CALLS = {
    RPC_METHOD: Request(key=["number"], value=["21"]).SerializeToString(),
    V2 + "ModelInfer": ModelInferRequest(model_name="test").SerializeToString(),
    V2 + "ServerMetadata": b"",
    V2 + "RepositoryIndex": b"",
}


@pytest.mark.parametrize("method", RPC_CALLS)
def test_every_method_asks_for_a_key(service: ServiceProcess, method: str) -> None:
    data = RPC_CALLS[method]
    for metadata in ([], [("x-api-key", "nobody-0123456789abcdef")], [("authorization", ALICE)]):
        assert called(service, method, data, *metadata) is grpc.StatusCode.UNAUTHENTICATED
    for shown in (("x-api-key", ALICE), ("authorization", f"Bearer {BOB}")):
        assert called(service, method, data, shown) is not grpc.StatusCode.UNAUTHENTICATED


def test_a_stream_asks_for_a_key(service: ServiceProcess) -> None:
    with service.channel() as channel, pytest.raises(grpc.RpcError) as told:
        list(channel.stream_stream(V2 + "ModelStreamInfer")(iter([b""]), timeout=30))
    assert told.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("method", [RPC_METHOD, V2 + "ModelInfer", V2 + "ModelStreamInfer"])
def test_a_call_without_a_key_is_refused_before_its_message_is_there(
    service: ServiceProcess, method: str
) -> None:
    with socket.create_connection(("127.0.0.1", service.rpc_port), timeout=PATIENCE_S) as client:
        head = http2.frame(http2.HEADERS, http2.headers(method.encode()), http2.END_HEADERS, 1)
        client.sendall(http2.opening() + head)
        assert b"API key" in received_until(client, b"grpc-message")


@pytest.mark.parametrize("method", [V2 + "ServerLive", "/grpc.health.v1.Health/Check"])
def test_an_open_call_is_answered_without_its_message(service: ServiceProcess, method: str) -> None:
    with socket.create_connection(("127.0.0.1", service.rpc_port), timeout=PATIENCE_S) as client:
        head = http2.frame(http2.HEADERS, http2.headers(method.encode()), http2.END_HEADERS, 1)
        client.sendall(http2.opening() + head)
        received_until(client, b"\x08\x01")


@pytest.mark.parametrize("path", ["/test/prediction", "/metrics", "/health/live", "/docs", "/v2/health/live"])
def test_a_body_without_a_key_is_refused_before_it_is_there(service: ServiceProcess, path: str) -> None:
    with socket.create_connection(("127.0.0.1", service.http_port), timeout=PATIENCE_S) as client:
        client.sendall(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n".encode())
        status = received_until(client, b"}")[:12]
    closed = path in ("/test/prediction", "/metrics")
    assert status == (b"HTTP/1.1 401" if closed else b"HTTP/1.1 405")


def test_health_is_open(service: ServiceProcess) -> None:
    for page in ("/health/live", "/health/ready", "/v2/health/ready"):
        assert ServiceProcess.http(service, page).status == 200
    assert called(service, V2 + "ServerReady", b"") == b"\x08\x01"
    assert called(service, "/grpc.health.v1.Health/Check", b"") == b"\x08\x01"


def test_the_page_at_docs_is_open_and_what_it_shows_is_not(service: ServiceProcess) -> None:
    assert ServiceProcess.http(service, "/docs").status == 200
    assert ServiceProcess.http(service, "/openapi.json").status == 401
    assert ServiceProcess.http(service, "/overview.json").status == 401
    assert service.http("/overview.json").status == 200
    document = service.http("/openapi.json").json
    (scheme,) = document["components"]["securitySchemes"].values()
    assert (scheme["scheme"], len(document["security"])) == ("bearer", 1)


@pytest.mark.parametrize("gate", ["", "/accepted", "/refused"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_upgrades_need_a_key(service: Guarded, method: str, gate: str) -> None:
    path = f"/v2/repository/models/echo/upgrade{gate}"
    assert ServiceProcess.http(service, path, method=method).status == 401
    assert service.http(path, method=method).status != 401


def test_what_is_open_is_configured(keys: Path) -> None:
    security = {"api_keys": str(keys), "open_health": False, "open_metrics": True}
    with Guarded(APPS / "echo.py", {"security": security}) as service:
        assert ServiceProcess.http(service, "/health/ready").status == 401
        assert called(service, V2 + "ServerReady", b"") is grpc.StatusCode.UNAUTHENTICATED
        assert ServiceProcess.http(service, "/metrics").status == 200


def test_the_clients_show_their_key(service: ServiceProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [
        lambda **key: HttpClient(service.url, service="test", retries=0, **key),
        lambda **key: RpcClient(f"127.0.0.1:{service.rpc_port}", service="test", retries=0, **key),
    ]
    for make in clients:
        with make(api_key=ALICE) as client:
            assert client.predict({"number": "4"}).outputs["doubled"] == "8"
        with make() as client, pytest.raises(RequestRefused) as told:
            client.predict({"number": "4"})
        assert told.value.err_no == 3004
        monkeypatch.setenv(VARIABLE, BOB)
        with make() as client:
            assert client.predict({"number": "4"}).outputs["doubled"] == "8"
        monkeypatch.delenv(VARIABLE)


def test_a_key_that_is_no_header_is_refused_by_the_client() -> None:
    with pytest.raises(ValueError, match="API key"):
        HttpClient(api_key="a\r\nX-Other: b")


def test_the_scripts_take_a_key(service: ServiceProcess) -> None:
    command = [sys.executable, "-m", "client.load", "--url", service.url, "--service", "test"]
    command += ["--threads", "1", "--loops", "2", "--api-key", ALICE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_key_has_no_more_pending_than_its_own_limit(service: ServiceProcess, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    waiting = key_value({"action": "wait", "argument": str(gate)})
    with ThreadPoolExecutor(2) as pool:
        try:
            held = [
                pool.submit(service.http, "/test/prediction", waiting, headers={"X-API-Key": BOB})
                for _ in range(2)
            ]
            wait_until(lambda: service.metric("paddlewheel_key_pending", key="bob") == 2, "both are pending")
            refused = service.http("/test/prediction", GOOD, headers={"X-API-Key": BOB})
            assert (refused.status, refused.json["err_no"]) == (429, 3001)
            assert "'bob'" in refused.json["err_msg"] and refused.headers["retry-after"]
            assert service.http("/v2/models/test/infer", V2_BODY, headers={"X-API-Key": BOB}).status == 503
            code = called(service, RPC_METHOD, RPC_CALLS[RPC_METHOD], ("x-api-key", BOB))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        finally:
            gate.touch()
        assert [each.result().status for each in held] == [200, 200]
    assert service.http("/test/prediction", GOOD, headers={"X-API-Key": BOB}).status == 200
    assert service.metric("paddlewheel_key_refused_total", key="bob") == 3


def test_a_key_asks_no_faster_than_its_rate(service: ServiceProcess) -> None:
    first, second = (service.http("/test/prediction", GOOD, headers={"X-API-Key": CAROL}) for _ in range(2))
    assert (first.status, second.status) == (200, 429)
    assert 900 < int(second.headers["retry-after"]) <= 1000


def test_sighup_reads_the_keys_again(service: ServiceProcess, keys: Path) -> None:
    def status(key: str) -> int:
        return service.http("/test/prediction", GOOD, headers={"X-API-Key": key}).status

    assert status(BOB) == 200
    keys.write_text(keys_text("alice", "carol"))
    service.process.send_signal(signal.SIGHUP)
    service.wait_for_log("API keys are read again")
    assert (status(ALICE), status(BOB)) == (200, 401)
    keys.write_text("alice\n")
    service.process.send_signal(signal.SIGHUP)
    service.wait_for_log("The API keys stay as they were")
    assert "line 1" in service.log
    assert (status(ALICE), status(BOB)) == (200, 401)


def test_metrics_and_the_log_know_names_and_no_log_line_holds_a_key(service: ServiceProcess) -> None:
    assert service.http("/test/prediction", GOOD).status == 200
    called(service, RPC_METHOD, RPC_CALLS[RPC_METHOD], ("x-api-key", ALICE))
    assert service.metric("paddlewheel_key_requests_total", key="alice") >= 2
    service.wait_for_log("(alice) POST /test/prediction: ok")
    assert "other users can read" in service.log
    for key in (ALICE, BOB, CAROL, "nobody-0123456789abcdef", hashlib.sha256(ALICE.encode()).hexdigest()):
        assert key not in service.log
        assert key not in service.http("/metrics").body.decode()
    for pid in (service.process.pid, *service.worker_pids()):
        assert ALICE.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert ALICE.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no key"),
        ("alice\n", "line 1: no name"),
        (f"a b:{ALICE}\n", "line 1: no name"),
        (f"a/b:{ALICE}\n", "line 1: no name"),
        ("\nalice:short\n", "line 2: a key has at least 16"),
        ("alice:sha256:beef\n", "line 1: no SHA-256"),
        (f"alice:{ALICE}\nbob:{ALICE}\n", "line 2: the key of a line above"),
        (f"alice:{ALICE} burst=3\n", "line 1: behind the key"),
        (f"alice:{ALICE} rate=fast\n", "line 1: a limit is no number"),
        (f"alice:{ALICE} rate=-1\n", "line 1: a limit is no number"),
    ],
)
def test_a_bad_line_is_told_by_its_number_and_not_by_its_key(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_api_keys(SecurityConfig(api_keys=str(path)))
    assert told in refused.value.message
    assert ALICE not in refused.value.message


def test_a_service_does_not_start_with_a_bad_file(tmp_path: Path) -> None:
    with ServiceProcess(
        APPS / "echo.py", {"security": {"api_keys": str(tmp_path / "none")}}, wait=False
    ) as service:
        assert service.exit_code() == 2
        assert "security.api_keys" in service.log


def test_a_comment_ends_with_its_line_whatever_characters_it_has(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# not any more\u2028eve:{'e' * 64}\n{keys_text('alice')}", "utf-8")
    assert [key.name for key in read_api_keys(SecurityConfig(api_keys=str(path)))] == ["alice"]


def test_limits_of_the_configuration_hold_for_lines_without_their_own(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(keys_text("alice", "bob"))
    alice, bob = read_api_keys(SecurityConfig(api_keys=str(path), key_pending=7, key_rate=2.5))
    assert (alice.name, alice.pending, alice.rate) == ("alice", 7, 2.5)
    assert (bob.name, bob.pending, bob.rate) == ("bob", 2, 2.5)
    assert json.dumps([alice.digest.hex()]).count(ALICE) == 0

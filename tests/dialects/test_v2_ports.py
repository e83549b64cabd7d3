"""Triton's ports: `v2.http_port`, `v2.grpc_port` and `v2.metrics_port`."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as v2_grpc
import tritonclient.http as v2_http

from client.tls import Tls
from tests.support.free_ports import free_port
from tests.support.service_process import APPS, ROOT, ServiceProcess, read_answer, wait_until

TLS_FILES = ROOT / "tests" / "fixtures" / "tls"


def ports() -> dict[str, int]:
    return {name: free_port() for name in ("http_port", "grpc_port", "metrics_port")}


@pytest.fixture(scope="module")
def v2() -> dict[str, int]:
    return ports()


@pytest.fixture(scope="module")
def simple(v2: dict[str, int]) -> Iterator[ServiceProcess]:
    config = {"v2": v2, "limits": {"body_bytes": 100_000}}
    with ServiceProcess(APPS / "triton.py", config, name="simple", env={"MODEL": "simple"}) as service:
        yield service


def feeds(protocol: object, first: int = 1) -> list[object]:
    given = []
    for name in ("INPUT0", "INPUT1"):
        one = protocol.InferInput(name, [1, 16], "INT32")  # type: ignore[attr-defined]
        one.set_data_from_numpy(np.full((1, 16), first, np.int32))
        given.append(one)
    return given


def page(port: int, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body)
    answer = read_answer(connection)
    connection.close()
    return answer.status, answer.body


def test_what_the_main_ports_answer_is_answered_there_too(simple: ServiceProcess, v2: dict[str, int]) -> None:
    with v2_http.InferenceServerClient(f"127.0.0.1:{v2['http_port']}") as over_http:
        assert over_http.is_server_ready()
        assert over_http.infer("simple", feeds(v2_http)).as_numpy("OUTPUT0")[0, 0] == 2
        with v2_grpc.InferenceServerClient(f"127.0.0.1:{v2['grpc_port']}") as over_grpc:
            assert over_grpc.infer("simple", feeds(v2_grpc, 3)).as_numpy("OUTPUT0")[0, 0] == 6
        assert page(v2["http_port"], "/health/ready")[0] == 200
        assert simple.http("/v2").json["name"] == "triton"
        simple.wait_for_log(f"v2.http_port {v2['http_port']}, v2.grpc_port {v2['grpc_port']}")


def test_regions_and_settings_are_those_of_the_other_ports(
    simple: ServiceProcess, v2: dict[str, int]
) -> None:
    with v2_grpc.InferenceServerClient(f"127.0.0.1:{v2['grpc_port']}") as over_grpc:
        over_grpc.update_log_settings({"log_verbose_level": 3})
    assert simple.http("/v2/logging").json["log_verbose_level"] == 3


def test_the_metrics_port_has_metrics_alone(simple: ServiceProcess, v2: dict[str, int]) -> None:
    status, body = page(v2["metrics_port"], "/metrics")
    assert status == 200 and b"paddlewheel_pending_requests" in body
    assert b'nv_inference_request_success{model="simple",version="1"}' in body
    assert 0 <= simple.metric("nv_cpu_utilization") <= 1
    used, total = (simple.metric(f"nv_cpu_memory_{one}_bytes") for one in ("used", "total"))
    assert 0 < used < total
    assert page(v2["metrics_port"], "/v2/health/live")[0] == 404
    assert page(v2["metrics_port"], "/v2/models/simple/infer", "POST", b"{}")[0] == 404
    assert page(v2["metrics_port"], "/metrics", "POST", b"") == (405, b'{"error":"Method Not Allowed"}')


def test_limits_hold_there_too(simple: ServiceProcess, v2: dict[str, int]) -> None:
    assert page(v2["http_port"], "/v2/models/simple/infer", "POST", bytes(100_001))[0] == 413
    target = f"127.0.0.1:{v2['grpc_port']}"
    with grpc.insecure_channel(target) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(bytes(100_001), timeout=60)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("key", ["http_port", "grpc_port", "metrics_port"])
def test_a_taken_port_is_told_by_its_key(key: str) -> None:
    with socket.create_server(("", 0)) as taken:
        number = taken.getsockname()[1]
        config = {"v2": {key: number}}
        with ServiceProcess(APPS / "triton.py", config, env={"MODEL": "simple"}, wait=False) as service:
            assert service.exit_code() == 1
            assert f"v2.{key} {number} can't be opened" in service.log


def test_certificates_are_those_of_the_main_ports() -> None:
    v2 = ports()
    tls = {"cert": str(TLS_FILES / "server.pem"), "key": str(TLS_FILES / "server.key")}
    trusting = Tls(TLS_FILES / "ca.pem")
    config = {"v2": v2, "tls": tls}
    with ServiceProcess(APPS / "triton.py", config, name="simple", env={"MODEL": "simple"}, tls=trusting):
        for key, path in (("http_port", "/v2"), ("metrics_port", "/metrics")):
            context = trusting.context()
            secure = http.client.HTTPSConnection("127.0.0.1", v2[key], context=context, timeout=60)
            with contextlib.closing(secure):
                secure.request("GET", path)
                assert read_answer(secure).status == 200
            with pytest.raises((http.client.HTTPException, OSError)):
                page(v2[key], path)
        target = f"localhost:{v2['grpc_port']}"
        with grpc.secure_channel(target, trusting.credentials()) as channel:
            assert (
                channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=60)
                == b"\x08\x01"
            )


def test_keys_are_asked_for_there_too(tmp_path: Path) -> None:
    v2, keys = ports(), tmp_path / "keys"
    keys.write_text("alice:alice-0123456789abcdef\n")
    config = {"v2": v2, "security": {"api_keys": str(keys)}}
    with ServiceProcess(APPS / "triton.py", config, name="simple", env={"MODEL": "simple"}):
        assert page(v2["http_port"], "/v2/models/simple/infer", "POST", b"{}")[0] == 401
        assert page(v2["http_port"], "/v2/systemsharedmemory/status")[0] == 401
        assert page(v2["metrics_port"], "/metrics")[0] == 401
        with v2_grpc.InferenceServerClient(f"127.0.0.1:{v2['grpc_port']}") as over_grpc:
            with pytest.raises(v2_grpc.InferenceServerException, match="UNAUTHENTICATED"):
                over_grpc.get_system_shared_memory_status()
            bearer = {"authorization": "Bearer alice-0123456789abcdef"}
            assert not over_grpc.get_system_shared_memory_status(headers=bearer).regions


def test_what_was_admitted_on_them_is_answered_before_the_end(tmp_path: Path) -> None:
    v2, gate = ports(), tmp_path / "gate"
    env = {"MODEL": "simple", "WAIT_FOR": str(gate)}

    def sum_of_77s(protocol: Any, port: str) -> int:
        with protocol.InferenceServerClient(f"127.0.0.1:{v2[port]}") as asking:
            return int(asking.infer("simple", feeds(protocol, 77)).as_numpy("OUTPUT0")[0, 0])

    with ServiceProcess(APPS / "triton.py", {"v2": v2}, name="simple", env=env) as service:
        with ThreadPoolExecutor(2) as pool:
            endpoints = ((v2_http, "http_port"), (v2_grpc, "grpc_port"))
            asked = [pool.submit(sum_of_77s, *endpoint) for endpoint in endpoints]
            wait_until(lambda: service.metric("paddlewheel_pending_requests") == 2, "both are admitted")
            service.terminate()
            service.wait_for_log("Stopping: not ready any more, 2 requests pending")
            gate.touch()
            assert [each.result() for each in asked] == [154, 154]
        assert service.exit_code() == 0
        for port in v2.values():
            with pytest.raises(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=60)

"""FastServer uses private names of grpcio: the service with another grpcio, and after a fault in grpcio."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc as v2_grpc

from client.protos.kserve_v2_pb2 import ModelInferRequest
from tests.fuzz import http2
from tests.support.repository_process import RepositoryProcess
from tests.support.sequence_models import build_inputs, first, write_sum
from tests.support.service_process import APPS, PATIENCE_S, ROOT, ServiceProcess, wait_until

IN_THE_FRONT = "import os, sys\nif 'pipeline.front' in ' '.join(sys.orig_argv):\n"
PLAIN_GRPC = "FastServer does not support this version"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
UNKNOWN_PATH = b"/\xff\xfe"


@contextlib.contextmanager
def changed_grpcio(
    folder: Path, *lines: str, config: Mapping[str, Any] | None = None
) -> Iterator[ServiceProcess]:
    """Start a service whose front runs the lines first, as if another grpcio was installed."""
    with ServiceProcess(APPS / "echo.py", config, env=change_front(folder, *lines)) as service:
        yield service


def change_front(folder: Path, *lines: str) -> dict[str, str]:
    """Write a module that runs the lines in the front. Return the environment variables that load it."""
    (folder / "sitecustomize.py").write_text(IN_THE_FRONT + "".join(f"    {line}\n" for line in lines))
    return {"PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}


def infer_in_stream(service: ServiceProcess) -> list[bytes]:
    message = ModelInferRequest(model_name="test")
    tensor = message.inputs.add(name="number", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"2")
    with service.channel() as channel:
        return list(channel.stream_stream(STREAM)(iter([message.SerializeToString()]), timeout=PATIENCE_S))


def send_unknown_path(service: ServiceProcess) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", service.rpc_port), timeout=PATIENCE_S)
    client.sendall(http2.opening() + http2.call(UNKNOWN_PATH, b""))
    return client


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("del cygrpc._ServicerContext", "_ServicerContext"),
        (
            "server = cygrpc.AioServer; cygrpc.AioServer = lambda *args: server(*args)",
            "_make_request_call_future",
        ),
        ("import grpc; grpc.__version__ = '1.99.0'", "tested versions: 1.85.*"),
    ],
    ids=["class", "method", "version"],
)
def test_another_grpcio_is_served_with_plain_grpc_aio_and_one_log_line(
    tmp_path: Path, change: str, reason: str
) -> None:
    with changed_grpcio(tmp_path, "from grpc._cython import cygrpc", change) as service:
        assert service.rpc({"number": "2"}).value[1] == "4"
        assert len(infer_in_stream(service)) == 1
        assert service.log.count(PLAIN_GRPC) == 1
        assert reason in service.log
        service.process.send_signal(signal.SIGTERM)
        assert service.exit_code() == 0
        assert "Traceback" not in service.log


def test_a_path_that_is_not_utf8_is_rejected_and_the_service_continues(tmp_path: Path) -> None:
    with changed_grpcio(tmp_path, "pass") as service, send_unknown_path(service) as client:
        received = b""
        while b"Method not found!" not in received:
            received += (data := client.recv(4096))
            assert data, "the service has closed the connection"
        assert service.rpc({"number": "2"}).value[1] == "4"
        assert PLAIN_GRPC not in service.log


def test_a_path_that_is_not_utf8_ends_the_service_with_plain_grpc_aio(tmp_path: Path) -> None:
    """The log line says so. An open HTTP port would hide that the gRPC port is closed."""
    with (
        changed_grpcio(tmp_path, "from grpc._cython import cygrpc", "del cygrpc._ServicerContext") as service,
        send_unknown_path(service),
    ):
        assert service.exit_code() == 1
        assert "the listener of rpc_port has ended" in service.log


def test_a_fault_in_grpcio_ends_the_service_with_the_reason(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    lines = (
        "from grpc._cython import cygrpc",
        "class Failing(cygrpc.AioServer):",
        "    async def _request_registered_call(self, name):",
        "        call = await super()._request_registered_call(name)",
        f"        if os.path.exists({str(broken)!r}):",
        "            raise RuntimeError('grpcio has a fault')",
        "        return call",
        "cygrpc.AioServer = Failing",
    )
    with changed_grpcio(tmp_path, *lines) as service:
        assert service.rpc({"number": "2"}).value[1] == "4"
        broken.touch()
        with pytest.raises(grpc.RpcError):
            service.rpc({"number": "2"}, timeout_s=5)
        assert service.exit_code() == 1
        assert "the listener of rpc_port has ended" in service.log


def test_a_call_that_grpcio_keeps_is_cancelled_soon_after_a_stop(tmp_path: Path) -> None:
    """A call that arrives as a stop begins can stay in gRPC, which waits for it."""
    kept = tmp_path / "kept"
    lines = (
        "import asyncio, pathlib",
        "from grpc._cython import cygrpc",
        "class Keeping(cygrpc.AioServer):",
        "    async def _request_registered_call(self, name):",
        "        call = await super()._request_registered_call(name)",
        f"        pathlib.Path({str(kept)!r}).touch()",
        "        await asyncio.Event().wait()",
        "cygrpc.AioServer = Keeping",
    )
    config = {"dag": {"drain_timeout": 10 * PATIENCE_S}}
    with changed_grpcio(tmp_path, *lines, config=config) as service, ThreadPoolExecutor(1) as pool:
        call = pool.submit(service.rpc, {"number": "2"}, timeout_s=10 * PATIENCE_S)
        wait_until(kept.exists, "gRPC has the call")
        service.terminate()
        assert service.exit_code() == 0
        error = call.exception()
        assert isinstance(error, grpc.RpcError)
        assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def test_fast_server_is_tested_with_the_version_that_is_installed_for_users() -> None:
    version = importlib.metadata.version("grpcio")
    assert f"grpcio=={version}" in (ROOT / "requirements" / "serving.txt").read_text().split()


def test_a_cancelled_call_that_grpcio_hands_over_late_changes_no_state(tmp_path: Path) -> None:
    """grpcio can hand over a call after a later call of the same connection, under load."""
    kept = tmp_path / "kept"
    lines = (
        "import pathlib",
        "from grpc._cython import cygrpc",
        "class Overtaken(cygrpc.AioServer):",
        "    calls = []",
        "    async def _request_registered_call(self, name):",
        "        if self.calls:",
        "            return self.calls.pop()",
        "        call = await super()._request_registered_call(name)",
        f"        kept = pathlib.Path({str(kept)!r})",
        "        if name.endswith(b'/ModelInfer') and not kept.exists():",
        "            self.calls.append(call)",
        "            kept.touch()",
        "            call = await super()._request_registered_call(name)",
        "        return call",
        "cygrpc.AioServer = Overtaken",
    )
    write_sum(tmp_path / "models")
    with (
        RepositoryProcess(tmp_path / "models", env=change_front(tmp_path, *lines)) as service,
        v2_grpc.InferenceServerClient(f"127.0.0.1:{service.rpc_port}") as client,
    ):
        call = client.async_infer(
            "sum", build_inputs(1), lambda **_: None, sequence_id=1, sequence_start=True
        )
        wait_until(kept.exists, "grpcio has the first call")
        call.cancel()
        sums = [
            first(client.infer("sum", build_inputs(value), sequence_id=1, sequence_start=value == 10))
            for value in (10, 100, 1000)
        ]
        assert sums == [10, 110, 1110]

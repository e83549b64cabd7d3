"""Our gRPC server stands on names that grpcio keeps to itself: what happens where they change or fail."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import grpc
import pytest

from tests.support.service_process import APPS, ROOT, ServiceProcess

IN_THE_FRONT = "import os, sys\nif 'pipeline.front' in ' '.join(sys.orig_argv):\n"


def changed(folder: Path, *lines: str, wait: bool = True) -> ServiceProcess:
    """A service whose front runs the lines before anything else, as if grpcio were another."""
    (folder / "sitecustomize.py").write_text(IN_THE_FRONT + "".join(f"    {line}\n" for line in lines))
    search_path = os.pathsep.join((str(folder), str(ROOT)))
    return ServiceProcess(APPS / "echo.py", env={"PYTHONPATH": search_path}, wait=wait)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("del cygrpc.execute_batch", "execute_batch"),
        ("del cygrpc._schedule_rpc_coro", "_schedule_rpc_coro"),
        ("del cygrpc._ServicerContext", "_ServicerContext"),
        ("cygrpc.AioServer = type('AioServer', (), {})", "_make_request_call_future"),
    ],
    ids=["function", "another-function", "class", "method"],
)
def test_a_grpcio_without_a_name_that_is_needed_is_told_at_the_start(
    tmp_path: Path, change: str, name: str
) -> None:
    with changed(tmp_path, "from grpc._cython import cygrpc", change, wait=False) as service:
        assert service.exit_code() == 1
        assert f"gRPC ports can't be served with grpcio {grpc.__version__}" in service.log
        assert name in service.log
        assert "requirements/serving.txt" in service.log
        assert "Traceback" not in service.log


def test_a_grpc_server_that_ends_by_itself_ends_the_service_with_the_reason(tmp_path: Path) -> None:
    """One that raises where a call is accepted, as grpc.aio's own does for a path that is no UTF-8."""
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
    with changed(tmp_path, *lines) as service:
        assert service.rpc({"number": "2"}).value[1] == "4"
        broken.touch()
        with pytest.raises(grpc.RpcError):
            service.rpc({"number": "2"}, timeout_s=5)
        assert service.exit_code() == 1
        assert "the listener of rpc_port has ended" in service.log


def test_the_version_that_is_tested_is_the_one_that_is_installed_for_users() -> None:
    pins = (ROOT / "requirements" / "serving.txt").read_text().split()
    assert f"grpcio=={importlib.metadata.version('grpcio')}" in pins

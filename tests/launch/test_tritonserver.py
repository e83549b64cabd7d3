"""`tritonserver`: how its flags are parsed, and a start without models."""

from __future__ import annotations

import argparse
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from client.options import parse_options
from pipeline.launch.serve_options import ServeOptions, add_flags, parse_flags
from tests.support.command_line import python
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import wait_until
from tests.support.triton_repository import write_model

PROGRAM = "import sys; from pipeline.__main__ import tritonserver; sys.exit(tritonserver(sys.argv[1:]))"
WAITS = """
import pathlib, time
class TritonPythonModel:
    def initialize(self, args):
        print("initialize has begun", flush=True)
        while not pathlib.Path("{}").exists():
            time.sleep(0.01)
"""
TENSORS = """
backend: "identity"
input { name: "I" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "O" data_type: TYPE_FP32 dims: [ 2 ] }
"""


def parsed(*argv: str) -> ServeOptions:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return parse_options(ServeOptions, parse_flags(parser, ["--model-store=models", *argv]))


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["--model-control-mode", "EXPLICIT"], "model_control_mode", "explicit"),
        (["--log-format=ISO8601"], "log_format", "iso8601"),
        (["--rate-limit=Execution_Count"], "rate_limit", "execution_count"),
        (["--model-cont=poll"], "model_control_mode", "poll"),
        (["--http-p", "9"], "http_port", 9),
        (["--grpc-use-ssl"], "grpc_use_ssl", True),
        (["--allow-grpc", "OFF"], "allow_grpc", False),
        (["--log-info=1"], "log_info", True),
        (["--log-verbose=true"], "log_verbose", 1),
        (["-id", "ours"], "id", "ours"),
        (["-id=ours"], "id", "ours"),
        (["--trace-count", "-1"], "trace_count", -1),
        (["--cache-config", "a,b=1", "--cache-config=c,d=2"], "cache_config", ("a,b=1", "c,d=2")),
        (["--grpc-keepalive-permit-without-calls=true"], "grpc_keepalive_permit_without_calls", True),
    ],
)  # fmt: skip
def test_values_are_parsed_as_triton_does(argv: list[str], field: str, value: Any) -> None:
    assert getattr(parsed(*argv), field) == value


def test_errors_name_the_flag_and_have_tritons_exit_code(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "odd", TENSORS.replace("identity", "nobody"))
    for flags, message in (
        ([], "--model-repository/--model-store"),
        ([f"--model-store={tmp_path / 'models'}", "--htp-port=8000"], "did you mean --http-port?"),
        ([f"--model-store={tmp_path / 'nowhere'}"], "can't be read: No such file"),
        (
            [
                f"--model-store={tmp_path / 'models'}",
                "--allow-sagemaker",
                "--sagemaker-safe-port-range=8000-8001",
            ],
            "--metrics-port is 8002, and --sagemaker-safe-port-range is 8000-8001",
        ),
        ([f"--model-store={tmp_path / 'models'}"], "not all models can be served: odd"),
    ):
        done = python("-c", PROGRAM, *flags)
        assert (done.returncode, message in done.stderr) == (1, True), done.stderr


def test_a_missing_repository_starts_a_server_that_is_live_and_not_ready(tmp_path: Path) -> None:
    flags = ["--exit-on-error=false", "--log-format=ISO8601"]
    with RepositoryProcess(tmp_path / "nowhere", arguments=flags, wait=False) as server:
        server.wait_for_log("is ready: http_port")
        assert [server.http(f"/v2/health/{kind}").status for kind in ("live", "ready")] == [200, 400]
        assert re.search(
            r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ front\] Server triton starts", server.log, re.M
        )


def test_an_empty_repository_starts_a_server_that_is_ready(tmp_path: Path) -> None:
    flags = ["--exit-on-error=false", "--log-format=default"]
    with RepositoryProcess(tmp_path, arguments=flags) as server:
        assert json.loads(server.http("/v2/repository/index", b"").body) == []
        assert re.search(r"^I\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ front\] Server triton starts", server.log, re.M)


def test_a_model_without_versions_makes_the_server_unready(tmp_path: Path) -> None:
    write_model(tmp_path, "same", TENSORS)
    (write_model(tmp_path, "bare", TENSORS) / "1").rmdir()
    with RepositoryProcess(tmp_path, arguments=["--log-verbose=1"], wait=False) as server:
        server.wait_for_log("is ready: http_port")
        assert [server.http(path).status for path in ("/v2/models/same/ready", "/v2/health/ready")] == [
            200,
            400,
        ]
        line = re.compile(r"Model same version 1, auto-completed config: (.*)\n")
        wait_until(lambda: line.search(server.log), "the line is whole", on_timeout=lambda: server.log)
        (config,) = line.findall(server.log)
        assert json.loads(config)["instance_group"]


def test_the_ports_open_after_the_first_loads(tmp_path: Path) -> None:
    permission = tmp_path / "permission"
    code = WAITS.format(permission)
    write_model(tmp_path / "models", "waits", TENSORS.replace("identity", "python"), code)
    with RepositoryProcess(tmp_path / "models", wait=False) as server:
        server.wait_for_log("initialize has begun")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.http_port))
        permission.touch()
        server.wait_for_log("is ready: http_port")
        assert server.http("/v2/models/waits/ready").status == 200

"""Remote Ops whose service wants an API key: shown by both client types, renewed in place, never told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from tests.support.scripted_servers import RpcStep, refuse, reply, rpc_server
from tests.support.service_process import APPS, PATIENCE_S, ROOT, ServiceProcess

OLD, NEW, OTHER = (f"{name}-0123456789abcdef" for name in ("old", "new", "other"))
INPUTS = {"INPUT0": ("int32", [[2] * 16]), "INPUT1": ("int32", [[1] * 16])}
HANG_UP_TOLD = "API keys are read again"


class Guarded(ServiceProcess):
    """Knows the callers of the keys in its file; says under which name a call was counted."""

    def __init__(self, script: str, folder: Path, **more: Any) -> None:
        self.keys = folder / "keys"
        self.know(OLD)
        config = {"security": {"api_keys": str(self.keys), "open_metrics": True}}
        super().__init__(APPS / script, config, **more)

    def know(self, *keys: str) -> None:
        self.keys.write_text("".join(f"relay:{key}\n" for key in keys))
        self.keys.chmod(0o600)

    def reload(self) -> None:
        told = self.log.count(HANG_UP_TOLD)
        self.process.send_signal(signal.SIGHUP)
        self.wait_for_log(HANG_UP_TOLD, told + 1)


@pytest.fixture(scope="module", params=["pipeline_grpc", "grpc"])
def client_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def guarded(client_type: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    if client_type == "grpc":
        more: dict[str, Any] = {"script": "triton.py", "name": "simple", "env": {"MODEL": "simple"}}
    else:
        more = {"script": "remote.py", "arguments": ["told"]}
    with Guarded(folder=folder, **more) as service:
        yield service


def asking(guarded: Guarded, client_type: str, key_file: Path | None, **more: Any) -> ServiceProcess:
    section = {"server_endpoints": [f"127.0.0.1:{guarded.rpc_port}"], "client_type": client_type}
    if client_type == "grpc":
        section["model_name"] = "simple"
    if key_file is not None:
        section["server_api_key_file"] = str(key_file)
    return ServiceProcess(APPS / "remote.py", {"op": {"ask": section}}, arguments=["ask"], **more)


def ask(service: ServiceProcess, client_type: str) -> dict[str, Any]:
    return service.ask({"arrays": json.dumps(INPUTS)} if client_type == "grpc" else {"x": "1"})


def key_file(folder: Path, key: str) -> Path:
    path = folder / "key"
    path.write_text(f"{key}\n")
    return path


def test_the_key_is_shown_and_renewed_without_a_restart(
    guarded: Guarded, client_type: str, tmp_path: Path
) -> None:
    guarded.know(OLD)
    guarded.reload()
    file = key_file(tmp_path, OLD)
    with asking(guarded, client_type, file) as service:
        workers = service.worker_pids()
        answer = ask(service, client_type)
        assert answer["err_no"] == 0, answer
        key_file(tmp_path, NEW)
        guarded.know(NEW)
        guarded.reload()
        answer = ask(service, client_type)
        assert answer["err_no"] == 0, answer
        assert service.worker_pids() == workers
        guarded.know(OTHER)
        guarded.reload()
        answer = ask(service, client_type)
        assert answer["err_no"] == 9000
        assert "UNAUTHENTICATED" in answer["err_msg"]
        assert "check op.ask.server_api_key_file" in answer["err_msg"]
        assert not any(key in service.log + guarded.log + json.dumps(answer) for key in (OLD, NEW, OTHER))


def refusing_two() -> RpcStep:
    """Of two calls under way that show the old key, refuses the second once the first has shown the new."""
    both_came, renewed = threading.Barrier(2, timeout=PATIENCE_S), threading.Event()

    def step(context: grpc.ServicerContext) -> bytes:
        if ("authorization", f"Bearer {NEW}") in context.invocation_metadata():
            renewed.set()
            return reply()(context)
        if both_came.wait() == 1:
            assert renewed.wait(PATIENCE_S)
        return refuse(grpc.StatusCode.UNAUTHENTICATED)(context)

    return step


def test_two_calls_that_were_refused_with_the_old_key_both_go_on_with_the_new(tmp_path: Path) -> None:
    with rpc_server(refusing_two()) as remote:
        section = {
            "server_endpoints": [remote.address],
            "server_api_key_file": str(key_file(tmp_path, OLD)),
            "client_type": "pipeline_grpc",
            "concurrency": 2,
        }
        config = {"dag": {"is_thread_op": True}, "op": {"ask": section}}
        with ServiceProcess(APPS / "remote.py", config, arguments=["ask"]) as service:
            assert len(service.worker_pids()) == 1, "both share what they know of the key"
            key_file(tmp_path, NEW)
            with ThreadPoolExecutor(2) as pool:
                answers = list(pool.map(service.ask, [{"x": "1"}, {"x": "2"}]))
        assert [answer["err_no"] for answer in answers] == [0, 0], answers
        assert len(remote.seen) == 4


def test_without_a_key_it_is_told_which_setting_is_missing(guarded: Guarded, client_type: str) -> None:
    with asking(guarded, client_type, None, wait=False) as service:
        if client_type == "grpc":  # it asks for the model's metadata as it starts
            assert service.exit_code() == 1
            told = service.log
        else:
            service.wait_until_ready()
            told = ask(service, client_type)["err_msg"]
    assert "check op.ask.server_api_key_file" in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "can't be read (No such file or directory)"),
        ("", "has to hold the key and nothing else"),
        ("secret-one secret-two", "has to hold the key and nothing else"),
        ("secret-schlüssel", "has to hold the key and nothing else"),
        ("secret" * 1000, "has to hold the key and nothing else"),
    ],
    ids=["missing", "empty", "two", "no-ascii", "large"],
)
def test_a_file_without_a_key_is_told_before_the_start(
    tmp_path: Path, content: str | None, told: str
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)
    section = {
        "server_endpoints": ["127.0.0.1:1"], "client_type": "grpc", "server_api_key_file": str(path),
    }  # fmt: skip
    config = {"op": {"ask": section}}
    with ServiceProcess(APPS / "remote.py", config, arguments=["ask"], wait=False) as service:
        assert service.exit_code() == 2
        assert service.log.startswith(f"op.ask.server_api_key_file: {path} ")
        assert told in service.log and service.log.count("\n") == 1
        assert "secret" not in service.log


def test_a_key_for_nobody_is_a_mistake(tmp_path: Path) -> None:
    config = {"op": {"ask": {"server_api_key_file": str(key_file(tmp_path, OLD))}}}
    with ServiceProcess(APPS / "remote.py", config, arguments=["ask"], wait=False) as service:
        assert service.exit_code() == 2
        assert "op.ask.server_api_key_file: its key is for server_endpoints" in service.log


def test_the_printed_configuration_names_the_file_alone(tmp_path: Path) -> None:
    section = {
        "server_endpoints": ["127.0.0.1:1"],
        "client_type": "grpc",
        "server_api_key_file": str(key_file(tmp_path, OLD)),
    }
    ports = {"http_port": 18082, "rpc_port": 8088}
    config = tmp_path / "config.yml"
    config.write_text(yaml.safe_dump({**ports, "op": {"ask": section}}))
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "run", "--config", str(config), "--print-config",
         str(APPS / "remote.py"), "ask"],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "SERVICE_CONFIG": str(config)},
    )  # fmt: skip
    assert str(tmp_path / "key") in done.stdout, done
    assert OLD not in done.stdout + done.stderr

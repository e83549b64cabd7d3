"""Loads of models with several instances: a load is over when each instance has been ready."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tritonclient.grpc as v2_grpc

from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import HttpAnswer, wait_until
from tests.support.triton_repository import write_model

COUNT = 2
TENSORS = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
"""
# The first instance starts at once. Each later one writes its PID into the folder, and waits for the file
# `go`.
HELD = """
import os, time
from pathlib import Path
class TritonPythonModel:
    def initialize(self, args):
        folder = Path("{folder}")
        try:
            (folder / "first").touch(exist_ok=False)
        except FileExistsError:
            (folder / f"held.{{os.getpid()}}").touch()
            while not (folder / "go").exists():
                time.sleep(0.002)

    def execute(self, requests):
        y = pb_utils.Tensor("Y", np.full(1, {factor}, "f"))
        return [pb_utils.InferenceResponse([y]) for _ in requests]
"""
# Lets only one instance start.
LONELY = """
from pathlib import Path
class TritonPythonModel:
    def initialize(self, args):
        try:
            Path("{folder}/first").touch(exist_ok=False)
        except FileExistsError:
            raise ValueError("no room for another")
"""
# Version 1 has room for two instances ever. The second instance of version 2 waits for the file `go`.
TWO_VERSIONS = """
import os, time
from pathlib import Path
class TritonPythonModel:
    def initialize(self, args):
        folder, version = Path("{folder}"), args["model_version"]
        number = len(list(folder.glob(f"v{{version}}.*")))
        (folder / f"v{{version}}.{{os.getpid()}}").touch()
        if version == "1" and number >= 2:
            raise ValueError("no room for another")
        while version == "2" and number and not (folder / "go").exists():
            time.sleep(0.002)
"""
BODY = '{"inputs": [{"name": "X", "shape": [1], "datatype": "FP32", "data": [1]}]}'
EXPLICIT = "--model-control-mode=explicit"


class HeldModel:
    """A model of several instances in a repository. The test decides when the later ones start."""

    def __init__(self, repository: Path, folder: Path) -> None:
        self.repository = repository
        self.folder = folder
        self.write()

    def write(self, factor: int = 1, code: str = HELD) -> None:
        """Write the model with other code: its instances start anew, and the later ones wait."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        instances = f"instance_group {{ count: {COUNT} }}"
        write_model(
            self.repository, "held", TENSORS + instances, code.format(folder=self.folder, factor=factor)
        )

    def wait_until_held(self, times: int = 1) -> list[int]:
        """Wait until so many processes were held. Return their PIDs, the earliest first."""
        wait_until(lambda: len(self._held()) >= times, "an instance is held")
        return [int(file.suffix[1:]) for file in self._held()]

    def _held(self) -> list[Path]:
        return sorted(self.folder.glob("held.*"), key=lambda file: file.stat().st_mtime_ns)

    def let_go(self) -> None:
        (self.folder / "go").touch()

    def hold_again(self) -> None:
        (self.folder / "go").unlink()


@pytest.fixture
def held(tmp_path: Path) -> HeldModel:
    write_model(tmp_path / "models", "other", TENSORS.replace("python", "identity"))
    return HeldModel(tmp_path / "models", tmp_path / "held")


@pytest.fixture
def server(held: HeldModel) -> Iterator[RepositoryProcess]:
    with RepositoryProcess(held.repository, arguments=[EXPLICIT]) as process:
        yield process


def load(server: RepositoryProcess, name: str = "held") -> HttpAnswer:
    return server.http(f"/v2/repository/models/{name}/load", b"")


def load_by_rpc(server: RepositoryProcess) -> HttpAnswer:
    with v2_grpc.InferenceServerClient(server.rpc_address) as client:
        client.load_model("held")
    return HttpAnswer(200, {}, b"")


def get_state(server: RepositoryProcess, name: str = "held") -> str:
    rows = server.http("/v2/repository/index", b"").json
    return str(next(row.get("state", "") for row in rows if row["name"] == name))


def is_ready(server: RepositoryProcess) -> bool:
    return server.http("/v2/models/held/ready").status == 200


def count_ready(server: RepositoryProcess) -> float:
    return server.metric("paddlewheel_op_ready_instances", op="held:1")


def infer(server: RepositoryProcess) -> float:
    (value,) = server.http("/v2/models/held/infer", BODY).json["outputs"][0]["data"]
    return float(value)


@pytest.mark.parametrize("order", [load, load_by_rpc], ids=["http", "grpc"])
def test_a_load_waits_for_each_instance_also_for_one_that_dies(
    server: RepositoryProcess, held: HeldModel, order: Callable[[RepositoryProcess], HttpAnswer]
) -> None:
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(order, server)
        try:
            server.wait_for_log("Worker held:1.0 is ready")
            (pid,) = held.wait_until_held()
            assert (loading.done(), get_state(server), is_ready(server)) == (False, "LOADING", False)
            os.kill(pid, signal.SIGKILL)
            held.wait_until_held(2)
            assert (loading.done(), get_state(server), is_ready(server)) == (False, "LOADING", False)
            assert load(server, "other").status == 200
        finally:
            held.let_go()
        assert loading.result().status == 200
    assert (get_state(server), is_ready(server), count_ready(server)) == ("READY", True, COUNT)


def test_a_served_model_stays_ready_while_an_instance_starts_again(
    server: RepositoryProcess, held: HeldModel
) -> None:
    held.let_go()
    assert load(server).status == 200
    (pid,) = held.wait_until_held()
    held.hold_again()
    os.kill(pid, signal.SIGKILL)
    held.wait_until_held(2)
    assert (get_state(server), is_ready(server), count_ready(server)) == ("READY", True, COUNT - 1)
    assert infer(server) == 1
    assert load(server).status == 200, "nothing has changed"
    held.let_go()
    wait_until(lambda: count_ready(server) == COUNT, "the instance is ready again")


def test_the_former_workers_serve_until_each_new_instance_is_ready(
    server: RepositoryProcess, held: HeldModel
) -> None:
    held.let_go()
    assert load(server).status == 200
    held.write(factor=2)
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load, server)
        try:
            held.wait_until_held()
            assert (loading.done(), infer(server), get_state(server)) == (False, 1, "READY")
        finally:
            held.let_go()
        assert loading.result().status == 200
    assert (infer(server), count_ready(server)) == (2, COUNT)


def test_a_load_of_which_an_instance_can_not_start_fails_with_the_reason(
    server: RepositoryProcess, held: HeldModel
) -> None:
    reason = "version 1 is at UNAVAILABLE state: Internal: ValueError: no room for another"
    held.write(code=LONELY)
    refusal = load(server)
    assert refusal.status == 400 and reason in refusal.json["error"]
    assert (get_state(server), is_ready(server)) == ("UNAVAILABLE", False)
    held.write(factor=3)
    held.let_go()
    assert load(server).status == 200
    held.write(code=LONELY)
    assert reason in load(server).json["error"]
    assert (get_state(server), infer(server), count_ready(server)) == ("READY", 3, COUNT)


def test_a_load_fails_if_the_workers_of_one_version_are_lost_while_another_version_starts(
    server: RepositoryProcess, held: HeldModel
) -> None:
    held.write(code=TWO_VERSIONS)
    config = held.repository / "held" / "config.pbtxt"
    config.write_text(config.read_text() + "version_policy { all {} }")
    shutil.copytree(held.repository / "held" / "1", held.repository / "held" / "2")
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load, server)
        try:
            for number in range(COUNT):
                server.wait_for_log(f"Worker held:1.{number} is ready")
            wait_until(lambda: len(list(held.folder.glob("v2.*"))) == COUNT, "version 2 is held")
            for mark in list(held.folder.glob("v1.*")):
                os.kill(int(mark.suffix[1:]), signal.SIGKILL)
            server.wait_for_log("no room for another", COUNT)
            assert (loading.done(), get_state(server)) == (False, "LOADING")
        finally:
            held.let_go()
        answer = loading.result()
    assert answer.status == 400 and "no room for another" in answer.json["error"]
    assert get_state(server) == "UNAVAILABLE"


def test_the_ports_open_when_each_instance_of_the_first_loads_is_ready(held: HeldModel) -> None:
    arguments = [EXPLICIT, "--load-model=held"]
    with RepositoryProcess(held.repository, arguments=arguments, wait=False) as server:
        server.wait_for_log(" is ready (pid ")
        held.wait_until_held()
        for port in (server.http_port, server.rpc_port):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port)).close()
        held.let_go()
        server.wait_for_log("is ready: http_port")
        assert (get_state(server), is_ready(server), count_ready(server)) == ("READY", True, COUNT)


def test_a_start_does_not_wait_for_an_instance_that_can_not_start(held: HeldModel) -> None:
    held.write(code=LONELY)
    with RepositoryProcess(held.repository, arguments=["--strict-readiness=false"]) as server:
        rows = {row["name"]: row for row in server.http("/v2/repository/index", b"").json}
        assert rows["other"]["state"] == "READY"
        assert rows["held"]["state"] == "UNAVAILABLE" and "no room for another" in rows["held"]["reason"]
        assert server.http("/v2/models/other/infer", BODY).json["outputs"][0]["data"] == [1]

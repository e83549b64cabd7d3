"""Loads and unloads that take long: others go on, a stop does not wait, a killed server leaves nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import HttpAnswer, is_running, wait_until
from tests.support.triton_repository import write_model

TENSORS = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: 2 }
output { name: "Y" data_type: TYPE_FP32 dims: 2 }
"""
ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.Tensor("Y", request.inputs()[0].as_numpy()) for request in requests]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]
"""
# Tells its process in a file, and then waits for ever.
HANGS = """
import os, pathlib, signal
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        partial = pathlib.Path("{pid}.partial")
        partial.write_text(str(os.getpid()))
        partial.rename("{pid}")
        signal.pause()
"""
STARTS = """
import os, signal
class TritonPythonModel:
    def initialize(self, args):
        open("{started}", "w").close()
        signal.pause()
"""
# Waits until another model's `auto_complete_config` runs.
MEETS = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        open("{fifo}", "{mode}").close()
        return config
    def execute(self, requests):
        tensors = [pb_utils.Tensor("Y", request.inputs()[0].as_numpy()) for request in requests]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]
"""
# Tells a FIFO that it runs, and goes on when another one is read.
WAITS = """
class TritonPythonModel:
    def execute(self, requests):
        open("{begun}", "w").close()
        open("{go_on}").close()
        tensors = [pb_utils.Tensor("Y", request.inputs()[0].as_numpy()) for request in requests]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]
"""
BODY = '{"inputs": [{"name": "X", "shape": [2], "datatype": "FP32", "data": [1, 2]}]}'


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    begun, go_on, started = (tmp_path / name for name in ("begun", "go_on", "started"))
    for fifo in (begun, go_on, started):
        os.mkfifo(fifo)
    folder = tmp_path / "models"
    write_model(folder, "echo", TENSORS, ECHO)
    write_model(folder, "hangs", None, HANGS.format(pid=tmp_path / "pid"))
    write_model(folder, "starts", TENSORS, STARTS.format(started=started))
    write_model(folder, "waits", TENSORS, WAITS.format(begun=begun, go_on=go_on))
    return folder


@pytest.fixture
def service(repository: Path) -> Iterator[RepositoryProcess]:
    arguments = ["--model-control-mode=explicit", "--load-model=waits", "--exit-timeout-secs=600"]
    with RepositoryProcess(repository, arguments=arguments) as process:
        yield process


def order(service: RepositoryProcess, name: str, what: str) -> HttpAnswer:
    return service.http(f"/v2/repository/models/{name}/{what}", b"")


def hanging_pid(folder: Path) -> int:
    path = folder / "pid"
    wait_until(path.exists, "the hanging auto_complete_config runs")
    return int(path.read_text())


def state(service: RepositoryProcess, name: str) -> str:
    rows = service.http("/v2/repository/index", b"").json
    return str(next(row.get("state", "") for row in rows if row["name"] == name))


def test_slow_orders_hold_up_no_other_and_no_stop(service: RepositoryProcess, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        loading = pool.submit(order, service, "hangs", "load")
        helper = hanging_pid(tmp_path)
        inferring = pool.submit(service.http, "/v2/models/waits/infer", BODY)
        (tmp_path / "begun").read_text()  # it runs
        unloading = pool.submit(order, service, "waits", "unload")
        wait_until(lambda: state(service, "waits") == "UNLOADING", "the unload is under way")
        for what in ("load", "unload", "load"):
            assert order(service, "echo", what).status == 200
        assert service.http("/v2/models/echo/infer", BODY).status == 200
        again = pool.submit(order, service, "waits", "load")  # it waits for the unload
        assert (loading.done(), unloading.done(), again.done()) == (False, False, False)
        (tmp_path / "go_on").write_text("")
        assert [future.result().status for future in (inferring, unloading, again)] == [200, 200, 200]
        assert state(service, "waits") == "READY"
        starting = pool.submit(order, service, "starts", "load")
        (tmp_path / "started").read_text()  # `initialize` hangs
        service.terminate()
        assert service.exit_code() == 0
        assert {future.result().status for future in (loading, starting)} <= {400, 503}
    assert not is_running(helper)


def test_polling_goes_on_beside_a_model_that_hangs_and_its_helper_ends_with_a_killed_server(
    repository: Path, tmp_path: Path
) -> None:
    arguments = ["--model-control-mode=poll", "--repository-poll-secs=1"]
    hangs = (repository / "hangs").rename(tmp_path / "hangs")
    for name in ("waits", "starts"):
        (repository / name).rename(tmp_path / name)
    with RepositoryProcess(repository, arguments=arguments) as service:
        hangs.rename(repository / "hangs")
        helper = hanging_pid(tmp_path)
        write_model(repository, "later", TENSORS, ECHO)
        wait_until(lambda: service.http("/v2/models/later/infer", BODY).status == 200, "it is served")
        assert is_running(helper)
        service.process.kill()
        wait_until(lambda: not is_running(helper), "the helper is gone")


def test_models_that_hang_as_they_are_read_do_not_delay_the_others_at_the_start(tmp_path: Path) -> None:
    fifos = [tmp_path / str(number) for number in range(3)]
    for number, fifo in enumerate(fifos):
        os.mkfifo(fifo)
        for mode in "rw":
            write_model(tmp_path / "models", f"{mode}{number}", TENSORS, MEETS.format(fifo=fifo, mode=mode))
    with RepositoryProcess(tmp_path / "models") as service:
        assert service.http("/v2/models/r0/infer", BODY).status == 200

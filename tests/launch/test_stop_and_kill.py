"""`paddlewheel stop` and `kill`, and Paddle Serving's commands of these names."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.service_process import APPS, ROOT, ServiceProcess, is_running, wait_until

ECHO = APPS / "echo.py"
PATHS = os.pathsep.join((str(ROOT), str(ROOT / "compat")))


def command(folder: Path, *arguments: str, module: str = "pipeline") -> subprocess.CompletedProcess[str]:
    """The command as a user types it in `folder`."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def held(service: ServiceProcess, pool: ThreadPoolExecutor, gate: Path) -> object:
    """A request that its worker answers when the file `gate` is there."""
    asked = pool.submit(service.ask, {"number": "4", "action": "wait", "argument": str(gate)})
    wait_until(Path(f"{gate}.waiting").exists, "a request is under way")
    return asked


def test_stop_waits_until_what_was_admitted_is_answered(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with ServiceProcess(ECHO, folder=tmp_path) as service, ThreadPoolExecutor(2) as pool:
        asked = held(service, pool, gate)
        stopping = pool.submit(command, tmp_path, "stop")
        service.wait_for_log("Stopping: not ready any more, 1 requests pending")
        assert not stopping.done()
        gate.touch()
        assert asked.result()["value"][1] == "8"
        done = stopping.result()
        told = f"Stopped: process {service.process.pid}, ports "
        assert (done.returncode, done.stdout.startswith(told)) == (0, True), done
        assert done.stderr == ""
        assert service.exit_code() == 0


def test_stop_gives_up_after_its_timeout_and_kill_ends_front_and_workers(tmp_path: Path) -> None:
    with ServiceProcess(ECHO, folder=tmp_path) as service, ThreadPoolExecutor(1) as pool:
        workers = service.worker_pids()
        held(service, pool, tmp_path / "gate")
        late = command(tmp_path, "stop", "--timeout", "0.1")
        assert (late.returncode, "Traceback" in late.stderr) == (1, False)
        assert f"Process {service.process.pid} still answers requests after 0.1 s" in late.stderr
        assert service.process.poll() is None
        killed = command(tmp_path, "kill")
        assert (killed.returncode, "and 1 workers" in killed.stdout) == (0, True), killed
        assert service.exit_code() == -9
        assert not any(map(is_running, workers))


def test_all_services_of_the_folder_end_and_those_of_another_stay(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    with (
        ServiceProcess(ECHO, folder=here) as first,
        ServiceProcess(ECHO, folder=here) as second,
        ServiceProcess(ECHO, folder=there) as other,
    ):
        done = command(here, "kill")
        assert (done.returncode, done.stdout.count("Killed: process")) == (0, 2), done
        assert (first.exit_code(), second.exit_code()) == (-9, -9)
        none = command(here, "stop")
        assert none.returncode == 1
        assert f"No service that was started in {here} runs. Elsewhere: " in none.stderr
        assert f"process {other.process.pid}, ports " in none.stderr
        assert other.predict({"number": "2"})["doubled"] == "4"
        by_port = command(here, "stop", "--port", str(other.http_port))
        assert (by_port.returncode, other.exit_code()) == (0, 0), by_port


@pytest.mark.parametrize("option", ["--port", "--pid"])
def test_a_process_that_is_no_service_is_named_and_left_alone(tmp_path: Path, option: str) -> None:
    listen = "import socket, time; s = socket.create_server(('', 0)); print(s.getsockname()[1], flush=True)"
    code = f"{listen}; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as stranger:
        assert stranger.stdout is not None
        port = stranger.stdout.readline().strip()
        chosen = port if option == "--port" else str(stranger.pid)
        done = command(tmp_path, "kill", option, chosen)
        alive = stranger.poll() is None
        stranger.kill()
    assert (done.returncode, alive, done.stderr.count("\n")) == (1, True, 1), done
    assert "no service of this project" in done.stderr or "not a service's of this project" in done.stderr
    assert "socket.create_server" in done.stderr


def test_a_port_that_nobody_listens_on_is_told(tmp_path: Path) -> None:
    done = command(tmp_path, "stop", "--port", "1")
    assert (done.returncode, done.stderr) == (1, "Nothing that this user may see listens on port 1.\n")


class TestPaddleServingsCommands:
    MODULE = "paddle_serving_server.serve"

    def test_stop_ends_the_services_of_serving_home(self, tmp_path: Path) -> None:
        home = {"SERVING_HOME": str(tmp_path)}
        with ServiceProcess(ECHO, env=home) as service:
            done = command(tmp_path, "stop", module=self.MODULE)
            assert (done.returncode, done.stdout.count("Stopped: process")) == (0, 1), done
            assert service.exit_code() == 0

    def test_kill_takes_a_port(self, tmp_path: Path) -> None:
        with ServiceProcess(ECHO) as service:
            done = command(tmp_path, "kill", "--port", str(service.rpc_port), module=self.MODULE)
            assert done.returncode == 0, done
            assert service.exit_code() == -9

    def test_check_is_the_doctor(self, tmp_path: Path) -> None:
        done = command(tmp_path, "check", module=self.MODULE)
        assert done.returncode == 0, done
        assert "Everything needed is there." in done.stdout

    @pytest.mark.parametrize("arguments", [("--model", "serving_server", "--port", "9393"), ()])
    def test_starting_the_cpp_server_is_answered_with_what_to_use_instead(
        self, tmp_path: Path, arguments: tuple[str, ...]
    ) -> None:
        done = command(tmp_path, *arguments, module=self.MODULE)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
        assert "paddlewheel new" in done.stderr

"""Scripts with effects of their own, which every worker has again: ports, and the handler of SIGTERM."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.free_ports import free_port
from tests.support.service_process import APPS, PATIENCE_S, ROOT, ServiceProcess, wait_until

CONFIG = {"dag": {"is_thread_op": False}, "op": {"named": {"concurrency": 2}}}


def start(port: int, folder: Path, *, wait: bool = True) -> ServiceProcess:
    env = {"EFFECTS_PORT": str(port), "EFFECTS_FILE": str(folder / "handled")}
    return ServiceProcess(APPS / "script_effects.py", CONFIG, env=env, wait=wait)


def ask_port(port: int) -> int:
    """Return the process that answers at the script's port; 0 without one."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE_S) as answer:
            return int(answer.read())
    except OSError:
        return 0


def test_one_worker_has_the_scripts_port_and_one_calls_its_handler_of_sigterm(tmp_path: Path) -> None:
    port = free_port()
    with start(port, tmp_path) as service:
        service.wait_until_ready(every_instance=True)
        workers = service.worker_pids()
        holder = ask_port(port)
        assert (holder in workers, len(workers)) == (True, 2)
        service.wait_for_log(f"Port {port} is in use by process {holder} of this service")
        os.kill(holder, signal.SIGKILL)
        wait_until(lambda: ask_port(port) not in (0, holder), "another worker has the port")
        service.wait_until_ready(every_instance=True)
        assert service.predict({"x": "1"})
        for worker in service.worker_pids():
            os.kill(worker, signal.SIGTERM)  # as systemd does: workers leave it to the front
        assert service.predict({"x": "1"})
        service.process.send_signal(signal.SIGTERM)
        assert service.exit_code() == 0
        (line,) = (tmp_path / "handled").read_text().splitlines()
        assert line.startswith("SIGTERM after ")
        assert service.log.count("calls the script's handler of SIGTERM") == 1


def test_a_port_of_another_service_stays_an_error(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as foreign,
        start(foreign.getsockname()[1], tmp_path, wait=False) as service,
    ):
        assert service.exit_code() == 1
        assert "Address already in use" in service.log


def test_the_recipe_of_the_document_counts_the_requests_of_all_workers(tmp_path: Path) -> None:
    document = (ROOT / "docs" / "migration.md").read_text("utf-8")
    (recipe,) = [block for block in re.findall(r"```python\n(.*?)```", document, re.S) if "flock" in block]
    script = tmp_path / "web_service.py"
    script.write_text(recipe.replace('"config.yml"', 'os.environ["SERVICE_CONFIG"]'), "utf-8")
    config = {"dag": {"is_thread_op": False}, "op": {"count": {"concurrency": 2}}}
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'compat'}", "TMPDIR": str(tmp_path)}
    with ServiceProcess(script, config, name="count", env=env) as service:
        service.wait_until_ready(every_instance=True)
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(service.predict, [{"x": "1"}] * 20))
        assert sorted(int(answer["count"]) for answer in answers) == [*range(1, 21)]
        (folder,) = (path.parent for path in tmp_path.glob("*/count"))
        service.terminate()
        assert service.exit_code() == 0
        assert not folder.exists()


HANGING = """
import time
from pipeline.config.config_file import LoggingConfig
from pipeline.process.log import set_up_logging
from pipeline.worker import main

set_up_logging(LoggingConfig(), "test", "worker", beside_app=True)
main.STOP_HANDLER_S = 0.1
main.call_stop_handler(lambda *_: time.sleep(3600))
"""


def test_a_handler_that_hangs_ends_with_its_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGING], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "The script's handler of SIGTERM took over 0.1 s" in done.stdout


UNIX = """
import socket, sys
from pipeline.worker.shared_ports import share_ports

share_ports(int(sys.argv[2]))
first = socket.socket(socket.AF_UNIX)
first.bind(sys.argv[1])
first.listen()
print(first.getsockname() == sys.argv[1], flush=True)
sys.stdin.read()
"""


def test_a_unix_socket_of_the_service_is_shared_as_well(tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNIX, str(tmp_path / "socket"), str(os.getpid())]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"True\n"
        second = subprocess.run(command, cwd=ROOT, input=b"", capture_output=True, check=False)
        first.communicate()
    assert (second.returncode, second.stdout) == (0, b"False\n"), second.stderr

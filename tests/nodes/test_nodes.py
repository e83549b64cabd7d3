"""Workers on other nodes: a front with `nodes`, and agents of this machine in place of other machines."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.config.config_file import NodesConfig, load_config
from pipeline.config.nodes_section import check_nodes
from pipeline.errors import ConfigError
from pipeline.messages.frames import frame
from pipeline.messages.messages import CallMessage, DispatchMessage, Probe
from pipeline.nodes.agent import shift_deadlines
from pipeline.nodes.local_frames import WholeFrame
from pipeline.process.processes import resident_bytes
from tests.support.agent_process import TOKEN, AgentProcess, run_on_agents
from tests.support.service_process import APPS, PATIENCE_S, ROOT, ServiceProcess, is_running, wait_until

TLS = ROOT / "tests" / "fixtures" / "tls"
TWO_PROCESSES = {"dag": {"is_thread_op": False}, "op": {"echo": {"concurrency": 2}}}
READY = "paddlewheel_op_ready_instances"
Running = tuple[ServiceProcess, list[AgentProcess]]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with an instance on each of two agents, over TLS. The tests keep both agents alive."""
    pair = ["--cert", str(TLS / "server.pem"), "--key", str(TLS / "server.key")]
    nodes = {"ca_file": str(TLS / "ca.pem"), "timeout": 2 * PATIENCE_S}
    folder = tmp_path_factory.mktemp("nodes")
    with run_on_agents(folder, TWO_PROCESSES, options=pair, nodes=nodes) as both:
        yield both


def hold(service: ServiceProcess, pool: ThreadPoolExecutor, gate: Path) -> Future[dict[str, Any]]:
    """A request whose first worker waits for the file `<gate>.gate`; the next answers it."""
    asked = pool.submit(service.ask, {"number": "4", "action": "wait_once", "argument": str(gate)})
    wait_until(Path(f"{gate}.gate.waiting").exists, "a request is under way")
    return asked


def test_each_node_runs_a_worker_and_large_values_travel(running: Running) -> None:
    service, agents = running
    assert service.worker_pids() == []
    pids = {str(pid) for agent in agents for pid in agent.worker_pids()}
    assert len(pids) == 2
    text = "x" * 3_000_000
    answer = service.predict({"number": "4", "text": text})
    assert (answer["doubled"], answer["text"]) == ("8", text)
    assert answer["pid"] in pids


def test_metrics_have_the_memory_of_the_workers_and_not_of_their_proxies(running: Running) -> None:
    service, agents = running

    def have_memory() -> bool:
        sizes = {resident_bytes(pid) for agent in agents for pid in agent.worker_pids()}
        samples = re.findall(
            r'resident_bytes{process="(?!front).*"} (\S+)', service.http("/metrics").body.decode()
        )
        return {float(size) for size in samples} == sizes

    wait_until(have_memory, "each worker's memory is in /metrics")


def test_a_request_that_kills_two_workers_alone_is_refused_with_the_cause(running: Running) -> None:
    service, _ = running
    answer = service.ask({"number": "13", "action": "die"})
    assert (answer["err_no"], "killed by SIGKILL" in answer["err_msg"]) == (9000, True)
    service.wait_until_ready(every_instance=True)


def test_a_stopped_worker_is_noticed_by_the_activity_that_its_agent_reports(
    running: Running, tmp_path: Path
) -> None:
    service, _ = running
    gate = tmp_path / "gate"
    with ThreadPoolExecutor(1) as pool:
        asked = hold(service, pool, gate)
        pid = read_pid(gate)
        os.kill(pid, signal.SIGSTOP)
        try:
            answer = asked.result()
            assert (answer["err_no"], answer["value"][1]) == (0, "8")
            assert answer["value"][4] != str(pid)
        finally:
            Path(f"{gate}.gate").touch()
            with contextlib.suppress(ProcessLookupError):  # killed for standing still
                os.kill(pid, signal.SIGCONT)
    service.wait_until_ready(every_instance=True)


def read_pid(gate: Path) -> int:
    """The worker that holds a request with `wait_once`."""
    waiting = Path(f"{gate}.gate.waiting")
    wait_until(waiting.read_text, "the worker has written its pid")
    return int(waiting.read_text())


def test_unauthenticated_bytes_end_their_connection_and_nothing_else(tmp_path: Path) -> None:
    with AgentProcess(tmp_path) as plain:
        wait_until(lambda: "Agent is ready" in plain.log, "the agent listens")
        for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(200), b"\x01\x00\x00\x00\xff\xff\xff\x7f", b""):
            with socket.create_connection(("127.0.0.1", plain.port), PATIENCE_S) as connection:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
        assert "Traceback" not in plain.log
        assert plain.worker_pids() == []
        assert is_running(plain.process.pid)


def test_a_node_that_dies_during_a_dispatch_fails_no_request_and_returns(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    config = {**TWO_PROCESSES, "dag": {"is_thread_op": False, "request_timeout": 2 * PATIENCE_S}}
    with run_on_agents(tmp_path, config) as (service, agents), ThreadPoolExecutor(1) as pool:
        asked = hold(service, pool, gate)
        pid = read_pid(gate)
        (lost,) = (agent for agent in agents if pid in agent.worker_pids())
        lost.kill()
        answer = asked.result()
        assert (answer["err_no"], answer["value"][1]) == (0, "8")
        service.wait_for_log("the connection to its node was lost")  # after the request is sent elsewhere
        wait_until(lambda: not is_running(pid), "the worker has died with its agent")
        lost.start()
        service.wait_until_ready(every_instance=True)


def test_a_partition_fails_no_request_and_stale_answers_go_nowhere(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    config = {**TWO_PROCESSES, "dag": {"is_thread_op": False, "request_timeout": 2 * PATIENCE_S}}
    with (
        run_on_agents(tmp_path, config, nodes={"timeout": 2.0}) as (service, agents),
        ThreadPoolExecutor(1) as pool,
    ):
        asked = hold(service, pool, gate)
        pid = read_pid(gate)
        (cut,) = (agent for agent in agents if pid in agent.worker_pids())
        with cut.partitioned():
            answer = asked.result()
            assert (answer["err_no"], answer["value"][1]) == (0, "8")
            assert answer["value"][4] != str(pid)
            service.wait_for_log("sent nothing for 2 s")
        wait_until(lambda: not is_running(pid), "the agent has ended the worker of the lost connection")
        for number in range(20):
            assert service.predict({"number": str(number)})["doubled"] == str(2 * number)
        service.wait_until_ready(every_instance=True)


def test_an_agent_that_is_stopped_lets_its_requests_end(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with run_on_agents(tmp_path, {}, agents=1) as (service, (agent,)), ThreadPoolExecutor(1) as pool:
        asked = hold(service, pool, gate)
        agent.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "Agent stops" in agent.log, "the agent stops")
        Path(f"{gate}.gate").touch()
        assert asked.result()["err_no"] == 0
        assert agent.process.wait(PATIENCE_S) == 0
        wait_until(lambda: service.http("/health/ready").status == 503, "the service is not ready")
        service.wait_for_log("waits for a node")
        agent.start()
        service.wait_until_ready()
        assert service.predict({"number": "2"})["doubled"] == "4"
        service.terminate()
        assert service.exit_code() == 0


def test_values_between_ops_travel_typed_and_one_for_pickle_is_an_error_with_op_and_key(
    tmp_path: Path,
) -> None:
    with run_on_agents(tmp_path, {}, app="values.py", agents=1) as (service, _):
        for name in ("tuple", "numpy date", "array for shared memory", "two arrays over the shared memory"):
            assert service.predict({"name": name}) == {"seen": "the same"}
        for name in ("set", "class of the script", "array of objects"):
            message = service.ask({"name": name})["err_msg"]
            assert "[make] output 'value': a " in message
            assert "pickle is off where workers run on other nodes" in message
        assert "[make] output 'value': a" in service.ask({"name": "large int"})["err_msg"]


def copy_package(folder: Path, changed_file: str, old: str, new: str) -> Path:
    """Copy the package with a changed file, and return the folder for PYTHONPATH."""
    shutil.copytree(ROOT / "pipeline", folder / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "pipeline" / changed_file
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new), "utf-8")
    return folder


def test_another_token_another_version_and_another_python_are_refused(tmp_path: Path) -> None:
    package = copy_package(tmp_path / "site", "messages/messages.py", "\nimport", "\n\nimport")
    python = copy_package(tmp_path / "python", "nodes/link.py", "PYTHON = ", 'PYTHON = "3.99"\n_LOCAL = ')
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN, "utf-8")
    with (
        AgentProcess(tmp_path, token="another secret 1") as stranger,
        AgentProcess(tmp_path, env={"PYTHONPATH": str(package)}) as other,
        AgentProcess(tmp_path, env={"PYTHONPATH": str(python)}) as newer,
    ):
        agents = [stranger, other, newer]
        wait_until(lambda: all("Agent is ready" in agent.log for agent in agents), "the agents listen")
        nodes = {"agents": [agent.address for agent in agents], "token_file": str(token_file)}
        with ServiceProcess(APPS / "echo.py", {"nodes": nodes}, wait=False) as service:
            assert service.exit_code() == 1
            assert "its token is another than that of nodes.token_file" in service.log
            assert "it runs another build of the package" in service.log
            assert "it runs Python 3.99, the front runs 3." in service.log
            assert "Traceback" not in service.log


def test_deadlines_are_moved_to_the_clock_of_the_node() -> None:
    call = CallMessage(0, 1, 0, "form", {"a": [1]}, "", None, 100.0, [("x", [b"small", 5000])])
    sent = b"".join(frame(DispatchMessage(7, [call], 3), [bytes(5000)]))
    shifted = WholeFrame.unpack(shift_deadlines(sent, 23.5))
    message = msgspec.msgpack.decode(shifted.message, type=DispatchMessage)
    assert (message.id, message.batch_limit, message.calls[0].deadline) == (7, 3, 123.5)
    assert (message.calls[0].inputs, message.calls[0].response_options) == (
        [("x", [b"small", 5000])],
        {"a": [1]},
    )
    assert shifted.tail == bytes(5000)
    probe = b"".join(frame(Probe()))
    assert shift_deadlines(probe, 23.5) == probe


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ({"agents": []}, "nodes.agents"),
        ({"agents": ["node-1"]}, "an address such as 10.0.0.2:7071"),
        ({"agents": ["node-1:99999"]}, "an address such as 10.0.0.2:7071"),
        ({"timeout": 0}, "nodes.timeout"),
        ({"token": "0123456789abcdef"}, "nodes.token"),
    ],
)
def test_mistakes_in_the_section_are_told_with_their_keys(nodes: dict[str, Any], told: str) -> None:
    section = {"agents": ["10.0.0.2:7071"], "token_file": "token", **nodes}
    with pytest.raises(ConfigError, match=re.escape(told)):
        load_config({"http_port": 18082, "nodes": section})


def test_shards_and_nodes_exclude_each_other() -> None:
    section = {"agents": ["10.0.0.2:7071"], "token_file": "token"}
    with pytest.raises(ConfigError, match="shards serve on one machine; remove shards or nodes"):
        load_config({"http_port": 18082, "shards": 2, "nodes": section})


def test_files_that_can_not_be_used_are_named(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("secret\n", "utf-8")
    unusable = NodesConfig(agents=["10.0.0.2:7071"], token_file=str(short), ca_file=str(short))
    token_error, ca_error = check_nodes(unusable)
    assert token_error.startswith(f"nodes.token_file: token file {short} holds 6 bytes, 16 to 4096")
    assert ca_error.startswith(f"nodes.ca_file: {short} can't be used")
    (missing,) = check_nodes(NodesConfig(agents=["a:1"], token_file=str(tmp_path / "missing")))
    assert "can't be read (No such file or directory)" in missing

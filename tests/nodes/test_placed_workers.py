"""Workers whose agents a placer starts: a placer of this test in place of Ray's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.launch.ray_command import parse_resources
from pipeline.nodes.link import Link, PacketKind, Place, create_server_protocol, move, read_offer
from tests.support.agent_process import TOKEN, AgentProcess
from tests.support.free_ports import free_port
from tests.support.service_process import APPS, PATIENCE_S, ServiceProcess, wait_until


class Placer:
    """Answers each proxy with the address of an agent, which the test sets. Until then the proxy waits."""

    def __init__(self) -> None:
        self.port = free_port()
        self.agent = ""
        self.open_links: list[str] = []  # names of the workers whose proxies are connected
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_listening = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=lambda: asyncio.run(self._listen()))
        thread.start()
        self._is_listening.wait()
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            thread.join()

    async def _listen(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        create_protocol = partial(create_server_protocol, self._accept)
        server = await self._loop.create_server(create_protocol, "127.0.0.1", self.port)
        self._is_listening.set()
        await self._stop.wait()
        server.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.get_running_loop().create_task(self._serve(Link(reader, writer))))

    async def _serve(self, link: Link) -> None:
        try:
            offer = await read_offer(link, TOKEN.encode())
            while not self.agent:
                await link.send(PacketKind.WAITING, f"Op {offer.op} needs 1 GPU".encode())
                await asyncio.sleep(0.05)
            await move(link, TOKEN.encode(), offer, Place(self.agent))
            self.open_links.append(offer.name)
            await link.await_close(2 * PATIENCE_S)
            self.open_links.remove(offer.name)
        finally:
            link.abort()


@contextmanager
def run_placed(folder: Path, placer: Placer, start_timeout_s: float = 60) -> Iterator[ServiceProcess]:
    token_file = folder / "token"
    token_file.write_text(TOKEN, "utf-8")
    nodes = {"agents": [f"127.0.0.1:{placer.port}"], "token_file": str(token_file)}
    config = {"nodes": nodes, "op": {"echo": {"start_timeout": start_timeout_s}}}
    with placer.running(), ServiceProcess(APPS / "echo.py", config, wait=False) as service:
        yield service


def test_a_worker_waits_for_the_placer_and_then_runs_on_its_agent(tmp_path: Path) -> None:
    placer = Placer()
    env = {"SERVICE_CONFIG": "of the front alone"}  # the script reads it in each worker
    with run_placed(tmp_path, placer) as service, AgentProcess(tmp_path, env=env) as agent:
        service.wait_for_log("waits for a node, for 60 s at most (start_timeout): Op echo needs 1 GPU")
        placer.agent = agent.address
        service.wait_until_ready()
        assert service.predict({"number": "4"})["doubled"] == "8"
        (worker,) = placer.open_links  # the agent runs until the proxy closes it
        agent.kill()
        wait_until(lambda: worker not in placer.open_links, "the proxy of a lost agent ends")
        agent.start()
        service.wait_until_ready()
        assert service.predict({"number": "5"})["doubled"] == "10"
        service.terminate()
        assert service.exit_code() == 0
        wait_until(lambda: placer.open_links == [], "the proxy has closed the connection")


def test_a_refusal_of_a_placed_agent_is_not_final(tmp_path: Path) -> None:
    placer = Placer()
    env = {"SERVICE_CONFIG": "of the front alone"}
    with (
        run_placed(tmp_path, placer) as service,
        AgentProcess(tmp_path, token="another secret 1") as stranger,
        AgentProcess(tmp_path, env=env) as agent,
    ):
        placer.agent = stranger.address
        service.wait_for_log("its token is another than that of nodes.token_file")
        placer.agent = agent.address
        service.wait_until_ready()


@pytest.mark.parametrize(
    "value", ["", "ocr", "ocr=", "=CPU:1", "ocr=CPU", "ocr=CPU:0", "ocr=CPU:-1", "ocr=CPU:nan", "ocr=CPU:x"]
)
def test_mistakes_in_resources_are_told_with_the_option(value: str) -> None:
    with pytest.raises(ConfigError, match="expected OP=NAME:COUNT"):
        parse_resources([value])


def test_resources_are_by_op() -> None:
    resources = parse_resources(["ocr=CPU:2,GPU:0.5", "rank=fast:1"])
    assert resources == {"ocr": {"CPU": 2.0, "GPU": 0.5}, "rank": {"fast": 1.0}}

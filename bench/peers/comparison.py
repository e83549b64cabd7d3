"""One peer beside our service: the same answers first, then loads in turns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.load import CannotMeasure, Load, bodies_file, wrk
from bench.peers.dialects import PAIRS, V2, Answer
from bench.peers.environments import environment
from bench.peers.report import Pair, Turn
from bench.peers.server import Door, running
from bench.peers.table import Peer
from bench.running import ServiceCpu, free_ports
from tests.support.service_process import ServiceProcess

CONFIDENCE_TOLERANCE = 1e-4  # a batch's padding changes the order of sums
_CHECKED = 256
_WARM_UP_S = 1


class Subject(NamedTuple):
    door: Door
    bodies: Path
    cpu_s: Callable[[], float]

    def turn(self, connections: int, seconds: float) -> Turn:
        self._load(connections, _WARM_UP_S)
        began = self.cpu_s()
        done = self._load(connections, seconds)
        if not done.requests:
            raise CannotMeasure(f"nothing was answered at {self.door.url}{self.door.path}")
        cpu_ms = (self.cpu_s() - began) * 1e3 / done.requests
        return Turn(done.per_s, done.p50_ms, done.p99_ms, cpu_ms, done.errors)

    def _load(self, connections: int, seconds: float) -> Load:
        url, path = self.door.url, self.door.path
        return wrk(url, path, connections=connections, seconds=seconds, bodies=self.bodies)


class Subjects(NamedTuple):
    ours: Subject
    theirs: Subject

    def turns(self, connections: int, seconds: float, *, ours_first: bool) -> Pair:
        """One of each; whose is first changes, so that the host's drift favours nobody."""
        if ours_first:
            own = self.ours.turn(connections, seconds)
            return Pair(own, self.theirs.turn(connections, seconds))
        other = self.theirs.turn(connections, seconds)
        return Pair(self.ours.turn(connections, seconds), other)


class Comparison:
    """Our service runs all the time; asked over KServe v2 where the peer is."""

    def __init__(self, service: ServiceProcess, texts: Sequence[str], instances: int, python39: str) -> None:
        self._service = service
        self._cpu = ServiceCpu(service)
        self._texts = texts
        self._instances = instances
        self._python39 = python39

    @contextlib.contextmanager
    def with_peer(self, peer: Peer, wait_ms: float) -> Iterator[Subjects]:
        """Ours and the peer, after both have answered alike. Raises CannotMeasure."""
        venv = environment(peer.environment, self._python39 if peer.python39 else None)
        (port,) = free_ports(1)
        program, *arguments = (part.format(port=port, instances=self._instances) for part in peer.command)
        door, own = Door(port, peer.path, peer.dialect), self._own_door(peer)
        env = {**peer.env, "PEER_WAIT_MS": str(wait_ms)}
        command = [str(venv / "bin" / program), *arguments]
        with contextlib.ExitStack() as stack:
            processes = stack.enter_context(running(command, venv, door, env, self._texts[0]))
            compare_answers(own.ask_all(self._texts[:_CHECKED]), door.ask_all(self._texts[:_CHECKED]))
            yield Subjects(
                Subject(own, stack.enter_context(self._bodies(own)), lambda: sum(self._cpu.so_far_s())),
                Subject(door, stack.enter_context(self._bodies(door)), processes.cpu_s),
            )

    def _own_door(self, peer: Peer) -> Door:
        port = self._service.http_port
        return (
            Door(port, "/v2/models/bert/infer", V2)
            if peer.dialect is V2
            else Door(port, "/bert/prediction", PAIRS)
        )

    def _bodies(self, door: Door) -> contextlib.AbstractContextManager[Path]:
        return bodies_file([door.dialect.body(text) for text in self._texts])


def compare_answers(ours: Sequence[Answer], theirs: Sequence[Answer]) -> None:
    """Raises CannotMeasure for the first that differ."""
    for own, other in zip(ours, theirs, strict=True):
        if own.label != other.label or abs(own.confidence - other.confidence) > CONFIDENCE_TOLERANCE:
            raise CannotMeasure(f"it does not answer as we do: {other} where ours is {own}")

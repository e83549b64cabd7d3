"""Compares one subject with our service: checks that the answers agree, then loads both in turns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.load import CannotMeasure
from bench.peers.dialects import PAIRS, Answer
from bench.peers.figures import Choice
from bench.peers.loops import loop_processes
from bench.peers.ours import OurService, instances, our_service
from bench.peers.peer_server import peer_server
from bench.peers.scenarios import Model
from bench.peers.server import Endpoint, Processes, Server
from bench.peers.subjects import Loop, Ours, Setting, Subject
from bench.peers.turns import Asked, Looped, Measured, write_bodies

CONFIDENCE_TOLERANCE = 1e-4  # a batch's padding changes the order of sums
MIN_AGREEMENT = 0.9  # of labels in a lower precision: with random weights many scores are close
_CHECKED = 256


class Side(NamedTuple):
    """One side of a comparison: our service or the subject.

    start_s: time until the first answer, or until readiness for a subject without requests.
    """

    measured: Measured
    start_s: float


class Sides(NamedTuple):
    ours: Side
    theirs: Side
    choice: Choice | None


class Comparison:
    """Our service with one model and one kind of texts. The service runs all the time.

    beside: other processes that run all the time.
    """

    def __init__(
        self, own: OurService, model: Model, texts: Sequence[str], beside: Processes, python39: str
    ) -> None:
        self._own = own
        self._beside = beside
        self._model = model
        self._texts = texts
        self._python39 = python39

    @contextlib.contextmanager
    def with_subject(self, subject: Subject, setting: Setting | None = None) -> Iterator[Sides]:
        """Start a subject, and yield both sides after their answers agree. Raises CannotMeasure.

        setting: of a peer; None for its first setting.
        """
        with contextlib.ExitStack() as stack:
            if isinstance(subject, Loop):
                own = self._asked(stack, self._own.endpoint(PAIRS), self._own.server)
                yield Sides(own, self._looped(stack, subject), None)
            elif isinstance(subject, Ours):
                service = stack.enter_context(our_service(subject, self._model, self._texts[0]))
                lower = service.choice.precision != "fp32"
                yield self._checked(
                    stack, service.endpoint(PAIRS), service.server, service.choice, lower=lower
                )
            else:
                server, endpoint = stack.enter_context(
                    peer_server(
                        subject, setting or subject.settings[0], self._model, self._texts, self._python39
                    )
                )
                yield self._checked(stack, endpoint, server)

    def _checked(
        self,
        stack: contextlib.ExitStack,
        endpoint: Endpoint,
        server: Server,
        choice: Choice | None = None,
        *,
        lower: bool = False,
    ) -> Sides:
        own = self._own.endpoint(endpoint.dialect)
        some = self._texts[:_CHECKED]
        compare_answers(own.ask_all(some), endpoint.ask_all(some), lower=lower)
        return Sides(self._asked(stack, own, self._own.server), self._asked(stack, endpoint, server), choice)

    def _asked(self, stack: contextlib.ExitStack, endpoint: Endpoint, server: Server) -> Side:
        bodies = stack.enter_context(write_bodies(endpoint, self._texts))
        return Side(Asked(endpoint, server.processes, bodies, self._beside), server.start_s)

    def _looped(self, stack: contextlib.ExitStack, loop: Loop) -> Side:
        processes = stack.enter_context(
            loop_processes(self._model.directory, loop.engine, loop.precision, self._texts, instances())
        )
        return Side(Looped(processes, self._beside, everything=loop.everything), processes.start_s)


def compare_answers(ours: Sequence[Answer], theirs: Sequence[Answer], *, lower: bool = False) -> None:
    """Raise CannotMeasure for the first pair of different answers.

    In a lower precision, too many different labels raise it.
    """
    other = [pair for pair in zip(ours, theirs, strict=True) if not _same(*pair, label_alone=lower)]
    allowed = (1 - MIN_AGREEMENT) * len(ours) if lower else 0
    if len(other) > allowed:
        own, their = other[0]
        raise CannotMeasure(f"it does not answer as we do: {their} where ours is {own}, {len(other)} times")


def _same(own: Answer, other: Answer, *, label_alone: bool) -> bool:
    near = label_alone or abs(own.confidence - other.confidence) <= CONFIDENCE_TOLERANCE
    return near and own.label == other.label

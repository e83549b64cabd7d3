"""Turns: the fair order of requests: while several clients wait, each has one request in every turn.

A client's next request stands one turn behind its last, and never behind the turn that is being served: who
asks little goes ahead of what a flooding client has queued, and who asks alone is served in order of arrival.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.server.engine.clients import Client
    from pipeline.server.engine.walk import Walk

_SEQUENCES = 40  # bits of a job's number below its turn: jobs of a process, which it can't use up


class Turns:
    """now: that of the latest hand-over. latest: of the last in line. clients: who has requests pending."""

    __slots__ = ("clients", "latest", "now")

    def __init__(self) -> None:
        self.now = 0
        self.latest = 0
        self.clients = 0

    def next(self, client: Client) -> int:
        """The turn that a request of this client would have."""
        turn = client.turn
        return (turn if turn > self.now else self.now) + 1

    def admit(self, client: Client, turn: int) -> None:
        client.turn = turn
        if turn > self.latest:
            self.latest = turn
        if not client.pending:
            self.clients += 1
        client.pending += 1

    def end(self, client: Client) -> None:
        client.pending -= 1
        if not client.pending:
            self.clients -= 1

    def hand_over(self, walk: Walk) -> None:
        """The last job of a hand-over is of this request."""
        turn = walk.request.turn
        if turn > self.now:
            self.now = turn


def number_of(turn: int, sequence: int) -> int:
    """Orders jobs by turn, those of one turn by arrival."""
    return (turn << _SEQUENCES) + sequence


def end_of(turn: int) -> int:
    """The number above all those of a turn."""
    return (turn + 1) << _SEQUENCES

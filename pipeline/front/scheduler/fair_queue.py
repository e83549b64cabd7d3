"""FairQueue: the fair order of requests: while several clients wait, each has one request in every turn.

A client's next request stands one turn behind its last, and never behind the turn that is being served: who
asks little goes ahead of what a flooding client has queued, and who asks alone is served in order of arrival.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.front.scheduler.clients import Client
    from pipeline.front.scheduler.dag_run import DagRun


class FairQueue:
    """now: that of the latest hand-over. latest: of the last in line. clients: who has requests pending."""

    __slots__ = ("clients", "latest", "now")

    def __init__(self) -> None:
        self.now = 0
        self.latest = 0
        self.clients = 0

    def next(self, client: Client) -> int:
        """The turn that a request of this client would have."""
        return max(client.turn, self.now) + 1

    def admit(self, client: Client) -> int:
        """One more request of this client is pending; its turn."""
        behind = client.turn if client.turn > self.now else self.now
        turn = client.turn = behind + 1  # `next`
        if turn > self.latest:
            self.latest = turn
        if not client.pending:
            self.clients += 1
        client.pending += 1
        return turn

    def end(self, client: Client) -> None:
        client.pending -= 1
        if not client.pending:
            self.clients -= 1

    def hand_over(self, dag_run: DagRun) -> None:
        """The last job of a hand-over is of this request."""
        turn = dag_run.request.turn
        if turn > self.now:
            self.now = turn

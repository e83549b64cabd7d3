"""Admission: refuses at the door what would only wait in vain."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.api.dag import Dag
from pipeline.errors import DeadlineExceeded, Overloaded
from pipeline.front.scheduler.fair_queue import FairQueue
from pipeline.front.scheduler.request import Request

if TYPE_CHECKING:
    from pipeline.front.scheduler.batcher import Batcher
    from pipeline.front.scheduler.clients import Client

MARGIN = 1.5  # runs differ, and who waits at the end of a long queue waits no less in vain
LONGEST_PAUSE_S, SHORTEST_PAUSE_S = 60.0, 0.1
_UNKNOWN_PAUSE_S = 1.0


class Admission:
    """Bounds what is pending, and compares each request's expected wait with its deadline.

    An Op's wait is its queue times what a job takes there, shared among its instances. A request that finds
    an idle instance in every Op on its way is never refused: so an estimate that was wrong is mended, and one
    that is not there yet refuses nobody.
    """

    def __init__(
        self, dag: Dag, batchers: Mapping[str, Batcher], fair_queue: FairQueue, max_pending: int
    ) -> None:
        self._dag = dag
        self._batchers = batchers
        self._fair_queue = fair_queue
        self._max_pending = max_pending
        self._enough_s = 0.0  # who has more time than this is in time, however much is pending
        self._mixed = False  # whether requests of a lower priority have been seen
        for batcher in batchers.values():
            batcher.on_pace = self._note_pace

    def check(self, request: Request, client: Client, pending: int) -> None:
        """Raises Overloaded and DeadlineExceeded."""
        if pending >= self._max_pending and not self._made_room(request, client):
            wait_s = _pause(self._finish_s(self._dag.order, pending, None) or _UNKNOWN_PAUSE_S)
            raise Overloaded(
                f"{pending} requests are pending, the most that dag.max_pending_requests allows; "
                f"try again in {wait_s:.1f} s",
                retry_after_s=wait_s,
            )
        if request.priority:
            self._mixed = True
        remaining_s = request.deadline - time.monotonic()
        if remaining_s < self._enough_s or remaining_s <= 0.0:
            self._compare(request, client, pending, remaining_s)

    def _compare(self, request: Request, client: Client, pending: int, remaining_s: float) -> None:
        if remaining_s <= 0.0:
            raise DeadlineExceeded("the request's deadline had passed when it arrived")
        order = (request.op,) if request.op else self._dag.order
        if all(self._batchers[op].idle for op in order):
            return
        expected_s = MARGIN * self._finish_s(order, pending, None)
        turn = self._fair_queue.next(client)
        if expected_s > remaining_s and (self._mixed or turn < self._fair_queue.latest):
            place = request.priority, turn + 1  # not behind all that wait
            expected_s = MARGIN * self._finish_s(order, pending, place)
        if expected_s > remaining_s:
            wait_s = _pause(expected_s - remaining_s)
            raise Overloaded(
                f"the answer is expected in {expected_s:.3f} s, and the request has {remaining_s:.3f} s left "
                f"until its deadline; try again in {wait_s:.1f} s",
                retry_after_s=wait_s,
            )

    def _made_room(self, request: Request, client: Client) -> bool:
        """Whether a request of a client with more than its share was refused in favour of this one.

        It is the last in line, and so one of whoever has queued the most.
        """
        if client.pending * max(1, self._fair_queue.clients) >= self._max_pending:
            return False
        for batcher in self._batchers.values():
            job = batcher.last()
            if job is None:
                continue
            other = job.dag_run.request
            greedy = other.client is not None and other.client.pending > client.pending + 1
            if greedy and other.priority >= request.priority:
                batcher.drop(job)
                wait_s = _pause(self._finish_s(self._dag.order, self._max_pending, None))
                job.dag_run.fail(
                    Overloaded(
                        f"dag.max_pending_requests ({self._max_pending}) are pending, of this client more "
                        f"than its share; try again in {wait_s:.1f} s",
                        retry_after_s=wait_s,
                    )
                )
                return True
        return False

    def _finish_s(self, order: tuple[str, ...], pending: int, place: tuple[int, int] | None) -> float:
        """Seconds until a request that begins now is answered.

        What queues before an Op will queue before the next one, too. All Ops work at the same time, so the
        slowest makes the wait; then the request has a run in each on the longest way. Queues also hold what
        nobody waits for any more, so there are no more ahead than are pending.
        """
        ahead: dict[str, int] = {}
        runs_s: dict[str, float] = {}
        wait_s = 0.0
        for op in order:
            batcher = self._batchers[op]
            inputs = [name for name in self._dag.nodes[op].inputs if name in ahead]
            upstream = max((ahead[name] for name in inputs), default=0)
            ahead[op] = min(pending, batcher.ahead(place) + upstream)
            runs_s[op] = batcher.pace.run_s + max((runs_s[name] for name in inputs), default=0.0)
            wait_s = max(wait_s, batcher.wait_s(ahead[op]))
        return wait_s + max(runs_s.values())

    def _note_pace(self) -> None:
        paces = [batcher.pace for batcher in self._batchers.values()]
        self._enough_s = MARGIN * sum(self._max_pending * pace.per_job_s + pace.run_s for pace in paces)


def _pause(wait_s: float) -> float:
    return min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, wait_s))

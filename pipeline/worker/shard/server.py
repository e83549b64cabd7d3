"""A shard: a worker process that also serves HTTP connections, with its own event loop and batcher."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import select
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any

import msgspec
import uvloop

from pipeline.api.app import App
from pipeline.api.restrictions import INFERENCE
from pipeline.dialects.front_parts import Dialects
from pipeline.front.dag_run import DagRun, Task
from pipeline.front.http.connection import HttpRequest
from pipeline.front.http.http_handler import HttpApp, Routes
from pipeline.front.http.listener import Listener
from pipeline.front.metrics.growth import get_metrics_totals
from pipeline.front.metrics.metrics import Metrics
from pipeline.front.pool.plan import Plan
from pipeline.front.pool.shard_plan import divide_limits
from pipeline.front.repository import Repository
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.messages.messages import Ready
from pipeline.messages.shards import ALL, MOVED, PASSED_ON, RECALL, SERVE, Channel, Journal
from pipeline.worker.executor import Executor
from pipeline.worker.shard.connection import EVENTS, ShardConnection
from pipeline.worker.shard.in_process import TOGETHER_S, OwnProcess

log = logging.getLogger(__name__)

REPORT_EVERY_S = 0.1
_REPORTS_PER_S = 10
_MAX_EVENTS = 128  # of sockets, handled in one turn of the event loop
_SHARED_MEMORY = b"shared_memory"  # in requests of KServe v2 whose regions are mapped in the front


class Shard:
    """Serves client connections that the front process passes on, in a thread of a worker process."""

    def __init__(
        self,
        app: App,
        version: str,
        channel_fd: int,
        journal_fd: int,
        executors: Sequence[Executor],
        ready: Ready,
    ) -> None:
        """version: version of the Op's model.

        executors: one for each instance. ready: describes the model.
        """
        self._app = app = divide_limits(app)
        self._plan = Plan(app, version, "", [range(len(executors))], frozenset())
        self._channel = Channel(socket.socket(fileno=channel_fd))
        self.journal = Journal(journal_fd, os.fstat(journal_fd).st_size)
        self._executors = executors
        self._ready = ready
        self._by_fd: dict[int, ShardConnection] = {}
        self._unsent: list[tuple[int, int]] = []  # packets that the full channel did not take
        self._reported = b""  # metrics that the front has
        self._recalls = 0.0  # connections that the front wants back
        self._listener = Listener(app.config.limits)
        self._started: Future[None] = Future()
        os.register_at_fork(after_in_child=self._close_in_child)

    def start(self) -> None:
        """Start the thread, and wait until it serves connections. Raises the exception of a failed start."""
        run = partial(copy_context().run, uvloop.run, self._serve())
        self._thread = threading.Thread(target=run, name="shard", daemon=True)
        self._thread.start()
        self._started.result()

    def stop(self) -> None:
        """Give all connections back to the front process after their current requests, and end the thread."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._loop.call_soon_threadsafe(self._recall, ALL)
        self._thread.join()

    async def _serve(self) -> None:
        try:
            await self._open()
        except BaseException as exc:
            self._started.set_exception(exc)
            return
        watcher = asyncio.create_task(self._listener.watch())
        reporter = asyncio.create_task(self._report())
        self._started.set_result(None)
        await self._stopping.wait()
        while self._by_fd or self._unsent:
            await asyncio.sleep(0.01)
        watcher.cancel()
        reporter.cancel()
        self._send_report()
        self._scheduler.access_log.close()

    async def _open(self) -> None:
        """Create the batcher and the protocols, and start to receive connections."""
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._metrics = Metrics(self._app.name)
        outputs: Any = None  # the front reads the output of this process
        self._scheduler = scheduler = Scheduler(
            self._app, self._metrics, outputs,
            create_plan=lambda app, op: self._plan,
            create_process=partial(OwnProcess.create, self._executors, self._ready),
        )  # fmt: skip
        for batcher in scheduler.batchers.values():
            batcher.pass_on, batcher.held_s = self._give_back_queued, TOGETHER_S
            batcher.pool.start()
        await scheduler.until_ready()
        dialects = Dialects(self._app.dialects, scheduler, Repository(scheduler))
        self._routes = Routes(dialects.handlers)
        self._http = HttpApp(scheduler, self._routes, dialects.openapi)
        self._epoll = select.epoll()
        self._loop.add_reader(self._epoll.fileno(), self._handle_events)
        self._loop.add_reader(self._channel.socket, self._receive)

    def _handle_events(self) -> None:
        """Handle the events of client connections."""
        for fd, events in self._epoll.poll(0, _MAX_EVENTS):
            connection = self._by_fd.get(fd)
            if connection is not None:
                try:
                    connection.on_events(events)
                except Exception:
                    log.exception("A fault of ours on the connection of %s", connection.peer)
                    connection.close()

    def _receive(self) -> None:
        """Receive connections from the front process, and its orders to give connections back."""
        try:
            while (packet := self._channel.receive()) is not None:
                kind, number, _, connection = packet
                if kind == SERVE and connection is not None:
                    self._add(number, connection)
                elif kind == RECALL:
                    self._recall(number)
        except EOFError:  # the front is gone, and this process ends with it
            self._loop.remove_reader(self._channel.socket)

    def _add(self, slot: int, connection: socket.socket) -> None:
        served = ShardConnection(self._http, self._listener, self, slot, connection)
        self._by_fd[connection.fileno()] = served
        self._epoll.register(connection, EVENTS)
        served.give_back_if_idle()

    def _recall(self, count: int) -> None:
        """Give back `count` connections to the front process: idle ones now, others after their request."""
        self._recalls = math.inf if count == ALL else self._recalls + count
        for connection in list(self._by_fd.values()):
            connection.give_back_if_idle()
        self._recalls = min(self._recalls, math.inf if self._stopping.is_set() else len(self._by_fd))

    def _give_back_queued(self, tasks: Sequence[Task]) -> None:
        """Give back connections whose requests wait behind late inferences: other shards may be idle."""
        dag_runs: dict[Callable[[], None] | None, DagRun] = {
            task.dag_run.leave: task.dag_run for task in tasks if task.wanted
        }
        for connection in list(self._by_fd.values()):
            dag_run = dag_runs.get(connection.leave_request)
            if dag_run is not None:
                dag_run.is_passed_on = True
                connection.give_back(PASSED_ON)

    # As the owner of connections:

    @property
    def recalls(self) -> bool:
        return self._recalls > 0

    def serves(self, request: HttpRequest) -> bool:
        """Return whether the shard answers a request itself: an inference without state in the front process.

        Compressed requests go to the front process, and so do requests that name shared memory, because its
        regions are mapped there.
        """
        if request.method != "POST" or b"content-encoding" in request.headers:
            return False
        return self._routes.find_api(request.path) == INFERENCE and _SHARED_MEMORY not in request.body

    def remove(self, connection: ShardConnection, kind: int) -> None:
        """Forget a connection, and report to the front process that another process serves or closes it."""
        self._by_fd.pop(connection.socket.fileno(), None)
        with suppress(OSError):
            self._epoll.unregister(connection.socket)
        if kind == MOVED:
            self._recalls -= 1
        self._unsent.append((kind, connection.slot))
        self._send_packets()

    def _send_packets(self) -> None:
        while self._unsent and self._channel.send(*self._unsent[0]):
            del self._unsent[0]

    async def _report(self) -> None:
        """Send the metrics to the front process regularly. Retry packets that the full channel refused."""
        for number in itertools.count():
            await asyncio.sleep(REPORT_EVERY_S)
            self._send_packets()
            self._send_report(is_sign_of_life=number % _REPORTS_PER_S == 0)

    def _send_report(self, *, is_sign_of_life: bool = True) -> None:
        """Send metrics and recent errors to the front process, if they have changed.

        is_sign_of_life: send them even if nothing has changed.
        """
        scheduler = self._scheduler
        totals = get_metrics_totals(self._metrics, scheduler.request_figures())
        causes = scheduler.recent_errors.list_causes()
        answered = sum(self._metrics.outcomes.values())
        waiting = sum(batcher.waiting for batcher in scheduler.batchers.values())
        report = msgspec.msgpack.encode((answered, scheduler.pending, waiting, totals, causes))
        if (is_sign_of_life or report != self._reported) and self._channel.send_metrics(report):
            self._reported = report

    def _close_in_child(self) -> None:
        """Close the connections in a child process that user code has forked.

        An open copy in the child would hide the shard's end of the connection from the client.
        """
        for fd in (*self._by_fd, self._channel.socket.fileno()):
            with suppress(OSError):
                os.close(fd)

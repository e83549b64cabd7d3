"""Instances of a shard: threads that execute dispatches of the batcher in the same process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Sequence
from contextvars import copy_context
from typing import Any

from msgspec.structs import astuple

from pipeline.front.dag_run import Task
from pipeline.front.pool.worker_process import Dispatch, Instance, WorkerProcess
from pipeline.messages.frames import Arena, Part, Tail, create_arena_fd
from pipeline.messages.messages import CallMessage, Message, Ready, Reply, Settled, Timings
from pipeline.process.log import lines_written
from pipeline.worker.call import Call
from pipeline.worker.executor import Executor

log = logging.getLogger(__name__)

# The clients of a shard wait little longer for batches that are answered together, because its event loop and
# its model share the cores, and an event loop between two batches costs both.
TOGETHER_S = 0.02

Work = tuple[Dispatch, list[CallMessage], Sequence[Part], int]
"""A dispatch, the messages of its tasks, their large parts, and the limit of batches; 0: as configured."""


class ThreadInstance(Instance):
    """An instance in the same process as its batcher: a thread that takes dispatches from a queue."""

    def start(self, executor: Executor) -> None:
        """Start the thread. executor: answers the requests of the instance."""
        self._loop = asyncio.get_running_loop()
        arena_fd = create_arena_fd()
        self._arena = Arena(arena_fd)
        os.close(arena_fd)
        executor.together_ns = round(TOGETHER_S * 1e9)
        self._executor = executor
        self._replies: deque[tuple[Reply, Tail]] = deque()  # which the event loop has not taken yet
        self._is_loop_called = False  # whether the event loop is going to take the replies
        self._work: queue.SimpleQueue[Work] = queue.SimpleQueue()
        run = copy_context().run  # NumPy keeps the app's print options in the context
        threading.Thread(target=run, args=(self._execute_all,), daemon=True).start()

    def send(self, message: Message) -> None:
        """Do nothing: the front process probes the shard's process, not its threads."""

    def dispatch(
        self, tasks: Sequence[Task], calls: list[CallMessage], tail: Sequence[Part], batch_limit: int = 0
    ) -> None:
        """Queue tasks for the thread. The arguments are those of `Instance.dispatch`."""
        dispatch = self._create_dispatch(tasks, calls)
        self._enter_flight(dispatch)
        self._work.put((dispatch, calls, tail, batch_limit))

    def abandon(self) -> None:
        """End the process, because inference hangs. Another shard then serves the requests."""
        self.process.kill("its run hangs")

    def _execute_all(self) -> None:
        self._arena.name_thread(threading.get_native_id())
        try:
            while True:
                self._execute(*self._work.get())
        except BaseException:
            log.exception("A fault of ours has ended a thread of Op %s", self.op)
            self._loop.call_soon_threadsafe(self.process.kill, "a thread has ended")

    def _execute(
        self, dispatch: Dispatch, messages: list[CallMessage], tail: Sequence[Part], batch_limit: int
    ) -> None:
        """Answer the requests of a dispatch."""
        arena, dispatch_id = self._arena, dispatch.id

        def may_begin(requests: int) -> bool:
            arena.note_begin(dispatch_id, requests)  # before the look, see `Arena.take_back`
            return not arena.taken_back(dispatch_id)

        def send(settled: list[Settled], tail: list[Part], timings: Timings, *, last: bool) -> None:
            reply = Reply(dispatch_id, last, settled, timings)
            # Copied here: a hook may reuse its arrays for the next request.
            self._replies.append((reply, Tail(b"".join(tail), writable=False)))
            if not self._is_loop_called:
                self._is_loop_called = True
                self._loop.call_soon_threadsafe(self._receive_replies)

        if not may_begin(0):
            send([], [], Timings(), last=True)
            return
        if batch_limit:
            self._executor.limit_batches(batch_limit)
        calls = [Call(*astuple(message)) for message in messages]
        self._executor.run(calls, Tail(b"".join(tail)), send, may_begin)

    def _receive_replies(self) -> None:
        """Take all replies that the thread has sent so far."""
        self._is_loop_called = False  # before the look, so that no later reply is left
        while self._replies:
            self._drain_settling(self._take_reply(*self._replies.popleft()))


class OwnProcess(WorkerProcess):
    """The current process, as seen by the shard that runs in it: a worker process with its instances.

    A shard is a worker that serves client connections itself.
    """

    executors: Sequence[Executor]
    ready: Ready

    @classmethod
    def create(cls, executors: Sequence[Executor], ready: Ready, *args: Any) -> OwnProcess:
        """Create the object.

        executors: one for each instance. ready: describes the model. args: arguments of `WorkerProcess`.
        """
        process = cls(*args)
        process.executors, process.ready = executors, ready
        return process

    instance_type = ThreadInstance

    def start(self) -> None:
        """Start the threads of the instances."""
        for instance, executor in zip(self.instances, self.executors, strict=True):
            assert isinstance(instance, ThreadInstance)
            instance.start(executor)
        asyncio.get_running_loop().call_soon(self.became_ready, self.ready)

    def begin_service(self) -> None:
        """Do nothing: the front process logs that the worker process is ready."""

    @property
    def pid(self) -> int:
        return os.getpid()

    def kill(self, because: str) -> None:
        """Kill this process. The front starts another one, and other shards serve its connections."""
        log.error("Shard %s ends: %s", self.name, because)
        with contextlib.suppress(Exception):
            lines_written()
        os.kill(os.getpid(), signal.SIGKILL)

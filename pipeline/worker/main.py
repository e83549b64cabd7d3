"""The worker process: runs the user's script up to its `run_service`, then answers requests from the front.

It hosts one instance of its Op (a step of the service) or several, each with a thread and a connection of its
own. The first instance has the main thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from pipeline.api import service
from pipeline.api.app import App, read_models
from pipeline.api.op import ModelCode, Op
from pipeline.dialects.dialect import load_forms
from pipeline.errors import ConfigError, ServingError, StartFailed
from pipeline.messages.frames import (
    OTHER_VERSION,
    PACKAGE_CHANGED,
    PROTOCOL_VERSION,
    SHARD,
    Arena,
    Frame,
    FrameReader,
    Part,
    Region,
    arena_fds,
    create_decoders,
    forbid_pickle,
    frame,
    reply_region,
)
from pipeline.messages.messages import (
    KINDS,
    STOP_HANDLER_S,
    AnswersDelivered,
    CallStopHandler,
    CancelCall,
    Failed,
    Message,
    Models,
    OwnFamilies,
    Probe,
    Probed,
    Ready,
    Reply,
    Settled,
    Start,
    StreamedAnswer,
    Timings,
)
from pipeline.paddle_serving.numpy_1 import install_numpy_1_names
from pipeline.process.app_modules import lead_import_path, offer_paddle_serving_names
from pipeline.process.environment import release_memory, settle_memory
from pipeline.process.isolation import isolated
from pipeline.process.log import keep_our_loggers, lines_written, set_up_logging
from pipeline.process.processes import die_with, name_process
from pipeline.process.run_module import PACKAGES
from pipeline.worker.answer_streams import AnswerStream, Encode
from pipeline.worker.call import Call, Dispatch
from pipeline.worker.executor import LOAD_NOTE, Executor, create_executors
from pipeline.worker.hooks import format_user_traceback, said_by
from pipeline.worker.joint_executor import create_joint_executor
from pipeline.worker.readiness import watch_readiness
from pipeline.worker.shared_ports import share_ports

if TYPE_CHECKING:
    from pipeline.worker.shard.server import Shard

log = logging.getLogger(__name__)

StopHandler = Callable[[int, FrameType | None], object]


def get_stop_handler() -> StopHandler | None:
    """Return the SIGTERM handler that the user's script has set in this process; None if it has set none."""
    handler = signal.getsignal(signal.SIGTERM)
    return handler if callable(handler) and not isinstance(handler, signal.Handlers) else None


def call_stop_handler(handler: StopHandler) -> None:
    """Call the SIGTERM handler of the user's script, and log its exception.

    The process ends if the handler takes over STOP_HANDLER_S seconds.
    """
    timer = threading.Timer(STOP_HANDLER_S, _give_up)
    timer.daemon = True
    timer.start()
    try:
        handler(signal.SIGTERM, sys._getframe())
    except (SystemExit, KeyboardInterrupt):  # the usual end of such a handler
        pass
    except BaseException:
        log.exception("The script's handler of SIGTERM failed")
    finally:
        timer.cancel()


def _give_up() -> None:
    log.error("The script's handler of SIGTERM took over %g s: its process ends", STOP_HANDLER_S)
    lines_written()
    os._exit(1)


_CLOSE_RANGE_UNSHARE = 2
_LAST_FD = 2**32 - 1


def hold_lifeline(fd: int) -> None:
    """Keep a file descriptor open in one thread only, so that it closes when this process dies.

    Neither the other threads nor children that a hook forks keep it. Where the system can't do that, all
    threads keep it, and the front process learns of the death by a pidfd.
    """
    unshared: Future[bool] = Future()
    threading.Thread(target=_hold, args=(fd, unshared), name="lifeline", daemon=True).start()
    if unshared.result():
        os.close(fd)


def _hold(fd: int, unshared: Future[bool]) -> None:
    # In glibc since 2.34. Not unshare(2), which containers are usually not allowed.
    close_range = getattr(ctypes.CDLL(None), "close_range", None)
    last = ctypes.c_uint(_LAST_FD)
    unshared.set_result(close_range is not None and close_range(fd + 1, last, _CLOSE_RANGE_UNSHARE) == 0)
    threading.Event().wait()


# Added to oom_score_adj (proc(5)): half of all memory. Where it runs out, the kernel looks for another victim
# before the memory of the last one is free again, and without this it took the front.
WORKER_OOM_SCORE = 500
_RECEIVE_BYTES = 256 * 1024
_DECODERS = create_decoders((*KINDS, Dispatch))
# Above this memory is released after a dispatch: 30,000,000 numbers in JSON leave 1 GB of free pieces.
LARGE_DISPATCH_BYTES = 16 << 20
_METRICS_PAUSE_S = 0.05  # between two messages with the metrics of a model that runs


class Front:
    """Connection of one worker instance to the front process: receives requests and sends replies.

    Frames travel over a socket, large parts through shared memory. End of file means stop. Any thread may
    send. Whichever thread waits for a message first reads for all threads.
    """

    def __init__(self, socket_fd: int, arena_fd: int) -> None:
        self._socket = socket.socket(fileno=socket_fd)
        self._arena = Arena(arena_fd)
        self._reader = FrameReader(self._arena, decoders=_DECODERS)
        self._frames: deque[Frame] = deque()  # received, for `receive`
        self._received = threading.Condition(threading.Lock())
        self._is_reading = False  # whether a thread waits at the socket
        self._ended = False  # end of file
        self._sending = threading.Lock()
        self._telling_metrics = threading.Lock()
        self._streams: dict[tuple[int, int], AnswerStream] = {}  # by dispatch and index of the request
        # Returns the metrics that the model counts itself, if they have changed; None without any.
        self.own_metrics: Callable[[], list[Any] | None] | None = None
        self.service_stops = False  # the process shall call the script's handler of SIGTERM at its end

    def receive(self) -> Frame | None:
        """Wait for the next frame from the front process. Returns None when this worker has to end."""
        self.wait_until(lambda: bool(self._frames))
        return self._frames.popleft() if self._frames else None

    def wait_until(self, is_over: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Process messages of the front process until a condition that they change is true.

        Return whether it is true. Returns False at the end of file, and after `timeout_s` seconds. With 0,
        only messages that have arrived are processed.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._received:
            while not is_over() and not self._ended:
                rest_s = None if deadline is None else deadline - time.monotonic()
                if self._is_reading:
                    if rest_s is not None and rest_s <= 0:
                        break
                    self._received.wait(rest_s)
                elif not self._read(rest_s):
                    break
        return is_over()

    def _read(self, timeout_s: float | None) -> bool:
        """Wait for bytes of the front process, and process their messages, also for other threads.

        The caller holds the lock of `_received`; the lock is free during the wait. Returns False after
        `timeout_s`.
        """
        self._is_reading = True
        self._received.release()
        try:
            arrived = timeout_s is None or select.select([self._socket], [], [], max(0.0, timeout_s))[0]
            data = self._socket.recv(_RECEIVE_BYTES) if arrived else b""
        finally:
            self._received.acquire()
            self._is_reading = False
            self._received.notify_all()
        if not arrived:
            return False
        self._ended = not data
        for received in self._reader.feed(data):
            message = received.message
            if isinstance(message, AnswersDelivered | CancelCall):
                stream = self._streams.get((message.dispatch, message.index))
                if stream is not None:
                    stream.take_message(message)
            else:
                self._frames.append(received)
        return True

    def send(self, message: Message) -> None:
        """Send a message without large parts to the front process."""
        self._write(frame(message))

    def name_thread(self) -> None:
        """Record this thread's id in shared memory, as the thread that runs the instance."""
        self._arena.name_thread(threading.get_native_id())

    def begin_dispatch(self, dispatch_id: int) -> DispatchReplies | None:
        """Mark a dispatch (a group of requests from the front process) as begun.

        Returns the sender of its replies.

        If this process dies from then on, the dispatch is a possible cause. Returns None for a dispatch that
        the front has taken back for other instances.
        """
        replies = DispatchReplies(self, self._arena, self._streams, dispatch_id)
        if not replies.may_begin(0):
            self.send(Reply(dispatch_id, True, [], Timings()))
            return None
        return replies

    def reply(self, reply: Reply, tail: list[Part], region: Region) -> None:
        """Send the results of some requests to the front process; large parts go through shared memory.

        tail: the large parts. region: the dispatch's part of the shared memory.
        """
        self.tell_own_metrics()  # before the answer, so that its client finds them in /metrics
        self._write(frame(reply, tail, self._arena, region))

    def tell_own_metrics(self) -> None:
        """Send the model's own metrics to the front process, if they have changed."""
        if self.own_metrics is None:
            return
        with self._telling_metrics:  # an older state must not follow a newer one
            self._write(self._own_metrics_frame(self.own_metrics))

    def tell_metrics_in_background(self, changed: threading.Event) -> None:
        """Send changed metrics of the model to the front process while the model runs.

        changed: event that is set when metrics have changed.
        """

        def send_changes() -> None:
            with contextlib.suppress(OSError):  # the front has closed the connection
                while changed.wait():
                    time.sleep(_METRICS_PAUSE_S)  # replies send most changes
                    self.tell_own_metrics()

        threading.Thread(target=send_changes, name="metrics", daemon=True).start()

    @isolated(())
    def _own_metrics_frame(self, own_metrics: Callable[[], list[Any] | None]) -> list[Part]:
        families = own_metrics()
        return [] if families is None else frame(OwnFamilies(families))

    def send_streamed(self, answer: StreamedAnswer, tail: Sequence[Part]) -> None:
        """Send one of several answers to a request; large parts go over the socket.

        Answers may come after the dispatch, when the shared memory for its replies is already free for other
        uses.
        """
        self.tell_own_metrics()
        self._write(frame(answer, tail))

    def _write(self, buffers: Sequence[Part]) -> None:
        with self._sending:
            for buffer in buffers:
                self._socket.sendall(buffer)


class DispatchReplies:
    """Sends a dispatch's results to the front process, and records how many of its requests have begun."""

    def __init__(
        self, front: Front, arena: Arena, streams: dict[tuple[int, int], AnswerStream], dispatch_id: int
    ) -> None:
        self._front = front
        self._arena = arena
        self._streams = streams
        self._id = dispatch_id
        # One for all replies: each fills it behind the reply before, which the front may not have read yet.
        self._region = reply_region(dispatch_id)

    def may_begin(self, requests: int) -> bool:
        """Record that the first `requests` requests have begun.

        Returns False if the front process has taken back the others.
        """
        self._arena.note_begin(self._id, requests)  # before the look, see `Arena.take_back`
        return not self._arena.taken_back(self._id)

    def send(self, settled: list[Settled], tail: list[Part], timings: Timings, *, last: bool) -> None:
        """Send the results of some requests to the front process. last: whether the dispatch is complete.

        tail: large parts of the results. timings: durations and counts, for metrics.
        """
        self._front.reply(Reply(self._id, last, settled, timings), tail, self._region)

    def open_stream(self, call: Call, encode: Encode) -> AnswerStream:
        """Return the sender of several answers to a request. encode: encodes the output of a request."""
        key = self._id, call.index
        stream = AnswerStream(self._front, key, call, encode, partial(self._streams.pop, key, None))
        self._streams[key] = stream
        return stream


class Worker:
    """All instances of one Op (a step of the service) in this process, which serve until end of file.

    fronts: a connection for each instance. start: the front process's message that starts the worker.
    shard_fds: file descriptors of the channel and journal of a shard (a worker that serves client
    connections); empty for a worker that serves no connections. Raises ConfigError for a plugin of a protocol
    that can't be loaded.
    """

    def __init__(self, fronts: Sequence[Front], app: App, start: Start, shard_fds: Sequence[int]) -> None:
        self._fronts = fronts
        self._app = app
        self._start = start
        self._shard_fds = shard_fds
        self._forms = load_forms(app.dialects)
        self._model_code: ModelCode | None = None  # counts metrics of its own

    def run_script(self) -> NoReturn:
        """Run the user's script with its original arguments; its call of `run_service` becomes `serve`.

        Raises StartFailed if the script ends without that call.
        """
        service.serve_instead = self.serve
        sys.argv = [self._app.script, *self._app.arguments]
        os.chdir(self._app.folder)
        module = self._app.module
        if module.partition(".")[0] not in PACKAGES:  # a repository's service is a module of ours
            folder = Path(self._app.folder) if module else Path(self._app.script).parent
            lead_import_path(folder, serves=True)
        offer_paddle_serving_names()
        install_numpy_1_names()
        if module:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(self._app.script, run_name="__main__")
        raise StartFailed(f"{self._app.script} ended without calling run_service")

    def serve(self, web_service: service.Service) -> NoReturn:
        """Load the Op and its model, tell the front process of readiness, and answer requests.

        Ends the process when the front process closes the connections.
        """
        keep_our_loggers()
        stop_handler = get_stop_handler()
        _leave_signals_to_the_front()
        op = self._create_op(web_service)
        executors, ready = self.executors(op)
        shard = self._start_shard(executors, ready)
        stop_handler = get_stop_handler() or stop_handler  # init_op may have set one
        _leave_signals_to_the_front()  # again: importing Paddle takes SIGTERM over, whoever imports it
        settle_memory()
        ready.has_stop_handler = stop_handler is not None
        if self._model_code is not None and (check := self._model_code.readiness_check) is not None:
            watch_readiness(check, self._fronts[0])  # the first result comes before the process is ready
        self._fronts[0].send(ready)
        if self._model_code is not None:
            for front in self._fronts:
                front.own_metrics = self._model_code.own_metrics
            self._fronts[0].tell_own_metrics()
            if (changed := self._model_code.metrics_changed) is not None:
                self._fronts[0].tell_metrics_in_background(changed)
        threads = [
            # In a copy of this context: NumPy keeps print options there, ours and those that the app set.
            threading.Thread(target=copy_context().run, args=(_answer_or_die, *served))
            for served in zip(self._fronts[1:], executors[1 : len(self._fronts)], strict=True)
        ]
        for thread in threads:
            thread.start()
        _answer_dispatches(self._fronts[0], executors[0])
        for thread in threads:
            thread.join()
        if shard is not None:
            shard.stop()
        if self._model_code is not None:
            self._model_code.close()
        if stop_handler is not None and self._fronts[0].service_stops:
            call_stop_handler(stop_handler)
        if lines_written():
            logging.shutdown()
        os._exit(0)  # frameworks' exit handlers may hang or crash; there is nothing left to save

    def _create_op(self, web_service: service.Service) -> Op:
        if web_service.name != self._app.name:
            raise StartFailed(
                f"{self._app.script} runs service {web_service.name} in a worker, not {self._app.name}"
            )
        return web_service.create_op(self._app, self._start.op)

    def _start_shard(self, executors: list[Executor], ready: Ready) -> Shard | None:
        """Start serving client connections in this process, with the executors after those of the instances.

        Returns None for a worker that is no shard, and for a model that streams answers: a stream that has
        begun can't be repeated after a crash.
        """
        if not self._shard_fds or ready.streams:
            return None
        from pipeline.worker.shard.server import Shard  # a worker imports no part of the front

        own = executors[len(self._fronts) :]
        channel_fd, journal_fd = self._shard_fds
        shard = Shard(self._app, self._start.version, channel_fd, journal_fd, own, ready)
        shard.start()
        return shard

    def executors(self, op: Op) -> tuple[list[Executor], Ready]:
        """Create an executor for each instance, and in a shard as many again for its own batcher.

        Returns the executors, and the message that tells the front process of readiness.
        """
        if op.steps is not None:
            first = self._start.first_instance
            joint, ready, self._model_code = create_joint_executor(
                op, self._app, self._start.op, self._forms, first=first
            )
            return [joint], ready
        executors, ready = create_executors(
            op,
            self._app,
            self._start.op,
            self._forms,
            count=len(self._fronts) * (2 if self._shard_fds else 1),
            first=self._start.first_instance,
            shares=self._start.shares,
        )
        self._model_code = op.request_runner
        return executors, ready


def main(arguments: list[str]) -> None:
    """Run a worker process; the front process starts it.

        python -m pipeline.worker PROTOCOL_VERSION FRONT_PID KIND LOG_FD LIFELINE_FD SOCKET_FD ARENA_FD ...

    There are as many sockets and shared memories (arenas) as instances. The descriptors of a shard's channel
    and journal precede them. The version is the first argument in
    every version of the package: another version ends at once.
    """
    if arguments[0] != PROTOCOL_VERSION:
        sys.stderr.write(f"{PACKAGE_CHANGED}\n")
        sys.exit(OTHER_VERSION)
    front_pid, kind = int(arguments[1]), arguments[2]
    log_fd, lifeline_fd, *fds = map(int, arguments[3:])
    shard_fds, fds = (fds[:2], fds[2:]) if kind == SHARD else ([], fds)
    os.set_inheritable(log_fd, False)
    die_with(front_pid)
    hold_lifeline(lifeline_fd)  # before this process gives way, so that its thread never does
    _leave_signals_to_the_front()
    _give_way()
    fronts = [Front(*ends) for ends in zip(fds[::2], fds[1::2], strict=True)]
    os.register_at_fork(after_in_child=partial(_close_all, [*fds[::2], *arena_fds()]))
    received = fronts[0].receive()
    if received is None:
        return
    start = received.message
    assert isinstance(start, Start)
    name_process(start.name)
    app = App.from_json(start.app)
    if app.config.nodes is not None:
        forbid_pickle()
    set_up_logging(app.config.logging, app.name, start.name, beside_app=True, log_fd=log_fd)
    share_ports(front_pid)
    try:
        Worker(fronts, app, start, shard_fds).run_script()
    except BaseException as exc:
        _exit_with(exc, fronts[0])


def _answer_dispatches(front: Front, executor: Executor) -> None:
    """Answer the requests and health probes for an instance, until the front process disconnects."""
    front.name_thread()
    while (received := front.receive()) is not None:
        message = received.message
        if isinstance(message, Probe):
            front.send(Probed(executor.probe()))
        elif isinstance(message, Models):
            executor.answer_for(read_models(message.models))
        elif isinstance(message, CallStopHandler):
            front.service_stops = True
        elif isinstance(message, Dispatch):
            replies = front.begin_dispatch(message.id)
            if replies is not None:
                if message.batch_limit:
                    executor.limit_batches(message.batch_limit)
                executor.run(
                    message.calls, received.tail, replies.send, replies.may_begin, replies.open_stream
                )
            is_large = received.tail.size > LARGE_DISPATCH_BYTES
            del message, received, replies  # or their arrays would stay until the next dispatch
            if is_large:
                release_memory()


def _answer_or_die(front: Front, executor: Executor) -> None:
    try:
        _answer_dispatches(front, executor)
    except BaseException as exc:  # as in the main thread: an instance that is gone is told by a death
        _exit_with(exc, front)


def _exit_with(exc: BaseException, front: Front) -> NoReturn:
    """Tell the front process why this worker fails and whether a retry is useless, and end the process."""
    if isinstance(exc, ServingError):
        reason = exc.message
    else:  # the script may also raise SystemExit
        reason = f"{Path(sys.argv[0]).name} raised {said_by(exc)}\n{format_user_traceback(exc)}"
    try:
        front.send(Failed(reason, isinstance(exc, ConfigError), LOAD_NOTE in getattr(exc, "__notes__", ())))
        lines_written()
    finally:
        os._exit(1)


def _close_all(fds: Sequence[int]) -> None:
    """Close file descriptors in a child that user code has forked.

    The child must neither answer in the worker's name nor keep its shared memory.
    """
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def _give_way() -> None:
    """Lower this process's priority, so that the front process comes first on the cores and in memory.

    As a batch process (sched(7)) a waking worker interrupts no other process: a running inference keeps its
    CPU caches, and more requests gather for the next dispatch. Unlike `nice`, this leaves the worker's share
    of the cores unchanged when other programs run. If memory runs out, the kernel kills workers first.
    """
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):  # a sandbox may forbid it
        score.write_text(str(min(1000, int(score.read_text()) + WORKER_OOM_SCORE)))
    with contextlib.suppress(OSError):  # a sandbox may forbid it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _leave_signals_to_the_front() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # which an app may take for itself
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.SIG_IGN)

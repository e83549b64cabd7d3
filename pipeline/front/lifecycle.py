"""The life of the front-end process: start, serve, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from pipeline.api.app import App, read_app
from pipeline.api.restrictions import MODEL_REPOSITORY
from pipeline.config.config_file import ServiceConfig
from pipeline.config.value_types import is_loopback
from pipeline.dialects.front_parts import Dialects
from pipeline.errors import ConfigError, NotReady, StartFailed
from pipeline.front.listeners import Listeners
from pipeline.front.metrics.metrics import Metrics
from pipeline.front.overview import Overview
from pipeline.front.pool.outputs import Outputs
from pipeline.front.pool.plan import placement, wants_processes, wants_threads
from pipeline.front.pool.shard_plan import plan_shards
from pipeline.front.repository import ModelLoader, Repository, log_configurations
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.plugins import DIALECTS, find
from pipeline.process import recording, start_signals
from pipeline.process.environment import settle_memory, trim_heap
from pipeline.process.isolation import isolated
from pipeline.process.log import lines_written, set_up_logging
from pipeline.process.start_signals import has_terminal
from pipeline.tuning.sample import find_request_path


class Recorder:
    """Records requests of the running service in a file, for `paddlewheel tune --record`.

    SIGUSR2 starts and ends a recording, within the limits of `pipeline.process.recording`. A recording
    contains the JSON bodies of HTTP requests whose path names the service.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._file = -1
        self._requests = self._bytes = 0
        self._until: asyncio.TimerHandle | None = None

    def install_handler(self) -> None:
        """Install the handler of SIGUSR2."""
        asyncio.get_running_loop().add_signal_handler(recording.SIGNAL, self._toggle)

    def _toggle(self) -> None:
        """Start a recording, or end the recording in progress."""
        if self._file >= 0:
            self._end()
            return
        try:
            self._file = recording.open_locked(os.getpid())
        except OSError as exc:
            log.error("No request is recorded: %s", exc)
            return
        self._requests = self._bytes = 0
        self._until = asyncio.get_running_loop().call_later(recording.MAX_SECONDS, self._end)
        self._scheduler.recorded = self._record_body
        if self._scheduler.shards is not None:
            self._scheduler.shards.pause()
        log.warning("Requests are recorded to %s", recording.get_recording_path(os.getpid()))

    @isolated(None)
    def _record_body(self, path: str, body: bytes) -> None:
        """Append the JSON body of an answered request to the file, as one line.

        Skips requests that can't be repeated from the body alone: requests to other paths, and bodies that
        are not JSON.
        """
        try:
            payload = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):  # of tensors in bytes, say, or compressed
            return
        if find_request_path(payload, self._scheduler.app.name) != path:
            return
        line = msgspec.json.encode(payload) + b"\n"
        if self._bytes + len(line) > recording.MAX_BYTES:
            self._end()
            return
        try:
            os.write(self._file, line)
        except OSError as exc:
            log.error("No more requests are recorded: %s", exc)
            self._end()
            return
        self._bytes += len(line)
        self._requests += 1
        if self._requests == recording.MAX_REQUESTS:
            self._end()

    def _end(self) -> None:
        """End the recording and close its file."""
        self._scheduler.recorded = None
        if self._scheduler.shards is not None:
            self._scheduler.shards.resume()
        os.close(self._file)
        self._file = -1
        if self._until is not None:
            self._until.cancel()
            self._until = None
        log.warning("%d requests were recorded", self._requests)


class Hangup:
    """Handles SIGHUP: reloads API keys, TLS certificates, and changed models. The service keeps running.

    If the service was started without nohup in a terminal that no longer exists, SIGHUP stops it. stop:
    requests an orderly stop.
    """

    def __init__(
        self, scheduler: Scheduler, repository: Repository, listeners: Listeners, stop: Callable[[], None]
    ) -> None:
        self._scheduler = scheduler
        self._repository = repository
        self._listeners = listeners
        self._stop = stop
        # Under nohup the end of the terminal is to be survived.
        self._needs_terminal = has_terminal() and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
        self._reloads: set[asyncio.Task[None]] = set()

    def install_handler(self) -> None:
        """Install the handler of SIGHUP."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._accept_signal)

    def _accept_signal(self) -> None:
        if self._needs_terminal and not has_terminal():
            log.info("The terminal is gone")
            self._stop()
            return
        task = asyncio.create_task(self._reload())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload(self) -> None:
        self._reload_keys()
        self._reload_certificates()
        try:
            await self._repository.reload_changed()
        except NotReady as exc:
            log.error("Nothing is loaded anew: %s", exc.message)

    def _reload_keys(self) -> None:
        if self._scheduler.keys is None:
            return
        try:
            self._scheduler.keys.reload()
        except ConfigError as exc:
            log.error("The API keys stay as they were. %s", exc.message)
        else:
            log.info("API keys are read again")

    def _reload_certificates(self) -> None:
        if self._listeners.certificates is None:
            return
        try:
            self._listeners.reload_certificates()
        except ConfigError as exc:
            log.error("The certificates stay as they were. %s", exc.message)
        else:
            log.info("The files of tls are read again")


LARGE_BLOCK_BYTES = 4 << 20  # mapping afresh, a tensor of 1 MB costs the front twice as much
_M_MMAP_THRESHOLD = -3
TRIM_EVERY_S = 10.0
TRIM_OVER_BYTES = 8 << 20  # more than when the service was ready; a front grows by as much under an even load
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def give_back_large_blocks() -> None:
    """Make malloc return large freed blocks, such as request bodies, to the kernel immediately.

    By default, glibc raises its mmap threshold to the largest block that was freed (mallopt(3)), and keeps
    more memory.
    """
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


@contextlib.asynccontextmanager
async def trimmed() -> AsyncIterator[None]:
    """Context manager that returns free heap memory to the kernel in the background, with malloc_trim(3).

    Every TRIM_EVERY_S seconds it trims a process that has grown by TRIM_OVER_BYTES since the start of the
    block. glibc by itself returns memory only at the ends of its heaps. The memory of thousands of closed
    gRPC connections is free in pieces between other blocks.
    """
    trimming = asyncio.create_task(_trim(_resident_bytes() + TRIM_OVER_BYTES))
    try:
        yield
    finally:
        trimming.cancel()


async def _trim(over_bytes: int) -> None:
    """Trim the heap every TRIM_EVERY_S seconds while the process uses more than `over_bytes` of memory."""
    while True:
        await asyncio.sleep(TRIM_EVERY_S)
        if _resident_bytes() > over_bytes:
            with contextlib.suppress(RuntimeError):  # no new thread to be had: in a while, perhaps
                await asyncio.to_thread(trim_heap)


def _resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


log = logging.getLogger(__name__)

_CONTROL_PORTS = {"http_port": "http", "v2.http_port": "http", "rpc_port": "grpc", "v2.grpc_port": "grpc"}


async def run_front(app: App, outputs: Outputs) -> int:
    """Start the service, serve until SIGTERM or SIGINT, and stop in order.

    Return the exit status of the process. Raises StartFailed if a port is in use or an Op can't be started.
    Raises ConfigError for invalid API keys, certificates or dialects.
    """
    stop_requested, interrupted = _take_signals()
    app = replace(app, dialects=tuple(find(DIALECTS).values()))  # for the workers, too
    app, note = plan_shards(app)
    if note:
        log.warning("%s", note)
    if app.repository is None:
        log.info("Service %s starts: %s", app.name, ", ".join(map(_describe, app.ops, repeat(app))))
    else:
        log.info("Server %s starts with %s", app.name, ", ".join(app.repository.addresses))
    scheduler = Scheduler(app, Metrics(app.name), outputs)
    repository = ModelLoader(scheduler, app.repository) if app.repository else Repository(scheduler)
    later_workers = repository.count_later_workers() if isinstance(repository, ModelLoader) else 0
    dialects, overview = Dialects(app.dialects, scheduler, repository), Overview(scheduler, repository)
    listeners = Listeners(scheduler, dialects, overview.build_body, later_workers)
    Hangup(scheduler, repository, listeners, stop_requested.set).install_handler()
    Recorder(scheduler).install_handler()
    start_signals.release()
    config = app.config
    for op, choice in app.choices.items():
        if choice.key:  # without one nothing was left to choose
            log.info("Op %s, chosen by its times on this machine: %s", op, choice.line())
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, scheduler.traces.close)
        if app.repository is None:
            await stack.enter_async_context(listeners.open_ports())
        await stack.enter_async_context(scheduler.running())
        if not await _ready_or_stopped(scheduler, stop_requested):
            return _left_early(interrupted.is_set())
        if isinstance(repository, ModelLoader):
            # As in Triton, the ports open after the first loads: an orchestrator sees no live server before.
            await stack.enter_async_context(listeners.open_ports())
            log.info("%s", "\n".join([*app.notes, "Models of the repository:", repository.table()]))
            log_configurations(app.models)
            await stack.enter_async_context(repository.polling())
        settle_memory()
        await stack.enter_async_context(trimmed())
        log.info("Service %s is ready: %s", app.name, _told_ports(config))
        _warn_of_open_control(app)
        fault = await _stopped_or_fatal(scheduler, stop_requested)
        try:
            await _drain(scheduler, repository, listeners)
        finally:
            if fault is not None:  # the reason, also where a listener that has ended can't be drained
                raise fault
    scheduler.access_log.close()
    log.info("Service %s has stopped", app.name)
    return 0


def _take_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Install the signal handlers.

    Return two events: SIGTERM and SIGINT set the first, SIGINT alone the second.
    """
    stop_requested, interrupted = asyncio.Event(), asyncio.Event()

    def interrupt() -> None:
        interrupted.set()
        stop_requested.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop_requested.set)
    # By default it ends a process without a word.
    loop.add_signal_handler(signal.SIGUSR1, log.warning, "SIGUSR1 has no meaning for this service: ignored")
    loop.add_signal_handler(signal.SIGINT, interrupt)
    return stop_requested, interrupted


def _left_early(interrupted: bool) -> int:
    """Return the exit status of a service that was stopped before it was ready: 130 for SIGINT, else 0."""
    if not interrupted:
        return 0
    log.warning(start_signals.TOLD)
    return start_signals.INTERRUPTED


def _describe(op: str, app: App) -> str:
    """Return a log line about an Op: its numbers of processes and threads.

    Says why an Op has no threads although config.yml requests them.
    """
    places = placement(app, op)
    count, threads = len(places), len(places[0])
    kind = "shards" if app.config.shards > 1 else "processes" if count > 1 else "process"
    text = f"Op {op} in {count} {kind}"
    if threads > 1:
        text += f" of {threads} threads"
    if not app.config.op[op].has_model:
        return f"{text} (no model)"
    if threads > 1:
        return text
    if count > 1 and wants_threads(app, op) and wants_processes(app, op):
        return f"{text} (not threads: its engine runs one batch at a time in a process)"
    return text


def _told_ports(config: ServiceConfig) -> str:
    """Return the text about open ports for the log, with the URL of the page that sends test requests."""
    ports = ", ".join(f"{name} {port}" for name, port in config.ports().items())
    line = f"{ports}, TLS" if config.tls else ports
    https = config.tls is not None and config.tls.http
    if config.http_port is None:
        return line
    return f"{line}; try it at {'https' if https else 'http'}://localhost:{config.http_port}/docs"


def _warn_of_open_control(app: App) -> None:
    """Log a warning if clients on the network can load and unload models without an API key."""
    config = app.config
    if config.v2.model_control != "explicit" or config.security.api_keys is not None:
        return
    restricted = [
        protocol
        for protocol, restrictions in app.restrictions._asdict().items()
        if MODEL_REPOSITORY in [each.api for each in restrictions]
    ]
    ports = config.ports()
    reachable = [
        port
        for port, protocol in _CONTROL_PORTS.items()
        if port in ports and protocol not in restricted and not is_loopback(config.address(port))
    ]
    if not reachable:
        return
    code = "" if app.repository is None else ", also models with code of its own (file: contents)"
    log.warning(
        "Every client of %s may load and unload models%s: set security.api_keys (--api-keys), or "
        "v2.model_control: none (--model-control-mode=none)",
        " and ".join(reachable),
        code,
    )


async def _ready_or_stopped(scheduler: Scheduler, stop_requested: asyncio.Event) -> bool:
    """Wait until the service is ready. Return False if a signal stops it first. Raises StartFailed."""
    ready = asyncio.create_task(scheduler.until_ready())
    stop = asyncio.create_task(stop_requested.wait())
    await asyncio.wait({ready, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not ready.done():
        ready.cancel()
        return False
    ready.result()
    return True


async def _stopped_or_fatal(scheduler: Scheduler, stop_requested: asyncio.Event) -> StartFailed | None:
    """Wait for a stop signal or a fatal error. Return the error; None after a stop signal."""
    stop = asyncio.ensure_future(stop_requested.wait())
    either: set[asyncio.Future[Any]] = {stop, scheduler.fatal}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    return scheduler.fatal.result() if scheduler.fatal.done() else None


async def _drain(scheduler: Scheduler, repository: Repository, listeners: Listeners) -> None:
    """Stop without losing a request: fail readiness, close the ports, and finish the admitted requests.

    `dag.drain_timeout` limits the wait. docs/decisions/stop-order.md has the order.
    """
    dag = scheduler.app.config.dag
    log.info("Stopping: not ready any more, %d requests pending", scheduler.pending)
    scheduler.mark_unready()
    repository.stop()
    await asyncio.sleep(dag.drain_delay)
    over = time.monotonic() + dag.drain_timeout
    await listeners.drain(dag.drain_timeout)
    await scheduler.drain(max(0.0, over - time.monotonic()))


def main(arguments: list[str]) -> None:
    """Run the front-end process: `python -m pipeline.front APP_FD`. Exits with the service's status.

    `run_service` replaces its process by this one. APP_FD: descriptor from which the service's description
    (`App`) is read.
    """
    app = read_app(int(arguments[0]))
    outputs = Outputs(app.config.logging, app.name)
    set_up_logging(app.config.logging, app.name, "front", beside_app=False, log_fd=outputs.log_fd)
    give_back_large_blocks()
    status = _exit_status(app, outputs)
    are_written = lines_written()
    outputs.close()
    if not are_written:
        os._exit(status)  # an orderly end would wait for the thread that waits for a reader
    sys.exit(status)


def _exit_status(app: App, outputs: Outputs) -> int:
    """Run the service to its end, and log a fatal error. Return the exit status of the process."""
    try:
        status: int = uvloop.run(run_front(app, outputs))
    except (StartFailed, ConfigError) as exc:
        log.error("%s", exc.message)
    except ExceptionGroup as group:  # what a task of the drain raised
        log.error("The service did not stop in order", exc_info=group)
    except Exception:
        log.exception("A fault of ours has ended the service")
    else:
        return status
    return 1

"""The front process from its first line to its last: start, serve, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from dataclasses import replace
from itertools import repeat
from typing import Any

import uvloop

from pipeline.api.app import App, read_app
from pipeline.api.restrictions import MODEL_REPOSITORY
from pipeline.config.config_file import ServiceConfig
from pipeline.config.value_types import is_loopback
from pipeline.dialects.front_parts import Dialects
from pipeline.errors import ConfigError, StartFailed
from pipeline.front import heaps
from pipeline.front.hangup import Hangup
from pipeline.front.listeners import Listeners
from pipeline.front.metrics.metrics import Metrics
from pipeline.front.model_loader import ModelLoader
from pipeline.front.pool.outputs import Outputs
from pipeline.front.pool.placement import placement, wants_processes
from pipeline.front.recorder import Recorder
from pipeline.front.repository import Repository
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.plugins import DIALECTS, find
from pipeline.process import start_signals
from pipeline.process.log import lines_written, set_up_logging
from pipeline.process.memory import settle_memory

log = logging.getLogger(__name__)

_CONTROL_PORTS = {"http_port": "http", "v2.http_port": "http", "rpc_port": "grpc", "v2.grpc_port": "grpc"}


async def serve(app: App, outputs: Outputs) -> int:
    """Serve until SIGTERM or SIGINT; the status to leave with.

    Raises StartFailed when a port is taken or an Op can't be started, ConfigError for a mistake in keys,
    certificates or dialects.
    """
    stop_requested, interrupted = _take_signals()
    app = replace(app, dialects=tuple(find(DIALECTS).values()))  # for the workers, too
    if app.repository is None:
        log.info("Service %s starts: %s", app.name, ", ".join(map(_describe, app.ops, repeat(app))))
    else:
        log.info("Server %s starts with %s", app.name, ", ".join(app.repository.folders))
    scheduler = Scheduler(app, Metrics(app.name), outputs)
    repository = ModelLoader(scheduler, app.repository) if app.repository else Repository(scheduler)
    names = set(repository.names()) if app.repository is not None else set()
    later_models = len(names - {model.name for model in app.models})
    listeners = Listeners(scheduler, Dialects(app.dialects, scheduler, repository), later_models)
    Hangup(scheduler, repository, listeners, stop_requested.set).listen()
    Recorder(scheduler).listen()
    start_signals.release()
    config = app.config
    for op, choice in app.choices.items():
        if choice.key:  # without one nothing was left to choose
            log.info("Op %s, chosen by its times on this machine: %s", op, choice.line())
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(listeners.running())
        await stack.enter_async_context(scheduler.running())
        if not await _ready_or_stopped(scheduler, stop_requested):
            return _left_early(interrupted.is_set())
        if isinstance(repository, ModelLoader):
            log.info("%s", "\n".join([*app.notes, "Models of the repository:", repository.table()]))
            await stack.enter_async_context(repository.polling())
        settle_memory()
        await stack.enter_async_context(heaps.trimmed())
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
    """An event for SIGTERM and SIGINT, and one for SIGINT alone."""
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
    if not interrupted:
        return 0
    log.warning(start_signals.TOLD)
    return start_signals.INTERRUPTED


def _describe(op: str, app: App) -> str:
    """An Op with its processes and threads, and why `is_thread_op` shares none where it does not."""
    places = placement(app, op)
    count, threads = len(places), len(places[0])
    text = f"Op {op} in {count} process{'es' if count > 1 else ''}"
    if threads > 1:
        text += f" of {threads} threads"
    if not app.config.op[op].has_model:
        return f"{text} (no model)"
    if threads > 1:
        return text
    if count > 1 and app.config.dag.is_thread_op and wants_processes(app, op):
        return f"{text} (not threads: its engine runs one batch at a time in a process)"
    return text


def _told_ports(config: ServiceConfig) -> str:
    """The ports by name, and where a browser finds the page to try the service."""
    ports = ", ".join(f"{name} {port}" for name, port in config.ports().items())
    told = f"{ports}, TLS" if config.tls else ports
    https = config.tls is not None and config.tls.http
    if config.http_port is None:
        return told
    return f"{told}; try it at {'https' if https else 'http'}://localhost:{config.http_port}/docs"


def _warn_of_open_control(app: App) -> None:
    """Log who may load and unload models, unless only this machine or holders of a key may."""
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
    """Why the service can't go on; None where it is told to stop."""
    stop = asyncio.ensure_future(stop_requested.wait())
    either: set[asyncio.Future[Any]] = {stop, scheduler.fatal}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    return scheduler.fatal.result() if scheduler.fatal.done() else None


async def _drain(scheduler: Scheduler, repository: Repository, listeners: Listeners) -> None:
    """Stop without losing a request, in the order of docs/decisions/stop-order.md."""
    dag = scheduler.app.config.dag
    log.info("Stopping: not ready any more, %d requests pending", scheduler.pending)
    scheduler.say_not_ready()
    repository.stop()
    await asyncio.sleep(dag.drain_delay)
    over = time.monotonic() + dag.drain_timeout
    await listeners.drain(dag.drain_timeout)
    await scheduler.drain(max(0.0, over - time.monotonic()))


def main(arguments: list[str]) -> None:
    """`python -m pipeline.front APP_FD`: what `run_service` becomes."""
    app = read_app(int(arguments[0]))
    outputs = Outputs(app.config.logging, app.name)
    set_up_logging(app.config.logging, app.name, "front", beside_app=False, log_fd=outputs.log_fd)
    heaps.give_back_large_blocks()
    status = _exit_status(app, outputs)
    are_written = lines_written()
    outputs.close()
    if not are_written:
        os._exit(status)  # an orderly end would wait for the thread that waits for a reader
    sys.exit(status)


def _exit_status(app: App, outputs: Outputs) -> int:
    """What the process leaves with, once the service has ended."""
    try:
        status: int = uvloop.run(serve(app, outputs))
    except (StartFailed, ConfigError) as exc:
        log.error("%s", exc.message)
    except ExceptionGroup as group:  # what a task of the drain raised
        log.error("The service did not stop in order", exc_info=group)
    except Exception:
        log.exception("A fault of ours has ended the service")
    else:
        return status
    return 1

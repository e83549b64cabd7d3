"""The front process from its first line to its last: start, serve, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from itertools import repeat
from typing import Any

import uvloop

from pipeline.app import App, read_app
from pipeline.errors import StartFailed
from pipeline.log import set_up_logging
from pipeline.memory import give_back_large_blocks, settle_memory
from pipeline.server.engine import Engine
from pipeline.server.http_app import HttpApp
from pipeline.server.http_server import HttpServer
from pipeline.server.metrics import Metrics
from pipeline.server.placement import holds_gil, placement
from pipeline.server.rpc_server import RpcServer
from pipeline.server.v1.http_app import V1HttpApp
from pipeline.server.v2.extensions import Extensions
from pipeline.server.v2.http_app import V2HttpApp
from pipeline.server.v2.models import V2Models
from pipeline.tls import server_context

log = logging.getLogger(__name__)


async def serve(app: App) -> None:
    """Serve until SIGTERM or SIGINT. Raises StartFailed when a port is taken or an Op can't be started."""
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_requested.set)
    reloads: set[asyncio.Task[None]] = set()
    engine = Engine(app, Metrics(app.name))
    config = app.config
    log.info("Service %s starts: %s", app.name, ", ".join(map(_describe, app.dag.order, repeat(app))))
    async with contextlib.AsyncExitStack() as stack:
        http = rpc = None
        models = V2Models(engine)
        extensions = Extensions(config.v2)
        stack.callback(extensions.close)
        if config.http_port:
            tls = None if config.tls is None else server_context(config.tls)
            v1, v2 = V1HttpApp(engine, models), V2HttpApp(engine, models, extensions)
            routes = HttpApp(engine, v1, v2)
            http = HttpServer(routes, config.http_port, config.limits, tls)
            await stack.enter_async_context(http.running())
        if config.rpc_port:
            rpc = RpcServer(engine, models, extensions, config.rpc_port)
            await stack.enter_async_context(rpc.running())
        await stack.enter_async_context(engine.running())
        if not await _ready_or_stopped(engine, stop_requested):
            return
        settle_memory()
        log.info(
            "Service %s is ready: http_port %s, rpc_port %s%s",
            app.name,
            config.http_port,
            config.rpc_port,
            ", TLS" if config.tls else "",
        )
        loop.add_signal_handler(signal.SIGHUP, lambda: reloads.add(loop.create_task(_reload(engine))))
        await _stopped_or_fatal(engine, stop_requested)
        await _drain(engine, http, rpc)
    engine.journal.close()
    log.info("Service %s has stopped", app.name)


def _describe(op: str, app: App) -> str:
    """An Op with its processes and threads, and why `is_thread_op` shares none where it does not."""
    places = placement(app, op)
    count, threads = len(places), len(places[0])
    text = f"Op {op} in {count} process{'es' if count > 1 else ''}"
    if threads > 1:
        return f"{text} of {threads} threads"
    if count > 1 and app.config.dag.is_thread_op and holds_gil(app, op):
        return f"{text} (not threads: its engine holds Python's lock while it runs)"
    return text


async def _reload(engine: Engine) -> None:
    try:
        await engine.reload()
    except StartFailed as exc:
        log.error("%s", exc.message)
    else:
        log.info("All Ops run what is on disk now")


async def _ready_or_stopped(engine: Engine, stop_requested: asyncio.Event) -> bool:
    ready = asyncio.create_task(engine.until_ready())
    stop = asyncio.create_task(stop_requested.wait())
    await asyncio.wait({ready, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not ready.done():
        ready.cancel()
        return False
    ready.result()
    return True


async def _stopped_or_fatal(engine: Engine, stop_requested: asyncio.Event) -> None:
    stop = asyncio.ensure_future(stop_requested.wait())
    either: set[asyncio.Future[Any]] = {stop, engine.fatal}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if engine.fatal.done():
        raise engine.fatal.result()


async def _drain(engine: Engine, http: HttpServer | None, rpc: RpcServer | None) -> None:
    """Stop without losing a request; the order is the one of docs/design.md section 4."""
    dag = engine.app.config.dag
    log.info("Stopping: not ready any more, %d requests pending", engine.pending)
    engine.say_not_ready()
    await asyncio.sleep(dag.drain_delay)
    over = time.monotonic() + dag.drain_timeout
    if http is not None:
        await http.stop_listening()
    async with asyncio.TaskGroup() as group:
        if rpc is not None:
            group.create_task(rpc.stop(grace_s=dag.drain_timeout))
        if http is not None:
            group.create_task(http.until_silent(dag.drain_timeout))
    await engine.drain(max(0.0, over - time.monotonic()))


def main(arguments: list[str]) -> None:
    """`python -m pipeline.server APP_FD`: what `run_service` becomes."""
    app = read_app(int(arguments[0]))
    set_up_logging(app.config.logging, app.name, "front")
    give_back_large_blocks()
    try:
        uvloop.run(serve(app))
    except StartFailed as exc:
        log.error("%s", exc.message)
        sys.exit(1)
    except ExceptionGroup as group:  # what a task of the drain raised
        log.error("The service did not stop in order", exc_info=group)
        sys.exit(1)

"""Listeners: every port of a service, opened together and drained together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import time
from collections.abc import AsyncIterator, Mapping

from pipeline.api.restrictions import STATISTICS
from pipeline.config.config_file import Limits
from pipeline.config.tls import Certificates
from pipeline.dialects.front_parts import Dialects
from pipeline.front.grpc.grpc_server import RpcServer
from pipeline.front.http.connection import path_of_url
from pipeline.front.http.http_handler import HEALTH_PAGES, HttpApp, Routes
from pipeline.front.http.http_server import HttpServer
from pipeline.front.http.metrics_app import MetricsApp
from pipeline.front.metrics.metrics import serving_metrics
from pipeline.front.scheduler.admission import HttpGuard
from pipeline.front.scheduler.restricted_apis import RestrictedApis
from pipeline.front.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

FEW_CONNECTIONS = 1000  # of a port
WORKER_FILES = 12  # with those that starting its successor takes
_OTHERS = 64  # ports, logs, libraries


def limits_within(limits: Limits, listeners: int, workers: int, files: int = 0) -> Limits:
    """Return the limits, with a `max_connections` for which the process has descriptors beside its workers.

    workers: also those of models that may be loaded later. files: that dialects keep open for clients.

    Raises the process's soft limit of open files where it is too low. Logs a warning if config.yml sets
    `max_connections`, or if few connections remain.
    """
    reserved = _OTHERS + WORKER_FILES * workers + files
    max_files = _most_files(limits.max_connections * listeners + reserved)
    room = max(max_files - reserved, max_files // 4) // max(1, listeners)
    if room >= limits.max_connections:
        return limits
    matters = "max_connections" in limits.model_fields_set or room < FEW_CONNECTIONS
    log.log(
        logging.WARNING if matters else logging.DEBUG,
        "%d connections of each port are the most, not limits.max_connections (%d): this process may open "
        "%d files (ulimit -n)",
        room,
        limits.max_connections,
        max_files,
    )
    return limits.model_copy(update={"max_connections": max(1, room)})


def _most_files(files: int) -> int:
    """How many files this process may open: as many as wanted, or as it is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = files if hard == resource.RLIM_INFINITY else min(files, hard)
    if soft == resource.RLIM_INFINITY or soft >= allowed:
        return files if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


class Listeners:
    """`http_port`, `rpc_port`, and beside them those of `v2`, with the same apps, limits and certificates.

    certificates: None without `tls`. later_workers: those of models that may be loaded besides the present
    ones.
    """

    def __init__(self, scheduler: Scheduler, dialects: Dialects, later_workers: int = 0) -> None:
        config = scheduler.app.config
        self._http: list[HttpServer] = []
        self._rpc: list[RpcServer] = []
        self._close_dialects = dialects.close
        self.certificates = tls = None if config.tls is None else Certificates(config.tls)
        health = (*HEALTH_PAGES, *dialects.open_pages)
        keys = scheduler.keys
        restrictions = scheduler.app.restrictions.http
        restricted = RestrictedApis(restrictions, "API") if restrictions else None
        ports = {name: (config.address(name), port) for name, port in config.ports().items()}
        of_http = tls if config.tls is not None and config.tls.http else None
        workers = sum(pool.size for pool in scheduler.pools.values())
        limits = limits_within(config.limits, len(ports), workers + later_workers, dialects.open_files)
        routes = Routes(dialects.handlers)
        if http := _named(ports, "http_port", "v2.http_port"):
            guard = None
            if keys is not None or restricted is not None:
                guard = HttpGuard(
                    keys, config.security, health, restricted, lambda url: routes.find_api(path_of_url(url))
                )
            app = HttpApp(scheduler, routes, dialects.openapi)
            self._http.append(HttpServer(app, http, limits, of_http, guard))
        if config.dag.enable_prometheus:
            scheduler.metrics.add(lambda: serving_metrics(scheduler.metrics))
        if metrics := _named(ports, "v2.metrics_port", "dag.prometheus_port"):
            # No API is restricted at the port of metrics alone, as in Triton.
            guard = None
            if keys is not None:
                guard = HttpGuard(keys, config.security, health, None, lambda url: STATISTICS)
            self._http.append(HttpServer(MetricsApp(scheduler, routes), metrics, limits, of_http, guard))
        if rpc := _named(ports, "rpc_port", "v2.grpc_port"):
            methods, health_methods = dialects.methods, dialects.open_methods
            self._rpc.append(
                RpcServer(scheduler, methods, health_methods, dialects.method_apis, rpc, limits, tls)
            )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All listen on entry, none on exit. Raises StartFailed for a used port."""
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._close_dialects)
            for http in self._http:
                await stack.enter_async_context(http.running())
            for rpc in self._rpc:
                await stack.enter_async_context(rpc.running())
            yield

    def reload_certificates(self) -> None:
        """Show new connections what the files of `tls` hold now. Raises ConfigError, and all stays."""
        if self.certificates is not None:
            self.certificates.reload()

    async def drain(self, timeout_s: float) -> None:
        """Answer what was sent before the ports close, in the order of docs/decisions/stop-order.md."""
        over = time.monotonic() + timeout_s
        for http in self._http:
            await http.stop_listening()
        async with asyncio.TaskGroup() as group:
            for rpc in self._rpc:
                group.create_task(rpc.stop(grace_s=timeout_s))
            for http in self._http:
                group.create_task(http.until_silent(over - time.monotonic()))


def _named(ports: Mapping[str, tuple[str, int]], *names: str) -> dict[str, tuple[str, int]]:
    return {name: place for name, place in ports.items() if name in names}

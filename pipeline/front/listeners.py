"""The HTTP and gRPC ports of a service: opened together, and drained together when the service stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping

from pipeline.api.restrictions import STATISTICS, RestrictedApis
from pipeline.config.config_file import Limits, SecurityConfig
from pipeline.config.tls import Certificates
from pipeline.dialects.front_parts import Dialects
from pipeline.front.grpc.grpc_server import RpcServer
from pipeline.front.http.connection import path_of_url
from pipeline.front.http.http_handler import HEALTH_PAGES, HttpApp, MetricsApp, Routes
from pipeline.front.http.http_server import HttpServer
from pipeline.front.http.request_head import HttpGuard
from pipeline.front.metrics.metrics import serving_metrics
from pipeline.front.scheduler.admission import KeyRing
from pipeline.front.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

FEW_CONNECTIONS = 1000  # of a port
WORKER_FILES = 12  # open files of a worker, including those for starting its successor
_OTHER_FILES = 64  # ports, logs, libraries


def limits_within(limits: Limits, listeners: int, workers: int, files: int = 0) -> Limits:
    """Return a copy of `limits` whose `max_connections` fits the process's limit of open files (ulimit -n).

    listeners: number of ports. workers: number of worker processes, including those of models that may be
    loaded later. files: number of files that dialects keep open for clients. Raises the soft limit of open
    files if it is too low. Logs a warning if config.yml sets `max_connections` and it does not fit, or if few
    connections remain.
    """
    reserved = _OTHER_FILES + WORKER_FILES * workers + files
    max_files = _raise_file_limit(limits.max_connections * listeners + reserved)
    room = max(max_files - reserved, max_files // 4) // max(1, listeners)
    if room >= limits.max_connections:
        return limits
    if "max_connections" in limits.model_fields_set or room < FEW_CONNECTIONS:
        log.warning(
            "%d connections of each port are the most, not limits.max_connections (%d): this process may "
            "open %d files (ulimit -n)",
            room,
            limits.max_connections,
            max_files,
        )
    return limits.model_copy(update={"max_connections": max(1, room)})


def _raise_file_limit(files: int) -> int:
    """Raise this process's soft limit of open files to `files`, or as far as the hard limit allows.

    Return the resulting number of files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = files if hard == resource.RLIM_INFINITY else min(files, hard)
    if soft == resource.RLIM_INFINITY or soft >= allowed:
        return files if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


class Listeners:
    """All ports of a service: HTTP and gRPC for inference, and the metrics ports, with their servers."""

    def __init__(
        self, scheduler: Scheduler, dialects: Dialects, overview: Callable[[], bytes], later_workers: int = 0
    ) -> None:
        """Create the servers of all ports, without opening a port.

        overview: returns the body of /overview.json.
        later_workers: number of workers for models that may be loaded later; it limits the connections.
        """
        config = scheduler.app.config
        self._http: list[HttpServer] = []
        self._rpc: list[RpcServer] = []
        self._close_dialects = dialects.close
        # None without `tls`
        self.certificates = tls = None if config.tls is None else Certificates(config.tls)
        health = (*HEALTH_PAGES, *dialects.open_pages)
        keys = scheduler.keys
        restrictions = scheduler.app.restrictions.http
        restricted = RestrictedApis(restrictions, "API") if restrictions else None
        ports = {name: (config.address(name), port) for name, port in config.ports().items()}
        http_certificates = tls if config.tls is not None and config.tls.http else None
        workers = sum(pool.size for pool in scheduler.pools.values())
        limits = limits_within(config.limits, len(ports), workers + later_workers, dialects.open_files)
        routes = Routes(dialects.handlers)
        if http := _select_ports(ports, "http_port", "v2.http_port"):
            guard = _build_guard(keys, config.security, health, restricted, routes.find_api)
            app = HttpApp(scheduler, routes, dialects.openapi, overview)
            shards, own_limits = scheduler.shards, limits
            if shards is not None:
                room = limits.max_connections - shards.limit_connections(limits.max_connections // 2)
                own_limits = limits.model_copy(update={"max_connections": room})
            self._http.append(HttpServer(app, http, own_limits, http_certificates, guard, shards))
        if config.dag.enable_prometheus:
            scheduler.metrics.add(lambda: serving_metrics(scheduler.metrics))
        if metrics := _select_ports(ports, "v2.metrics_port", "dag.prometheus_port"):
            # As in Triton, the metrics port restricts no API.
            guard = _build_guard(keys, config.security, health, None, lambda path: STATISTICS)
            self._http.append(
                HttpServer(MetricsApp(scheduler, routes), metrics, limits, http_certificates, guard)
            )
        for key, part in dialects.ports.items():
            if port := _select_ports(ports, key):
                guard = _build_guard(keys, config.security, part.health, restricted, part.find_api)
                self._http.append(HttpServer(part.app, port, limits, http_certificates, guard))
        if rpc := _select_ports(ports, "rpc_port", "v2.grpc_port"):
            methods, health_methods = dialects.methods, dialects.open_methods
            self._rpc.append(
                RpcServer(scheduler, methods, health_methods, dialects.method_apis, rpc, limits, tls)
            )

    @contextlib.asynccontextmanager
    async def open_ports(self) -> AsyncIterator[None]:
        """Context manager: opens all ports on entry and closes them on exit.

        Raises StartFailed if a port is in use.
        """
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._close_dialects)
            for http in self._http:
                await stack.enter_async_context(http.listening())
            for rpc in self._rpc:
                await stack.enter_async_context(rpc.listening())
            yield

    def reload_certificates(self) -> None:
        """Read the TLS files of config.yml again, for new connections.

        Raises ConfigError for invalid files; the old certificates then stay in use.
        """
        if self.certificates is not None:
            self.certificates.reload()

    async def drain(self, timeout_s: float) -> None:
        """Stop accepting connections, and respond to requests that have arrived, within `timeout_s` seconds.

        docs/decisions/stop-order.md describes the order.
        """
        deadline = time.monotonic() + timeout_s
        for http in self._http:
            await http.stop_listening()
        async with asyncio.TaskGroup() as group:
            for rpc in self._rpc:
                group.create_task(rpc.stop(grace_s=timeout_s))
            for http in self._http:
                group.create_task(http.until_silent(deadline - time.monotonic()))


def _build_guard(
    keys: KeyRing | None,
    security: SecurityConfig,
    health: Collection[bytes],
    restricted: RestrictedApis | None,
    find_api: Callable[[str], str],
) -> HttpGuard | None:
    """Return the authentication guard of an HTTP port; None if no request to the port needs a check.

    find_api: returns the API of a path, see `HttpGuard`.
    """
    if keys is None and restricted is None:
        return None
    return HttpGuard(keys, security, health, restricted, lambda url: find_api(path_of_url(url)))


def _select_ports(ports: Mapping[str, tuple[str, int]], *names: str) -> dict[str, tuple[str, int]]:
    """Return the entries of `ports` (address and port by config key) with these keys."""
    return {name: address for name, address in ports.items() if name in names}

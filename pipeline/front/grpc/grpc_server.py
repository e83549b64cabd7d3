"""The gRPC ports of a service: opens them, watches them, and stops gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio

from pipeline.api.restrictions import RestrictedApis
from pipeline.config.config_file import Limits
from pipeline.config.tls import Certificates, Pem
from pipeline.errors import StartFailed
from pipeline.front.grpc.rpc_handler import MethodHandlers, Methods, RpcGuard
from pipeline.front.grpc.slow_clients import ClientBounds, ListeningSocket
from pipeline.front.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES = (1 << 31) - 1  # the largest limit that gRPC accepts
_WATCH_INTERVAL_S = 1.0


class RpcServer:
    """Serves the gRPC methods of all dialects on one or several ports, with or without TLS.

    methods: handlers by full name of the method. health: methods that need no API key if
    `security.open_health` is set. apis: the API of each method, for Triton's `--grpc-restricted-protocol`.
    ports: address and port by config key; an empty address means every interface. certificates: None without
    TLS.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        methods: Methods,
        health: Collection[str],
        apis: Mapping[str, str],
        ports: Mapping[str, tuple[str, int]],
        limits: Limits,
        certificates: Certificates | None,
    ) -> None:
        self._scheduler = scheduler
        self._methods = methods
        self._health = health
        self._apis = apis
        self._ports = ports
        self._limits = limits
        self._certificates = certificates
        self._stopping = False
        self._has_failed = False

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Context manager: opens the gRPC ports on entry, and stops the server on exit.

        Raises StartFailed if a port is in use.
        """
        config = self._scheduler.app.config
        limits = self._limits
        guard, keys = None, self._scheduler.keys
        restrictions = self._scheduler.app.restrictions.grpc
        if keys is not None or restrictions:
            restricted = RestrictedApis(restrictions, "protocol")
            open_methods = self._health if config.security.open_health else ()
            guard = RpcGuard(keys, restricted, self._apis, self._scheduler.access_log, open_methods)
        ports = [port for _, port in self._ports.values()]
        bounds = ClientBounds(limits, ports, self._scheduler.access_log)
        self._handlers = MethodHandlers(self._methods, guard, bounds, self._scheduler.serves_sequences)
        self._server = _create_server(
            self._handlers,
            [
                ("grpc.max_receive_message_length", min(limits.body_bytes, _MAX_MESSAGE_BYTES)),
                ("grpc.max_send_message_length", min(limits.response_bytes, _MAX_MESSAGE_BYTES)),
                ("grpc.so_reuseport", 0),  # a second service on the port must fail, not share it
                ("grpc.max_metadata_size", limits.header_bytes),
                ("grpc.absolute_max_metadata_size", limits.header_bytes),
                # Until the end of the TLS handshake, or until the HTTP/2 settings of the client.
                ("grpc.server_handshake_timeout_ms", int(limits.header_timeout_s * 1000)),
                ("grpc.max_connection_idle_ms", int(limits.idle_timeout_s * 1000)),
                ("grpc.max_allowed_incoming_connections", limits.max_connections),
                ("grpc.max_concurrent_streams", limits.connection_calls),
                *((name, value) for name, value in self._arguments()),
            ],
        )
        for name, (address, port) in self._ports.items():
            self._open(name, address, port)
        await self._server.start()
        watch = asyncio.create_task(self._watch_listeners(ports), name="rpc-watch")
        try:
            yield
        finally:
            watch.cancel()
            await self.stop(grace_s=0)

    def _arguments(self) -> Sequence[tuple[str, int]]:
        """Return the gRPC channel arguments set by options of `paddlewheel serve`, as names and values."""
        repository = self._scheduler.app.repository
        return () if repository is None else repository.grpc_arguments

    async def _watch_listeners(self, ports: Collection[int]) -> None:
        """End the service with an error if gRPC has closed a port by itself: the other ports would hide that.

        After a fault, `wait_for_termination` of grpc.aio waits for clients to disconnect.
        """
        listeners = ListeningSocket.find_all(ports)
        while all(listener.is_open() for listener in listeners):
            await asyncio.sleep(_WATCH_INTERVAL_S)
        if not self._stopping:
            self._has_failed = True
            self._scheduler.fail_service(StartFailed(f"the listener of {', '.join(self._ports)} has ended"))

    def _open(self, name: str, address: str, port: int) -> None:
        """Open a port on the gRPC server. Raises StartFailed if the port is in use.

        name: the config key of the port.
        """
        opened = 0
        host = f"[{address or '::'}]" if ":" in address or not address else address
        with contextlib.suppress(RuntimeError):
            opened = self._add(f"{host}:{port}")
        if opened == 0:
            raise StartFailed(
                f"{name} {port} can't be opened: stop what uses it, or choose another in config.yml"
            )

    def _add(self, address: str) -> int:
        """Open an address such as "0.0.0.0:9000", with TLS if there are certificates.

        Returns the port number, or 0 if the port is in use.
        """
        if self._certificates is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, _credentials(self._certificates))

    async def stop(self, grace_s: float) -> None:
        """Stop the server gracefully: send GOAWAY, and wait for open calls.

        gRPC can leave a call unanswered that arrives as the stop begins: it neither hands the call to a
        handler nor rejects it. Such calls, and silent connections, are cancelled 1 s after the last known
        call. grace_s: seconds after which all calls that are still open are cancelled.
        """
        self._stopping = True
        calls = self._handlers.open_calls
        calls.begin_stop()
        stopping = asyncio.ensure_future(self._server.stop(0 if self._has_failed else grace_s))
        quiet = asyncio.ensure_future(calls.wait_until_quiet())
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((stopping, quiet), return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done():
                await self._server.stop(None)
            await stopping
        quiet.cancel()


def _create_server(handlers: MethodHandlers, options: Sequence[tuple[str, Any]]) -> grpc.aio.Server:
    """Return a FastServer, or grpc.aio's own server if FastServer does not support the installed grpcio.

    options: gRPC channel arguments.
    """
    try:
        from pipeline.front.grpc.fast_server import FastServer
    except (ImportError, AttributeError) as exc:
        log.warning(
            "gRPC calls take more CPU with grpcio %s, and a client can end the service by a path that is not "
            "UTF-8: FastServer does not support this version (%s). Install the version in "
            "requirements/serving.txt",
            grpc.__version__,
            exc,
        )
        return grpc.aio.server(handlers=[handlers], options=options)
    return FastServer(handlers, options)  # type: ignore[return-value]  # the stub has no grpc.aio._server


def _credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Return the TLS credentials of a port.

    gRPC asks for renewed certificates before each handshake, in a thread of its own.
    """
    current = certificates.pem

    def fetch_renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal current
        if certificates.pem is current:
            return None
        current = certificates.pem
        return _configuration(current)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(current),
        fetch_renewed,  # type: ignore[arg-type]  # None means no change (its docstring)
        require_client_authentication=current.client_ca is not None,
    )


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    """Return TLS certificates in the form that gRPC expects. pem: key, certificate and client CA, in PEM."""
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.client_ca)

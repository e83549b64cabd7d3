"""The gRPC listener: the methods that dialects bring along, on raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from pipeline.api.restrictions import RestrictedApis
from pipeline.config.config_file import Limits
from pipeline.config.tls import Certificates, Pem
from pipeline.errors import StartFailed
from pipeline.front.grpc.guard import RpcGuard
from pipeline.front.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from pipeline.front.grpc.private.calls import Methods, RpcCalls


_MOST_MESSAGE = (1 << 31) - 1  # bytes that gRPC can be told of


class RpcServer:
    """Serves methods, by full name, on ports given by their keys in config.yml, each with its address, empty
    for every interface; over TLS alone where there are certificates.

    health: the methods that `security.open_health` leaves open. apis: the API of each method, for
    `--grpc-restricted-protocol`.
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

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listens on entry, stops on exit. Raises StartFailed for a used port, and a grpcio we can't use."""
        config = self._scheduler.app.config
        limits = self._limits
        guard, keys = None, self._scheduler.keys
        restrictions = self._scheduler.app.restrictions.grpc
        if keys is not None or restrictions:
            restricted = RestrictedApis(restrictions, "protocol")
            open_methods = self._health if config.security.open_health else ()
            guard = RpcGuard(keys, restricted, self._apis, self._scheduler.access_log, open_methods)
        self._server = _calls_class()(
            self._methods,
            guard,
            limits,
            [port for _, port in self._ports.values()],
            self._scheduler.access_log,
            [
                ("grpc.max_receive_message_length", min(limits.body_bytes, _MOST_MESSAGE)),
                ("grpc.max_send_message_length", min(limits.response_bytes, _MOST_MESSAGE)),
                ("grpc.so_reuseport", 0),  # a second service on the port must fail, not share it
                ("grpc.max_metadata_size", limits.header_bytes),
                ("grpc.absolute_max_metadata_size", limits.header_bytes),
                # Until TLS is agreed upon, or a client of HTTP/2 has said its settings.
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
        watching = asyncio.create_task(self._watch(), name="rpc-watch")
        try:
            yield
        finally:
            watching.cancel()
            await self.stop(grace_s=0)

    def _arguments(self) -> Sequence[tuple[str, int]]:
        """Return gRPC's settings as the flags of a model repository's server name them."""
        repository = self._scheduler.app.repository
        return () if repository is None else repository.grpc_arguments

    async def _watch(self) -> None:
        """End the service where the listener ends by itself: it would only seem to live."""
        await self._server.until_ended()
        if not self._stopping:
            self._scheduler.fail_for_good(StartFailed(f"the listener of {', '.join(self._ports)} has ended"))

    def _open(self, name: str, address: str, port: int) -> None:
        opened = 0
        host = f"[{address or '::'}]" if ":" in address or not address else address
        with contextlib.suppress(RuntimeError):
            opened = self._add(f"{host}:{port}")
        if opened == 0:
            raise StartFailed(
                f"{name} {port} can't be opened: stop what uses it, or choose another in config.yml"
            )

    def _add(self, address: str) -> int:
        """Open the address, with TLS where there are certificates. Returns the port, 0 where it can't be."""
        if self._certificates is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, _credentials(self._certificates))

    async def stop(self, grace_s: float) -> None:
        """Say GOAWAY, let the calls that a handler has end, cancel what is left after `grace_s`."""
        self._stopping = True
        with contextlib.suppress(asyncio.CancelledError):
            await self._server.stop(grace_s)


def _calls_class() -> type[RpcCalls]:
    """Import `RpcCalls` late: it uses private names of grpcio. Raises StartFailed where one is missing."""
    try:
        from pipeline.front.grpc.private.calls import RpcCalls
    except (ImportError, AttributeError) as exc:
        raise StartFailed(
            f"gRPC ports can't be served with grpcio {grpc.__version__}, which has changed inside ({exc}): "
            "install the version that requirements/serving.txt names"
        ) from exc
    return RpcCalls


def _credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """The TLS credentials of one port. gRPC asks before each handshake, in its own thread, for new ones."""
    shown = certificates.pem

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        if certificates.pem is shown:
            return None
        shown = certificates.pem
        return _configuration(shown)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(shown),
        renewed,  # type: ignore[arg-type]  # None means no change (its docstring)
        require_client_authentication=shown.client_ca is not None,
    )


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.client_ca)

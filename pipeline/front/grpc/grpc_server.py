"""The gRPC listener: PipelineService over raw bytes, and KServe v2 beside it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from pipeline.api.examples import message_of
from pipeline.config.config_file import Limits
from pipeline.config.tls import Certificates, Pem
from pipeline.dialects.answer_form import AnswerForm
from pipeline.dialects.key_value.answers import render_error
from pipeline.dialects.key_value.key_value import EXAMPLE, parse_proto, pass_proto_on
from pipeline.dialects.kserve_v2.extensions import Extensions
from pipeline.dialects.kserve_v2.repository_api import Control
from pipeline.dialects.kserve_v2.rpc_handler import HEALTH_CALLS, V2Handler
from pipeline.dialects.kserve_v2.v2_models import V2Models
from pipeline.errors import DeadlineExceeded, NotReady, Overloaded, ServingError, StartFailed, UnknownService
from pipeline.front.grpc.guard import guarded
from pipeline.front.scheduler.clients import CALLER, named
from pipeline.front.scheduler.deadlines import TICKS_PER_S
from pipeline.front.scheduler.engine import Engine

if TYPE_CHECKING:
    from pipeline.front.grpc.private.calls import Methods, RpcCalls

log = logging.getLogger(__name__)

METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
DOOR = "grpc"
# These are the transport's own refusals; the original answers all others as a message with err_no.
_AS_STATUS = (Overloaded, NotReady)

Context = grpc.aio.ServicerContext[bytes, bytes]


class PipelineHandler:
    """The one method. Messages stay bytes: the codec parses them, the worker prints the answer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._journal = engine.journal
        self._name = engine.app.name
        self._limits = engine.app.config.limits
        self._example = message_of(engine.app.examples.key_values, EXAMPLE)
        self._parse = pass_proto_on if engine.takes_messages else parse_proto
        self.methods: Methods = {METHOD: grpc.unary_unary_rpc_method_handler(self._infer)}

    async def _infer(self, data: bytes, context: Context) -> bytes:
        began = time.monotonic()
        request = None
        try:
            request = self._parse(data, self._limits, self._example)
            if request.service and request.service != self._name:
                raise UnknownService(
                    f"Service name error: there is no service {request.service!r}; leave name empty or send "
                    f"{self._name!r}, as in {self._example}"
                )
            request.client = CALLER.get() or self._engine.peers.of(context.peer())
            remaining_s = context.time_remaining()
            request.deadline = self._engine.deadline(math.inf if remaining_s is None else remaining_s)
            answer = await self._engine.infer(request)
        except ServingError as exc:
            answer = exc
        except Exception:
            log.exception("A fault of ours in %s", METHOD)
            answer = ServingError("internal error; the server's log has its reason")
        error = answer if isinstance(answer, ServingError) else None
        if self._journal.tells_each:
            self._journal.tell(DOOR, named(context.peer(), CALLER.get()), METHOD, began, error)
        if request is not None and request.timings is not None:
            context.set_trailing_metadata((("server-timing", request.timings.header()),))
        if not isinstance(answer, ServingError):
            self._journal.answered(DOOR)
            return bytes(answer[0])
        self._journal.refused(DOOR, answer)
        if isinstance(answer, _AS_STATUS):
            await self._abort(context, answer)
        if isinstance(answer, DeadlineExceeded) and _is_over(context):
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, answer.message)
        return render_error(answer, AnswerForm.PROTO)

    async def _abort(self, context: Context, error: ServingError) -> None:
        """End the call with a status; `grpc-retry-pushback-ms` tells clients when to come again."""
        if isinstance(error, Overloaded):
            context.set_trailing_metadata((("grpc-retry-pushback-ms", str(int(error.retry_after_s * 1000))),))
        await context.abort(getattr(grpc.StatusCode, error.grpc_code), error.message)


def _is_over(context: Context) -> bool:
    """Whether the caller's own deadline passed; a limit of the service's is answered as a message."""
    remaining_s = context.time_remaining()
    return remaining_s is not None and remaining_s <= 1 / TICKS_PER_S


class RpcServer:
    """Serves PipelineService and KServe v2 on ports of every interface, given by their keys in config.yml;
    over TLS alone where there are certificates."""

    def __init__(
        self,
        engine: Engine,
        models: V2Models,
        control: Control,
        extensions: Extensions,
        ports: Mapping[str, int],
        limits: Limits,
        certificates: Certificates | None,
    ) -> None:
        self._engine = engine
        self._models = models
        self._control = control
        self._extensions = extensions
        self._ports = ports
        self._limits = limits
        self._certificates = certificates
        self._stopping = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listens on entry, stops on exit. Raises StartFailed for a used port, and a grpcio we can't use."""
        config = self._engine.app.config
        limits = self._limits
        pipeline = PipelineHandler(self._engine)
        v2 = V2Handler(self._engine, self._models, self._control, self._extensions)
        methods: Methods = {**pipeline.methods, **v2.methods}
        if self._engine.keys is not None:
            open_ = HEALTH_CALLS if config.security.open_health else ()
            methods = guarded(methods, self._engine.keys, self._engine.journal, open_)
        self._server = _calls_class()(
            methods,
            limits,
            self._ports.values(),
            self._engine.journal,
            [
                ("grpc.max_receive_message_length", limits.body_bytes),
                ("grpc.max_send_message_length", limits.response_bytes),
                ("grpc.so_reuseport", 0),  # a second service on the port must fail, not share it
                ("grpc.max_metadata_size", limits.header_bytes),
                ("grpc.absolute_max_metadata_size", limits.header_bytes),
                # Until TLS is agreed upon, or a client of HTTP/2 has said its settings.
                ("grpc.server_handshake_timeout_ms", int(limits.header_timeout_s * 1000)),
                ("grpc.max_connection_idle_ms", int(limits.idle_timeout_s * 1000)),
                ("grpc.max_allowed_incoming_connections", limits.max_connections),
                ("grpc.max_concurrent_streams", limits.connection_calls),
            ],
        )
        for name, port in self._ports.items():
            self._open(name, port)
        await self._server.start()
        watching = asyncio.create_task(self._watch(), name="rpc-watch")
        try:
            yield
        finally:
            watching.cancel()
            await self.stop(grace_s=0)

    async def _watch(self) -> None:
        """A listener that ends by itself must not leave a service that only seems to live."""
        await self._server.until_ended()
        if not self._stopping:
            self._engine.fail_for_good(StartFailed(f"the listener of {', '.join(self._ports)} has ended"))

    def _open(self, name: str, port: int) -> None:
        opened = 0
        with contextlib.suppress(RuntimeError):
            opened = self._add(f"[::]:{port}")
        if opened == 0:
            raise StartFailed(
                f"{name} {port} can't be opened: stop what uses it, or choose another in config.yml"
            )

    def _add(self, address: str) -> int:
        """The port that was opened, 0 for none."""
        if self._certificates is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, _credentials(self._certificates))

    async def stop(self, grace_s: float) -> None:
        """Say GOAWAY, let the calls that a handler has end, cancel what is left after `grace_s`."""
        self._stopping = True
        with contextlib.suppress(asyncio.CancelledError):
            await self._server.stop(grace_s)


def _calls_class() -> type[RpcCalls]:
    """Imported late, so that a grpcio without the names it takes is a sentence. Raises StartFailed."""
    try:
        from pipeline.front.grpc.private.calls import RpcCalls
    except (ImportError, AttributeError) as exc:
        raise StartFailed(
            f"gRPC ports can't be served with grpcio {grpc.__version__}, which has changed inside ({exc}): "
            "install the version that requirements/serving.txt names"
        ) from exc
    return RpcCalls


def _credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Of one port. gRPC asks before each handshake, in a thread of its own, whether they were renewed."""
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

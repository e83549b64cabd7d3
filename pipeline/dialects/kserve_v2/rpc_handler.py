"""GRPCInferenceService over raw bytes: own parsing, so that what is no message gets Triton's answer."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError, Message

from client.protos import kserve_v2_pb2 as messages
from pipeline.dialects.answer_form import AnswerForm
from pipeline.dialects.kserve_v2.extensions import Extensions
from pipeline.dialects.kserve_v2.model_config import model_config
from pipeline.dialects.kserve_v2.repository_api import Control, index
from pipeline.dialects.kserve_v2.rpc_extensions import RpcExtensions, RpcPage
from pipeline.dialects.kserve_v2.rpc_infer import InferMessage, infer_message, parse_infer
from pipeline.dialects.kserve_v2.rpc_stream import Stream
from pipeline.dialects.kserve_v2.shared_memory import Span
from pipeline.dialects.kserve_v2.statistics import model_stats
from pipeline.dialects.kserve_v2.v2_errors import V2Refusal, for_clients
from pipeline.dialects.kserve_v2.v2_models import V2Models, version_number
from pipeline.errors import DeadlineExceeded, Overloaded, ServingError
from pipeline.front.scheduler.clients import CALLER, named
from pipeline.front.scheduler.engine import Engine
from pipeline.front.scheduler.request import Request

if TYPE_CHECKING:
    from pipeline.front.grpc.call_context import CallContext

log = logging.getLogger(__name__)

DOOR = "v2-grpc"
SERVICE = "/inference.GRPCInferenceService/"
HEALTH = "/grpc.health.v1.Health/Check"
HEALTH_CALLS = (HEALTH, SERVICE + "ServerLive", SERVICE + "ServerReady")
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"  # a HealthCheckResponse

Context = grpc.aio.ServicerContext[bytes, bytes]


class V2Handler:
    """The methods of the service, and the standard health check."""

    def __init__(self, engine: Engine, models: V2Models, control: Control, extensions: Extensions) -> None:
        self._engine = engine
        self._models = models
        self._control = control
        self._memory = extensions.memory
        self._journal = engine.journal
        self._limits = engine.app.config.limits
        others = RpcExtensions(extensions, models)
        pages: dict[str, RpcPage] = {
            "ServerLive": (messages.ServerLiveRequest, lambda _: messages.ServerLiveResponse(live=True)),
            "ServerReady": (
                messages.ServerReadyRequest,
                lambda _: messages.ServerReadyResponse(ready=engine.server_ready),
            ),
            "ServerMetadata": (
                messages.ServerMetadataRequest,
                lambda _: messages.ServerMetadataResponse(**extensions.server_metadata()),
            ),
            "ModelReady": (messages.ModelReadyRequest, self._model_ready),
            "ModelMetadata": (messages.ModelMetadataRequest, self._model_metadata),
            "ModelConfig": (messages.ModelConfigRequest, self._model_config),
            "ModelStatistics": (messages.ModelStatisticsRequest, self._statistics),
            "RepositoryIndex": (messages.RepositoryIndexRequest, self._index),
            **others.settings_pages(),
        }
        unary = grpc.unary_unary_rpc_method_handler
        self.methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            SERVICE + name: unary(self._page(*page)) for name, page in pages.items()
        }
        for name, page in others.shared_memory_pages().items():
            self.methods[SERVICE + name] = unary(self._page(*page, admit=self._memory.admit))
        self.methods[SERVICE + "RepositoryModelLoad"] = unary(self._load)
        self.methods[SERVICE + "RepositoryModelUnload"] = unary(self._unload)
        self.methods[SERVICE + "ModelInfer"] = unary(self._infer)
        self.methods[SERVICE + "ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream)
        self.methods[HEALTH] = unary(self._health)

    # What the server and its models tell of themselves:

    def _page(
        self, kind: Any, answer: Callable[[Any], Message], admit: Callable[[str], None] | None = None
    ) -> Callable[[bytes, Context], Awaitable[bytes]]:
        """admit: raises V2Refusal for a client, by its address, that may not ask this."""

        async def page(data: bytes, context: Context) -> bytes:
            try:
                if admit is not None:
                    admit(context.peer())
                return answer(parsed(kind, data)).SerializeToString()
            except ServingError as exc:
                return await self._abort(context, exc)

        return page

    async def _health(self, data: bytes, context: Context) -> bytes:
        return _SERVING if self._engine.server_ready else _NOT_SERVING

    def _model_ready(self, asked: messages.ModelReadyRequest) -> Message:
        if asked.version:
            version_number(asked.version)
        return messages.ModelReadyResponse(ready=self._models.is_ready(asked.name, asked.version))

    def _model_metadata(self, asked: messages.ModelMetadataRequest) -> Message:
        document = self._models.find(asked.name, asked.version).metadata()
        return ParseDict(document, messages.ModelMetadataResponse())

    def _model_config(self, asked: messages.ModelConfigRequest) -> Message:
        app = self._engine.app
        document = model_config(self._models.find(asked.name, asked.version), app.config, app.response)
        return ParseDict({"config": document}, messages.ModelConfigResponse())

    def _statistics(self, asked: messages.ModelStatisticsRequest) -> Message:
        told = model_stats(self._engine, self._models, asked.name, asked.version)
        return ParseDict(told, messages.ModelStatisticsResponse())

    def _index(self, asked: messages.RepositoryIndexRequest) -> Message:
        _refuse_named_repository(asked)
        rows = index(self._models, ready_alone=asked.ready)
        return ParseDict({"models": rows}, messages.RepositoryIndexResponse())

    # Loading and unloading, which go on when the caller leaves:

    async def _load(self, data: bytes, context: Context) -> bytes:
        try:
            asked = parsed(messages.RepositoryModelLoadRequest, data)
            _refuse_named_repository(asked)
            await asyncio.shield(self._control.load(asked.model_name, asked.parameters))
        except ServingError as exc:
            return await self._abort(context, exc)
        return messages.RepositoryModelLoadResponse().SerializeToString()

    async def _unload(self, data: bytes, context: Context) -> bytes:
        try:
            asked = parsed(messages.RepositoryModelUnloadRequest, data)
            _refuse_named_repository(asked)
            dependents = asked.parameters.get("unload_dependents")
            if dependents is not None and dependents.WhichOneof("parameter_choice") != "bool_param":
                raise V2Refusal("invalid value type for 'unload_dependents' parameter, expected bool_param.")
            await asyncio.shield(self._control.unload(asked.model_name, asked.parameters))
        except ServingError as exc:
            return await self._abort(context, exc)
        return messages.RepositoryModelUnloadResponse().SerializeToString()

    # Inference:

    async def _infer(self, data: bytes, context: Context) -> bytes:
        began = time.monotonic()
        try:
            message = infer_message(data, self._limits)
            request = self.request_of(message, context)
            answer = await self._engine.infer(request)
        except ServingError as exc:
            answer = exc
        except Exception:
            log.exception("A fault of ours in ModelInfer")
            answer = ServingError("internal error; the server's log has its reason")
        error = answer if isinstance(answer, ServingError) else None
        if self._journal.tells_each:
            self._journal.tell(DOOR, named(context.peer(), CALLER.get()), "ModelInfer", began, error)
        if isinstance(answer, ServingError):
            return await self._abort(context, answer)
        if request.timings is not None:
            context.set_trailing_metadata((("server-timing", request.timings.header()),))
        self._journal.answered(DOOR)
        return bytes(answer[0])

    def request_of(self, message: InferMessage, context: Context) -> Request:
        """The engine's request. Raises V2Refusal."""
        fields = message.fields
        model = self._models.find(fields.model_name, fields.model_version)
        asked = parse_infer(message, model, partial(self._span, context))
        request = asked.request(model, AnswerForm.V2_PROTO, self._engine)
        request.client = CALLER.get() or self._engine.peers.of(context.peer())
        remaining_s = context.time_remaining()
        given_s = math.inf if remaining_s is None else remaining_s
        if asked.timeout_us:
            given_s = min(given_s, asked.timeout_s)
        request.deadline = self._engine.deadline(given_s)
        request.version = fields.model_version and str(version_number(fields.model_version))
        return request

    def _span(self, context: Context, region: str, offset: int, size: int) -> Span:
        return self._memory.span(context.peer(), region, offset, size)

    async def _stream(self, requests: Any, context: CallContext) -> None:
        await Stream(self._engine, self.request_of, context, DOOR).run()

    async def _abort(self, context: Context, error: ServingError) -> bytes:
        self._journal.refused(DOOR, error)
        _, code, message = for_clients(error)
        if isinstance(error, DeadlineExceeded) and context.time_remaining() == 0:
            code, message = "DEADLINE_EXCEEDED", "Deadline Exceeded"  # as gRPC tells the call's own
        if isinstance(error, Overloaded):
            context.set_trailing_metadata((("grpc-retry-pushback-ms", str(int(error.retry_after_s * 1000))),))
        await context.abort(getattr(grpc.StatusCode, code), message)


def _refuse_named_repository(asked: Any) -> None:
    if asked.repository_name:
        raise V2Refusal("'repository_name' specification is not supported", "UNIMPLEMENTED")


def parsed(kind: Any, data: bytes) -> Any:
    """Raises V2Refusal for bytes that are no such message."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise V2Refusal("Unable to parse request", "INTERNAL") from None

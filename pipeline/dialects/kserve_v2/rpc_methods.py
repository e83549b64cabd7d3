"""GRPCInferenceService over raw bytes: own parsing, so that what is no message gets Triton's answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError, Message

from client.protos import kserve_v2_pb2 as messages
from pipeline.api.restrictions import HEALTH as HEALTH_API
from pipeline.api.restrictions import (
    INFERENCE,
    LOGGING,
    METADATA,
    MODEL_CONFIG,
    MODEL_REPOSITORY,
    SHARED_MEMORY,
    STATISTICS,
    TRACE,
)
from pipeline.dialects.kserve.models import version_number
from pipeline.dialects.kserve.refusals import KServeRefusal, for_clients
from pipeline.dialects.kserve_v2.repository_api import index
from pipeline.dialects.kserve_v2.rpc_extensions import SHARED_MEMORY_METHODS, RpcExtensions, RpcPage
from pipeline.dialects.kserve_v2.rpc_infer import InferMessage, infer_message, parse_infer
from pipeline.dialects.kserve_v2.rpc_stream import Stream
from pipeline.dialects.kserve_v2.server import V2Server
from pipeline.dialects.kserve_v2.shared_memory import Span
from pipeline.dialects.kserve_v2.wish import PROTO
from pipeline.errors import DeadlineExceeded, ServingError
from pipeline.front.grpc.rpc_handler import Context, RpcHandler
from pipeline.front.scheduler.clients import CALLER, caller
from pipeline.front.scheduler.request import Request

if TYPE_CHECKING:
    from pipeline.front.grpc.private.call_context import CallContext

SERVICE = "/inference.GRPCInferenceService/"
HEALTH = "/grpc.health.v1.Health/Check"
HEALTH_CALLS = (HEALTH, SERVICE + "ServerLive", SERVICE + "ServerReady")
_METHODS_BY_API = {
    HEALTH_API: ("ServerLive", "ServerReady", "ModelReady"),
    METADATA: ("ServerMetadata", "ModelMetadata"),
    INFERENCE: ("ModelInfer", "ModelStreamInfer"),
    MODEL_CONFIG: ("ModelConfig",),
    MODEL_REPOSITORY: ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
    STATISTICS: ("ModelStatistics",),
    TRACE: ("TraceSetting",),
    LOGGING: ("LogSettings",),
    SHARED_MEMORY: SHARED_MEMORY_METHODS,
}
APIS = {SERVICE + name: api for api, names in _METHODS_BY_API.items() for name in names}
APIS[HEALTH] = HEALTH_API
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"  # a HealthCheckResponse


class V2Rpc(RpcHandler):
    """The methods of the service, and the standard health check."""

    name = "v2-grpc"

    def __init__(self, server: V2Server) -> None:
        super().__init__(server.scheduler)
        self._server = server
        others = RpcExtensions(server)
        pages: dict[str, RpcPage] = {
            "ServerLive": (messages.ServerLiveRequest, lambda _: messages.ServerLiveResponse(live=True)),
            "ServerReady": (
                messages.ServerReadyRequest,
                lambda _: messages.ServerReadyResponse(ready=server.scheduler.server_ready),
            ),
            "ServerMetadata": (
                messages.ServerMetadataRequest,
                lambda _: messages.ServerMetadataResponse(**server.metadata()),
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
            self.methods[SERVICE + name] = unary(self._page(*page, admit=server.memory.admit))
        self.methods[SERVICE + "RepositoryModelLoad"] = unary(self._load)
        self.methods[SERVICE + "RepositoryModelUnload"] = unary(self._unload)
        self.methods[SERVICE + "ModelInfer"] = unary(partial(self._predict, "ModelInfer", self._request))
        self.methods[SERVICE + "ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream)
        self.methods[HEALTH] = unary(self._health)

    # What the server and its models tell of themselves:

    def _page(
        self, kind: Any, answer: Callable[[Any], Message], admit: Callable[[str], None] | None = None
    ) -> Callable[[bytes, Context], Awaitable[bytes]]:
        """The handler of a method whose message is of the kind. admit: is given the client's address, and
        raises KServeRefusal where it may not call the method.
        """

        async def page(data: bytes, context: Context) -> bytes:
            try:
                if admit is not None:
                    admit(context.peer())
                return answer(parsed(kind, data)).SerializeToString()
            except ServingError as exc:
                return await self._refuse_page(context, exc)

        return page

    async def _health(self, data: bytes, context: Context) -> bytes:
        return _SERVING if self._scheduler.server_ready else _NOT_SERVING

    def _model_ready(self, asked: messages.ModelReadyRequest) -> Message:
        if asked.version:
            version_number(asked.version)
        return messages.ModelReadyResponse(ready=self._server.models.is_ready(asked.name, asked.version))

    def _model_metadata(self, asked: messages.ModelMetadataRequest) -> Message:
        document = self._server.get_metadata(asked.name, asked.version)
        return ParseDict(document, messages.ModelMetadataResponse())

    def _model_config(self, asked: messages.ModelConfigRequest) -> Message:
        document = {"config": self._server.config(asked.name, asked.version)}
        return ParseDict(document, messages.ModelConfigResponse())

    def _statistics(self, asked: messages.ModelStatisticsRequest) -> Message:
        told = self._server.statistics(asked.name, asked.version)
        return ParseDict(told, messages.ModelStatisticsResponse())

    def _index(self, asked: messages.RepositoryIndexRequest) -> Message:
        _refuse_named_repository(asked)
        rows = index(self._server.models, ready_alone=asked.ready)
        return ParseDict({"models": rows}, messages.RepositoryIndexResponse())

    # Loading and unloading, which go on when the caller leaves:

    async def _load(self, data: bytes, context: Context) -> bytes:
        try:
            asked = parsed(messages.RepositoryModelLoadRequest, data)
            _refuse_named_repository(asked)
            await asyncio.shield(self._server.control.load(asked.model_name, asked.parameters))
        except ServingError as exc:
            return await self._refuse_page(context, exc)
        return messages.RepositoryModelLoadResponse().SerializeToString()

    async def _unload(self, data: bytes, context: Context) -> bytes:
        try:
            asked = parsed(messages.RepositoryModelUnloadRequest, data)
            _refuse_named_repository(asked)
            dependents = asked.parameters.get("unload_dependents")
            if dependents is not None and dependents.WhichOneof("parameter_choice") != "bool_param":
                raise KServeRefusal(
                    "invalid value type for 'unload_dependents' parameter, expected bool_param."
                )
            await asyncio.shield(self._server.control.unload(asked.model_name, asked.parameters))
        except ServingError as exc:
            return await self._refuse_page(context, exc)
        return messages.RepositoryModelUnloadResponse().SerializeToString()

    # Inference:

    def _request(self, data: bytes, context: Context) -> Request:
        return self.build_request(infer_message(data, self._server.limits), context)

    def build_request(self, message: InferMessage, context: Context) -> Request:
        """What the scheduler is given for a message. Raises KServeRefusal."""
        fields = message.fields
        model = self._server.models.find(fields.model_name, fields.model_version)
        asked = parse_infer(message, model, partial(self._span, context))
        request = asked.request(model, PROTO, self._scheduler)
        request.client = CALLER.get() or self._scheduler.peers.of(context.peer())
        remaining_s = context.time_remaining()
        given_s = math.inf if remaining_s is None else remaining_s
        if asked.timeout_us:
            given_s = min(given_s, asked.deadline_s(model))
        request.deadline = self._scheduler.deadline(given_s)
        request.version = fields.model_version and str(version_number(fields.model_version))
        return request

    def _span(self, context: Context, region: str, offset: int, size: int) -> Span:
        return self._server.memory.span(context.peer(), region, offset, size)

    async def _stream(self, requests: Any, context: CallContext) -> None:
        await Stream(self._scheduler, self.build_request, context, self.name).run()

    async def _refuse_page(self, context: Context, error: ServingError) -> bytes:
        self._access_log.refused(self.name, error, caller(context.peer()))
        return await self._refuse(context, error)

    async def _refuse(self, context: Context, error: ServingError) -> bytes:
        _, code, message = for_clients(error)
        if isinstance(error, DeadlineExceeded) and context.time_remaining() == 0:
            code, message = "DEADLINE_EXCEEDED", "Deadline Exceeded"  # as gRPC tells the call's own
        await self._end(context, error, code, message)


def _refuse_named_repository(asked: Any) -> None:
    if asked.repository_name:
        raise KServeRefusal("'repository_name' specification is not supported", "UNIMPLEMENTED")


def parsed(kind: Any, data: bytes) -> Any:
    """The bytes as a message of this kind. Raises KServeRefusal for bytes that are none."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise KServeRefusal("Unable to parse request", "INTERNAL") from None

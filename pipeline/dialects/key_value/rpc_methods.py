"""PipelineService over gRPC: its one method."""

from __future__ import annotations

import math
from functools import partial

import grpc

from pipeline.api.examples import KEY_VALUE_EXAMPLE, message_of
from pipeline.dialects.key_value.answers import PROTO, render_error
from pipeline.dialects.key_value.key_value import parse_proto, pass_proto_on
from pipeline.errors import DeadlineExceeded, NotReady, Overloaded, ServingError, UnknownService
from pipeline.front.grpc.rpc_handler import Context, RpcHandler
from pipeline.front.scheduler.clients import CALLER
from pipeline.front.scheduler.request import Request
from pipeline.front.scheduler.scheduler import TICKS_PER_S, Scheduler

METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
# These are the transport's own refusals; the original answers all others as a message with err_no.
_AS_STATUS = (Overloaded, NotReady)


class KeyValueRpc(RpcHandler):
    """Messages stay bytes: they are parsed here, and the worker prints the answer."""

    name = "grpc"

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._service = scheduler.app.name
        self._limits = scheduler.app.config.limits
        self._example = message_of(scheduler.app.examples.key_values, KEY_VALUE_EXAMPLE)
        self._parse = pass_proto_on if scheduler.takes_messages else parse_proto
        predict = partial(self._predict, METHOD, self._request)
        self.methods = {METHOD: grpc.unary_unary_rpc_method_handler(predict)}

    def _request(self, data: bytes, context: Context) -> Request:
        request = self._parse(data, self._limits, self._example)
        if request.service and request.service != self._service:
            raise UnknownService(
                f"Service name error: there is no service {request.service!r}; leave name empty or send "
                f"{self._service!r}, as in {self._example}"
            )
        request.client = CALLER.get() or self._scheduler.peers.of(context.peer())
        remaining_s = context.time_remaining()
        request.deadline = self._scheduler.deadline(math.inf if remaining_s is None else remaining_s)
        return request

    async def _refuse(self, context: Context, error: ServingError) -> bytes:
        if isinstance(error, _AS_STATUS):
            await self._end(context, error, error.grpc_code, error.message)
        if isinstance(error, DeadlineExceeded) and _is_over(context):
            await self._end(context, error, "DEADLINE_EXCEEDED", error.message)
        return render_error(error, PROTO)


def _is_over(context: Context) -> bool:
    """Whether the caller's own deadline passed; a limit of the service's is answered as a message."""
    remaining_s = context.time_remaining()
    return remaining_s is not None and remaining_s <= 1 / TICKS_PER_S

"""The hooks at both ends of a DAG, where the app overrides them.

`unpack_request_package` makes the first Ops' inputs of a message, and `pack_response_package` the answer of
the last Op's output or of a refusal.
"""

from __future__ import annotations

from operator import index
from typing import Any, SupportsIndex

from client.protos.pipeline_service_pb2 import Request, Response
from pipeline.api.dag import MESSAGE
from pipeline.api.op import Op, OpRequest, RequestOp, ResponseOp
from pipeline.errors import ServingError, WrongResult, described
from pipeline.messages.messages import REFUSAL, Refusal
from pipeline.paddle_serving.channel_data import ChannelData
from pipeline.worker.hooks import Hooks, product_error

_INT64 = range(-(1 << 63), 1 << 63)


def get_hooks(op: Op) -> Hooks:
    """The hooks that a worker calls for its Op: an Op's own, or the one of an end of the DAG."""
    if isinstance(op, RequestOp):
        return RequestHooks(op)
    return ResponseHooks(op) if isinstance(op, ResponseOp) else Hooks(op)


class RequestHooks(Hooks):
    """Calls `unpack_request_package` where `preprocess` of another Op is called, and no hook after it."""

    unpacks = True

    def preprocess(self, own: Op, request: OpRequest) -> tuple[Any, bool]:
        assert isinstance(own, RequestOp)
        message = Request.FromString(request.input_dicts[MESSAGE][MESSAGE])
        try:
            inputs, log_id, code, info = _unpacked(own.unpack_request_package(message), message.logid)
        except BaseException as exc:
            raise self.failure(exc, "unpack_request_package", request) from exc
        if code is not None:
            raise product_error(code, info)
        if not isinstance(inputs, dict):
            raise self._wrong(inputs, "a dict of inputs by name, or (dict, log_id, None, '')")
        if not isinstance(log_id, SupportsIndex | None) or index(log_id or 0) not in _INT64:
            raise self._wrong(log_id, "a 64-bit integer", part=" as log_id")
        request.log_id = index(log_id or 0)
        return inputs, True

    def postprocess(self, own: Op, request: OpRequest, fetch: Any) -> Any:
        return fetch

    def _wrong(self, returned: Any, expected: str, part: str = "") -> WrongResult:
        return WrongResult(self.op.name, "unpack_request_package", returned, expected, part=part)


class ResponseHooks(Hooks):
    """Calls `pack_response_package` where `preprocess` of another Op is called, and no hook after it."""

    def preprocess(self, own: Op, request: OpRequest) -> tuple[Any, bool]:
        """The message that the app has packed; one with an err_no and without values is raised as refusal."""
        assert isinstance(own, ResponseOp)
        ((name, value),) = request.input_dicts.items()
        refusal = Refusal(*value).error() if name == REFUSAL else None
        try:
            response = own.pack_response_package(_channel_data(value, request, refusal))
        except BaseException as exc:
            raise self.failure(exc, "pack_response_package", request) from exc
        if not isinstance(response, Response):
            expected = "a Response of pipeline_service_pb2"
            raise WrongResult(self.op.name, "pack_response_package", response, expected)
        if response.err_no and not response.key and not response.value and not response.tensors:
            error = refusal or product_error(response.err_no, "")
            error.err_no, error.args = response.err_no, (response.err_msg,)
            raise error
        return response, True

    def postprocess(self, own: Op, request: OpRequest, fetch: Any) -> Any:
        return fetch


def _unpacked(result: Any, log_id: int) -> tuple[Any, Any, Any, Any]:
    """What `unpack_request_package` has returned, as (inputs, log_id, prod_errcode, prod_errinfo).

    Hooks written for Paddle Serving 0.5 return no log_id: it is that of the message.
    """
    if not isinstance(result, tuple):
        return result, log_id, None, ""
    if len(result) == 3:
        return result[0], log_id, result[1], result[2]
    inputs, own_log_id, code, info = result
    return inputs, own_log_id, code, info


def _channel_data(value: Any, request: OpRequest, refusal: ServingError | None) -> ChannelData:
    if refusal is None:
        return ChannelData(value, data_id=request.data_id, log_id=request.log_id)
    code, _, _, info = described(refusal)
    return ChannelData.of_refusal(code, info, data_id=request.data_id, log_id=request.log_id)

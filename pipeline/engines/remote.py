"""gRPC clients of models on other servers: Pipeline services, and KServe v2 servers such as Triton."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message

from client.protos.kserve_v2_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelMetadataRequest,
    ModelMetadataResponse,
)
from client.protos.pipeline_service_pb2 import Request, Response, Tensor
from pipeline.config.config_file import Limits
from pipeline.config.op_section import Metadata, RemoteKey
from pipeline.engines.feeds import Array, check_promised
from pipeline.engines.fetches import select_fetches
from pipeline.engines.remote_model import RemoteConf, RemotePredictor
from pipeline.errors import (
    BadPackage,
    ConfigError,
    DeadlineExceeded,
    InvalidInput,
    ModelFailed,
    Overloaded,
    RemoteRefused,
    RemoteUnreachable,
    ServingError,
    TooLarge,
)
from pipeline.models.serving_model import Variable
from pipeline.models.tensor_spec import BY_DATATYPE, BY_NAME
from pipeline.wire.paddle_tensors import STRING, add_tensors, to_message
from pipeline.wire.v2_tensors import from_contents, from_raw, to_raw
from pipeline.wire.value_texts import format_value

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 512 * 1024 * 1024
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Reconnect within a second to a service that is back; gRPC's default backoff reaches two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Despite the name, the timeout of a connection attempt. A host that is gone does not refuse.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.enable_retries", 0),  # Endpoints.call retries
    ("grpc.enable_http_proxy", 0),
]
REST_S = 1.0  # during which a failed endpoint is tried after the others
PAUSE_S = 0.1  # before a request tries the same endpoint again
# Prefixes of UNAVAILABLE for requests that were never sent: trying the next endpoint repeats nothing.
_NEVER_SENT = ("failed to connect", "dns resolution failed", "empty address list")
_TOO_LARGE = "larger than max"  # gRPC's size limits use the status of an overload


class _Endpoint:
    """A server of a remote model, and the gRPC channel to it, which reconnects by itself."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.insecure_channel(address, OPTIONS)
        self.rests_until = 0.0  # other endpoints are tried first until then; 0: the endpoint works

    def call(self, method: str, data: bytes, timeout_s: float, metadata: Metadata) -> bytes:
        call = self.channel.unary_unary(method, None, None)
        answer: bytes = call(data, timeout=timeout_s, metadata=metadata)
        return answer


class Endpoints:
    """The servers of one Op (step) with a remote model. Failed calls are retried at the next server.

    Several threads may call at once.
    """

    def __init__(self, conf: RemoteConf, protocol: str) -> None:
        """Open a channel to each server. `protocol` is the protocol's name for error messages.

        Raises ConfigError for an invalid key file.
        """
        self._conf = conf
        self._protocol = protocol
        self._key = RemoteKey(conf.key_file)
        self._endpoints = [_Endpoint(address) for address in conf.endpoints]
        self._turns = itertools.count(conf.first)

    def call(
        self, method: str, message: Message, deadline: float, traceparent: str = ""
    ) -> tuple[bytes, str]:
        """Call a gRPC method of one of the servers. Returns the response's bytes and the server's address.

        traceparent: sent as metadata with each try; empty for a request that is not traced.

        A try without a response, or refused for overload, is repeated at the next endpoint. A failed
        connection does not count as a try while another endpoint is untried. Raises a ServingError that names
        the endpoint, and DeadlineExceeded at `deadline` (time.monotonic).
        """
        data = message.SerializeToString()
        trace: Metadata = (("traceparent", traceparent),) if traceparent else ()
        order = self._order()
        tries_left = self._conf.tries
        failure: ServingError | None = None
        for number in itertools.count():
            if number >= len(order):
                time.sleep(min(PAUSE_S, max(0.0, deadline - time.monotonic())))
            endpoint = order[number % len(order)]
            timeout_s = min(self._conf.timeout_s, deadline - time.monotonic())
            if timeout_s <= 0:
                raise failure or self._build_deadline_error(endpoint)
            key = self._key.metadata  # another thread may reload the key meanwhile
            try:
                answer = endpoint.call(method, data, timeout_s, key + trace)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNAUTHENTICATED and self._key.reread(key):
                    continue
                failure = self._convert_error(error, endpoint, deadline)
                if not isinstance(failure, DeadlineExceeded | RemoteUnreachable | Overloaded):
                    raise failure from error
                if not endpoint.rests_until:
                    log.warning("%s", failure.message)
                endpoint.rests_until = time.monotonic() + REST_S
                tries_left -= not _never_sent(error) or number + 1 >= len(order)
                if tries_left <= 0:
                    raise failure from error
            else:
                if endpoint.rests_until:
                    log.info("[%s] %s answers again", self._conf.op, endpoint.address)
                    endpoint.rests_until = 0.0
                return answer, endpoint.address
        raise AssertionError("unreachable")

    def close(self) -> None:
        for endpoint in self._endpoints:
            endpoint.channel.close()

    def _order(self) -> list[_Endpoint]:
        """Return the servers in the order of tries: round-robin, with recently failed servers last."""
        now = time.monotonic()
        awake = [endpoint for endpoint in self._endpoints if endpoint.rests_until <= now]
        resting = [endpoint for endpoint in self._endpoints if endpoint.rests_until > now]
        resting.sort(key=lambda endpoint: endpoint.rests_until)
        turn = next(self._turns) % max(1, len(awake))
        return awake[turn:] + awake[:turn] + resting

    def _convert_error(self, error: grpc.RpcError, endpoint: _Endpoint, deadline: float) -> ServingError:
        code, details = error.code(), error.details() or ""
        name, address = self._conf.op, endpoint.address
        message = f"{address} answered {code.name}: {details}"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            if time.monotonic() < deadline:
                return self._build_timeout_error(endpoint)
            return self._build_deadline_error(endpoint)
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            # CANCELLED: the call crossed the GOAWAY of a stopping server. We never cancel calls.
            reason = details.rpartition("last error: ")[2].removeprefix("UNKNOWN: ")
            return RemoteUnreachable(
                f"[{name}] no answer from {address} ({reason}): check op.{name}.server_endpoints, and that a "
                f"{self._protocol} is ready there"
            )
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE not in details:
            return Overloaded(f"[{name}] {message}")
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            return InvalidInput(message)
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return ModelFailed(f"{message}; check op.{name}.server_api_key_file")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return ModelFailed(f"{message}; it is no {self._protocol}: check op.{name}.client_type")
        return ModelFailed(message)

    def _build_timeout_error(self, endpoint: _Endpoint) -> DeadlineExceeded:
        name, tries = self._conf.op, self._conf.tries
        more = f" in each of {tries} tries" if tries > 1 else ""
        return DeadlineExceeded(
            f"[{name}] {endpoint.address} took more than op.{name}.timeout "
            f"({self._conf.timeout_s * 1000:g} ms){more}"
        )

    def _build_deadline_error(self, endpoint: _Endpoint) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"[{self._conf.op}] the request's deadline passed before {endpoint.address} answered"
        )


def _never_sent(error: grpc.RpcError) -> bool:
    details = (error.details() or "").lower()
    return error.code() is grpc.StatusCode.UNAVAILABLE and details.startswith(_NEVER_SENT)


METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"


class PipelinePredictor(RemotePredictor):
    """Client of a remote Pipeline service, in Paddle Serving's gRPC protocol.

    Outputs have Paddle Serving's form: `{key: [text]}`, and arrays for tensors. Inputs are sent as by
    PipelineClient: `str` unchanged and arrays as their repr, or, after `set_pack_tensor_format(True)`, all as
    tensors. `fetch_list` selects keys of the answer.
    """

    merges = False
    feeds: tuple[Variable, ...] = ()  # the service does not declare them
    fetches: tuple[Variable, ...] = ()

    def __init__(
        self, conf: RemoteConf, fetch_list: Sequence[str], packs_tensors: Callable[[], bool]
    ) -> None:
        self._packs_tensors = packs_tensors
        self._fetch_list = tuple(fetch_list)
        self._endpoints = Endpoints(conf, "Pipeline service")

    def run(
        self, feeds: Mapping[str, Any], *, deadline: float = math.inf, traceparent: str = ""
    ) -> dict[str, Any]:
        request = _build_request(feeds, as_tensors=self._packs_tensors())
        data, address = self._endpoints.call(METHOD, request, deadline, traceparent)
        try:
            response = Response.FromString(data)
        except DecodeError as exc:
            raise ModelFailed(f"{address} answered with no Pipeline message") from exc
        if response.err_no != 0:
            raise RemoteRefused(response.err_msg, response.err_no)
        return self._select(_unpack_outputs(response, address), address)

    def close(self) -> None:
        self._endpoints.close()

    def _select(self, outputs: dict[str, Any], address: str) -> dict[str, Any]:
        for name in self._fetch_list:
            if name not in outputs:
                keys = ", ".join(outputs) or "nothing"
                raise ModelFailed(f"fetch_list: the answer of {address} has no {name!r}, only {keys}")
        return {name: outputs[name] for name in self._fetch_list} if self._fetch_list else outputs


def _build_request(feeds: Mapping[str, Any], *, as_tensors: bool) -> Request:
    """Return a Pipeline request with these inputs; "logid" and "clientip" become fields.

    Raises InvalidInput.
    """
    feeds = dict(feeds)
    name: object = "logid"
    try:
        request = Request(logid=int(feeds.pop("logid", 0)), clientip=str(feeds.pop("clientip", "")))
        for name, value in feeds.items():
            if as_tensors:
                request.tensors.append(_build_input_tensor(name, value))
            else:
                request.key.append(name)
                request.value.append(
                    value if isinstance(value, str) else format_value(_require_array(name, value))
                )
    except (TypeError, ValueError) as exc:  # a name that is no str, an unpaired surrogate, an object array
        raise InvalidInput(f"feed {name!r} can't be sent: {exc}") from exc
    return request


def _build_input_tensor(name: str, value: Any) -> Tensor:
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts):
        return Tensor(name=name, elem_type=STRING, str_data=texts)
    return to_message(name, _require_array(name, value))


def _require_array(name: str, value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray | list):
        return np.asarray(value)
    raise InvalidInput(f"feed {name!r} is of type {type(value).__name__}, expected str, ndarray or list")


def _unpack_outputs(response: Response, address: str) -> dict[str, Any]:
    # Paddle Serving put each text into a list, and hooks read `fetch_dict["key"][0]`.
    outputs: dict[str, Any] = {key: [value] for key, value in zip(response.key, response.value, strict=False)}
    try:
        add_tensors(outputs, response.tensors, Limits())
    except (BadPackage, TooLarge) as exc:
        raise ModelFailed(f"{address} answered with a tensor that can't be read: {exc.message}") from exc
    return outputs


SERVICE = "/inference.GRPCInferenceService"
START_PATIENCE_S = 5.0  # wait for the metadata at start-up; then the Op starts without it


class _Signature(NamedTuple):
    feeds: tuple[Variable, ...]
    fetches: tuple[Variable, ...]


class V2Predictor(RemotePredictor):
    """Client of a model on a KServe v2 gRPC server, with the inputs and outputs of the model's metadata.

    The metadata is read once: at start-up, or with the first request that reaches a server. BYTES outputs are
    object arrays of `bytes`.
    """

    merges = True

    def __init__(self, conf: RemoteConf, model_name: str, fetch_list: Sequence[str]) -> None:
        self._op = conf.op
        self._model_name = model_name
        self._fetch_list = tuple(fetch_list)
        self._endpoints = Endpoints(conf, "KServe v2 gRPC service")
        self._loaded_signature: _Signature | None = None
        try:
            self._load_signature(time.monotonic() + START_PATIENCE_S)
        except (RemoteUnreachable, DeadlineExceeded, Overloaded) as exc:
            log.warning("%s; the Op starts, and is asked again with each request", exc.message)
        except ServingError as exc:
            raise ConfigError(
                f"op.{conf.op}: the remote model {model_name!r} can't be used: {exc.message}; check "
                f"op.{conf.op}.model_name and op.{conf.op}.server_endpoints"
            ) from exc

    @property
    def feeds(self) -> tuple[Variable, ...]:
        return self._load_signature().feeds

    @property
    def fetches(self) -> tuple[Variable, ...]:
        return self._load_signature().fetches

    def run(
        self, feeds: Mapping[str, Any], *, deadline: float = math.inf, traceparent: str = ""
    ) -> dict[str, Any]:
        signature = self._load_signature(deadline)
        request = self._build_request(signature, feeds)
        data, address = self._endpoints.call(f"{SERVICE}/ModelInfer", request, deadline, traceparent)
        try:
            return _arrays(ModelInferResponse.FromString(data), signature.fetches)
        except (ValueError, DecodeError) as exc:
            raise ModelFailed(f"{address} answered with what can't be read: {exc}") from exc

    def close(self) -> None:
        self._endpoints.close()

    def _load_signature(self, deadline: float = math.inf) -> _Signature:
        if self._loaded_signature is None:
            message = ModelMetadataRequest(name=self._model_name)
            data, address = self._endpoints.call(f"{SERVICE}/ModelMetadata", message, deadline)
            try:
                metadata = ModelMetadataResponse.FromString(data)
                feeds, fetches = _variables(metadata.inputs), _variables(metadata.outputs)
            except (ValueError, DecodeError) as exc:
                raise ModelFailed(f"{address} describes what can't be served: {exc}") from exc
            self._loaded_signature = _Signature(feeds, select_fetches(fetches, self._fetch_list))
        return self._loaded_signature

    def _build_request(self, signature: _Signature, feeds: Mapping[str, Any]) -> ModelInferRequest:
        """Return a KServe request with these inputs.

        Raises InvalidInput for a dtype or shape that differs from the server's metadata.
        """
        request = ModelInferRequest(model_name=self._model_name)
        for fetch in signature.fetches:
            request.outputs.add(name=fetch.name)
        checked = check_promised(signature.feeds, _texts_as_objects(signature.feeds, feeds))
        for variable in signature.feeds:
            array = checked[variable.alias]
            request.inputs.add(
                name=variable.name, datatype=BY_NAME[variable.dtype].datatype, shape=array.shape
            )
            try:
                request.raw_input_contents.append(to_raw(array))
            except ValueError as exc:
                raise InvalidInput(f"feed {variable.alias!r} {exc}") from exc
        return request


def _variables(tensors: Iterable[ModelMetadataResponse.TensorMetadata]) -> tuple[Variable, ...]:
    variables = []
    for tensor in tensors:
        if tensor.datatype not in BY_DATATYPE:
            raise ValueError(f"{tensor.name!r} has datatype {tensor.datatype!r}")
        dtype = BY_DATATYPE[tensor.datatype].name
        variables.append(Variable(tensor.name, tensor.name, dtype, tuple(tensor.shape)))
    return tuple(variables)


def _texts_as_objects(variables: Sequence[Variable], feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Convert NumPy's fixed-width text arrays to arrays of objects, as needed for BYTES inputs."""
    converted = dict(feeds)
    for variable in variables:
        array = feeds.get(variable.alias)
        if variable.dtype == "string" and isinstance(array, np.ndarray) and array.dtype.kind in "US":
            converted[variable.alias] = array.astype(object)
    return converted


def _arrays(response: ModelInferResponse, fetches: Sequence[Variable]) -> dict[str, Array]:
    """Decode a response. Returns arrays by alias.

    Raises ValueError for a missing output, and for contents that don't fit a shape.
    """
    raw = response.raw_output_contents
    if raw and len(raw) != len(response.outputs):
        raise ValueError(f"{len(raw)} raw_output_contents for {len(response.outputs)} outputs")
    arrays = {}
    for number, tensor in enumerate(response.outputs):
        try:
            if raw:
                arrays[tensor.name] = from_raw(raw[number], tensor.datatype, tensor.shape)
            else:
                arrays[tensor.name] = from_contents(tensor.contents, tensor.datatype, tensor.shape)
        except ValueError as exc:
            raise ValueError(f"output {tensor.name!r}: {exc}") from None
    for fetch in fetches:
        if fetch.name not in arrays:
            raise ValueError(f"there is no output {fetch.name!r}, only {', '.join(arrays) or 'none'}")
    return {fetch.alias: arrays[fetch.name] for fetch in fetches}

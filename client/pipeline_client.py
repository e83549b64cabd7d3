"""`PipelineClient`, the gRPC client of Paddle Serving's Pipeline: the same calls and the same messages."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any, Literal, overload

import grpc

from client.errors import ClientError, numpy_required
from client.protos.pipeline_service_pb2 import Request, Response, Tensor
from client.retry import call_with_retries
from client.rpc_channel import RpcChannel
from client.tls import Tls

with numpy_required():
    import numpy as np
    from numpy.typing import NDArray

PROFILE_KEY = "pipeline.profile"
STRING, BYTES = 12, 13
LOD_SUFFIX = ".lod"  # "x.lod" has the offsets of the sequences in the input "x"
# numpy dtype: (elem_type, field). NumPy has no bfloat16: its bits travel as uint16. The service has the same
# table (pipeline/models/tensor_spec.py), which a client, being without the service, does not import.
ENCODINGS = {
    "int64": (0, "int64_data"),
    "float32": (1, "float_data"),
    "int32": (2, "int_data"),
    "float64": (3, "float64_data"),
    "int16": (4, "int_data"),
    "float16": (5, "float_data"),
    "uint16": (6, "uint32_data"),
    "uint8": (7, "uint32_data"),
    "int8": (8, "int_data"),
    "bool": (9, "bool_data"),
}
NUMPY_1 = "1.25" if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else False


class PipelineClient:
    """Drop-in replacement for Paddle Serving's `PipelineClient`, which sends arrays and texts over gRPC.

    timeout_s: seconds for one `predict`, with retries of an unreachable or busy service; None waits for ever,
    as Paddle Serving's client does. Asynchronous calls are not retried. A call that gets no answer raises
    `grpc.RpcError`.
    """

    def __init__(
        self,
        timeout_s: float | None = 60.0,
        retries: int = 2,
        tls: Tls | None = None,
        api_key: str | None = None,
    ) -> None:
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._retries = retries
        self._tls = tls
        self._channel: RpcChannel | None = None

    def connect(self, endpoints: Sequence[str]) -> None:
        """Set the addresses of the service, `["host:port", ...]`, which are used in turn.

        No request is sent yet. Raises ValueError for an invalid address.
        """
        self.close()
        self._channel = RpcChannel(*endpoints, tls=self._tls, api_key=self._api_key)

    @overload
    def predict(
        self,
        feed_dict: dict[str, Any],
        fetch: list[str] | None = None,
        asyn: Literal[False] = False,
        pack_tensor_format: bool = False,
        use_tensor_bytes: bool = False,
        profile: bool = False,
        log_id: int = 0,
    ) -> Response: ...
    @overload
    def predict(
        self,
        feed_dict: dict[str, Any],
        fetch: list[str] | None = None,
        *,
        asyn: Literal[True],
        pack_tensor_format: bool = False,
        use_tensor_bytes: bool = False,
        profile: bool = False,
        log_id: int = 0,
    ) -> grpc.CallFuture[Response]: ...
    def predict(
        self,
        feed_dict: dict[str, Any],
        fetch: list[str] | None = None,
        asyn: bool = False,
        pack_tensor_format: bool = False,
        use_tensor_bytes: bool = False,
        profile: bool = False,
        log_id: int = 0,
    ) -> Response | grpc.CallFuture[Response]:
        """Send the inputs {name: str, ndarray or list}, and return the response, or a future if `asyn`.

        `Response.err_no` is 0 for success. The keys "logid" and "clientip" fill the fields of these names;
        `log_id` overrides "logid". pack_tensor_format: send Tensor messages; "x.lod" (offsets) becomes the
        lod of the tensor "x". `fetch` is checked but has no effect, as in Paddle Serving 0.9. Raises
        TypeError for a value that can't be sent, RuntimeError before `connect`, and grpc.RpcError without an
        answer.
        """
        if self._channel is None:
            raise RuntimeError('not connected; call connect(["127.0.0.1:8088"]) first')
        if fetch is not None and not isinstance(fetch, list):
            raise TypeError("fetch must be a list of names")
        request = pack_request(
            feed_dict,
            pack_tensor_format=pack_tensor_format,
            use_tensor_bytes=use_tensor_bytes,
            profile=profile,
            log_id=log_id,
        )
        if asyn:
            return self._channel.call_later(request, self._timeout_s)
        return self._call(self._channel, request)

    def close(self) -> None:
        """Close the connection; `connect` opens a new one."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def __enter__(self) -> PipelineClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _call(self, channel: RpcChannel, request: Request) -> Response:
        bounded = self._timeout_s is not None
        try:
            return call_with_retries(
                lambda remaining_s: channel.call(request, remaining_s if bounded else None),
                timeout_s=self._timeout_s if self._timeout_s is not None else float("inf"),
                retries=self._retries,
            )
        except ClientError as error:
            if isinstance(error.__cause__, grpc.RpcError):
                error.__cause__.add_note(str(error))  # names the addresses
                raise error.__cause__ from None
            raise


def pack_request(
    feed_dict: dict[str, Any],
    *,
    pack_tensor_format: bool = False,
    use_tensor_bytes: bool = False,
    profile: bool = False,
    log_id: int = 0,
) -> Request:
    """Return the protobuf Request for the inputs {name: str, ndarray or list}, which are not changed.

    pack_tensor_format: send Tensor messages instead of printed arrays; use_tensor_bytes: send arrays in .npy
    format. profile: request timings.
    """
    if not isinstance(feed_dict, dict):
        raise TypeError("feed must be a dict {key: str, ndarray or list}")
    feed = dict(feed_dict)
    feed_log_id = int(feed.pop("logid", 0))
    request = Request(logid=log_id or feed_log_id, clientip=str(feed.pop("clientip", "")))
    if pack_tensor_format:
        request.tensors.extend(pack_tensors(feed, as_bytes=use_tensor_bytes))
    else:
        request.key.extend(feed)
        request.value.extend(
            value if isinstance(value, str) else print_array(as_array(key, value))
            for key, value in feed.items()
        )
    if profile:
        request.key.append(PROFILE_KEY)
        request.value.append("1")
    return request


def pack_tensors(feed: dict[str, Any], *, as_bytes: bool = False) -> list[Tensor]:
    """Return a Tensor message for each input; "x.lod" (sequence offsets) becomes a field of tensor "x"."""
    offsets = {f"{name}{LOD_SUFFIX}" for name in feed}
    tensors = []
    for name, value in feed.items():
        if name in offsets:
            continue
        tensor = pack_tensor(name, value, as_bytes=as_bytes)
        tensor.lod.extend(np.ravel(feed.get(name + LOD_SUFFIX, ())).astype(np.int32).tolist())
        tensors.append(tensor)
    return tensors


def pack_tensor(name: str, value: Any, *, as_bytes: bool = False) -> Tensor:
    """Return the Tensor message for a str, a list of str, or an array. as_bytes: arrays in .npy format.

    A service joins the texts of a list. The texts of an array of str stay separate, because the array has a
    shape. Raises TypeError for other values and dtypes.
    """
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts):
        return Tensor(name=name, elem_type=STRING, str_data=texts)
    array = as_array(name, value)
    if as_bytes:
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        return Tensor(name=name, elem_type=BYTES, shape=array.shape, byte_data=buffer.getvalue())
    if array.dtype.kind == "U" and isinstance(value, np.ndarray):
        return Tensor(name=name, elem_type=STRING, shape=array.shape, str_data=array.ravel().tolist())
    if array.dtype.name not in ENCODINGS:
        raise TypeError(f"{name!r}: a Tensor can't hold {array.dtype}, only {', '.join(ENCODINGS)} and str")
    elem_type, field = ENCODINGS[array.dtype.name]
    tensor = Tensor(name=name, elem_type=elem_type, shape=array.shape)
    getattr(tensor, field).extend(array.ravel().tolist())
    return tensor


def as_array(key: str, value: Any) -> NDArray[Any]:
    """Return an array unchanged, or convert a list to an array.

    Raise TypeError for other values; `key` is the name for the message.
    """
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, list):
        try:
            return np.array(value)
        except ValueError:  # ragged lists, which NumPy 1 made arrays of objects
            return np.array(value, object)
    raise TypeError(f"{key!r}: {type(value).__name__} can't be sent, only str, ndarray and list")


def print_array(array: NDArray[Any]) -> str:
    """Return the full repr of an array in NumPy 1's format, in which key/value requests contain arrays."""
    with np.printoptions(threshold=sys.maxsize, legacy=NUMPY_1):  # type: ignore[arg-type]
        return repr(array)

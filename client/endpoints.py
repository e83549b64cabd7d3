"""The protocols that the load test can speak: how to build request bodies, send them and check answers."""

from __future__ import annotations

import http.client
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from google.protobuf import json_format
from google.protobuf.message import Message

from client.addresses import split_addresses
from client.http_client import read_key_value
from client.http_connection import HttpReply, HttpServers
from client.protos.kserve_v2_pb2 import ModelInferRequest, ModelInferResponse
from client.protos.pipeline_service_pb2 import Request, Response
from client.rows_client import kserve_error
from client.rpc_channel import METHOD_PATH, RpcChannel
from client.rpc_client import read_key_value_message
from client.tls import Tls

V2_METHOD_PATH = "/inference.GRPCInferenceService/ModelInfer"


class RequestNames(NamedTuple):
    """Names in a request of the load test: the service or model, and the method (key/value protocol only)."""

    service: str
    method: str


class Endpoint(NamedTuple):
    """A protocol of the load test, as functions that build requests and check answers.

    `ENDPOINTS` has an instance for each protocol: key/value and KServe, over HTTP and gRPC.
    """

    keys: Callable[[int], Sequence[str]]  # default input names for a number of texts
    body: Callable[[RequestNames, Mapping[str, Sequence[str]]], bytes]  # request body of texts by input name
    from_json: Callable[[str], bytes]  # request body of a line of a .jsonl file
    path: Callable[[RequestNames], str] = lambda request_names: ""  # URL path, over HTTP
    read: Callable[[Any], object] = lambda answer: None  # raises a ClientError if it is an error
    method: str = ""  # full method name, over gRPC


class Connection(ABC):
    """Client side of the connections to a service under load test; sends bytes.

    A request is sent once to each address, until one answers. Each thread of the load test has its own
    instance.
    """

    @abstractmethod
    def ask(self, body: bytes, timeout_s: float) -> None:
        """Send a request, wait for its answer, check the answer, and discard it.

        Raises a ClientError for an error answer, or if no answer arrives within `timeout_s`.
        """

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class HttpConnection(Connection):
    """A client's HTTP connection to the service, over which the load test POSTs request bodies."""

    def __init__(
        self,
        endpoint: Endpoint,
        url: str,
        path: str,
        *,
        tls: Tls | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str],
    ) -> None:
        self._servers = HttpServers(url, tls, api_key, headers)
        self._path = path
        self._read = endpoint.read

    def ask(self, body: bytes, timeout_s: float) -> None:
        self._servers.post(self._path, body, timeout_s, self._read)

    def close(self) -> None:
        self._servers.close()


class RpcConnection(Connection):
    """A client's gRPC connection to the service, over which the load test sends serialized messages.

    headers: sent as gRPC metadata.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        address: str,
        *,
        tls: Tls | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str],
    ) -> None:
        self._channel = RpcChannel(*split_addresses(address), tls=tls, api_key=api_key, headers=headers)
        self._read, self._method = endpoint.read, endpoint.method

    def ask(self, body: bytes, timeout_s: float) -> None:
        self._read(self._channel.call_bytes(self._method, body, timeout_s))

    def close(self) -> None:
        self._channel.close()


def _numbered(count: int) -> Sequence[str]:
    return [str(number) for number in range(count)]


def _one_text(count: int) -> Sequence[str]:
    return ["text"]


def _key_value(request_names: RequestNames, texts: Mapping[str, Sequence[str]]) -> bytes:
    value = [text for (text,) in texts.values()]
    return json.dumps({"key": list(texts), "value": value}, ensure_ascii=False).encode()


def _key_value_message(request_names: RequestNames, texts: Mapping[str, Sequence[str]]) -> bytes:
    value = [text for (text,) in texts.values()]
    message = Request(key=list(texts), value=value, name=request_names.service, method=request_names.method)
    return message.SerializeToString()


def _v1(request_names: RequestNames, texts: Mapping[str, Sequence[str]]) -> bytes:
    rows = [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]
    return json.dumps({"instances": rows}, ensure_ascii=False).encode()


def _v2(request_names: RequestNames, texts: Mapping[str, Sequence[str]]) -> bytes:
    inputs = [
        {"name": name, "datatype": "BYTES", "shape": [len(column)], "data": list(column)}
        for name, column in texts.items()
    ]
    return json.dumps({"inputs": inputs}, ensure_ascii=False).encode()


def _v2_message(request_names: RequestNames, texts: Mapping[str, Sequence[str]]) -> bytes:
    message = ModelInferRequest(model_name=request_names.service)
    for name, column in texts.items():
        tensor = message.inputs.add(name=name, datatype="BYTES", shape=[len(column)])
        tensor.contents.bytes_contents.extend(text.encode() for text in column)
    return message.SerializeToString()


def _as_it_is(line: str) -> bytes:
    return line.encode()


def _as_message(kind: type[Message]) -> Callable[[str], bytes]:
    """Return a function that converts JSON to a serialized protobuf message of type `kind`.

    The function raises ValueError for JSON that is no such message.
    """

    def serialized(line: str) -> bytes:
        try:
            return json_format.Parse(line, kind()).SerializeToString()
        except json_format.ParseError as exc:
            raise ValueError(str(exc)) from exc

    return serialized


def _read_kserve(reply: HttpReply) -> None:
    if reply.status != http.client.OK:
        raise kserve_error(reply)


ENDPOINTS: Mapping[str, Endpoint] = {
    "http": Endpoint(
        _numbered,
        _key_value,
        _as_it_is,
        lambda request_names: f"/{request_names.service}/{request_names.method}",
        read_key_value,
    ),
    "grpc": Endpoint(
        _numbered,
        _key_value_message,
        _as_message(Request),
        read=lambda data: read_key_value_message(Response.FromString(data)),
        method=METHOD_PATH,
    ),
    "v1-http": Endpoint(
        _one_text,
        _v1,
        _as_it_is,
        lambda request_names: f"/v1/models/{request_names.service}:predict",
        _read_kserve,
    ),
    "v2-http": Endpoint(
        _one_text,
        _v2,
        _as_it_is,
        lambda request_names: f"/v2/models/{request_names.service}/infer",
        _read_kserve,
    ),
    "v2-grpc": Endpoint(
        _one_text,
        _v2_message,
        _as_message(ModelInferRequest),
        read=ModelInferResponse.FromString,
        method=V2_METHOD_PATH,
    ),
}
"""The protocols by their names in metrics and in the service's log."""

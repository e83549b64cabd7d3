"""The doors of a service as the load test knocks: a body in, an answer or a ClientError out."""

from __future__ import annotations

import http.client
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from google.protobuf import json_format
from google.protobuf.message import Message

from client.http_client import read_key_value
from client.http_connection import ConnectionPool, HttpReply
from client.protos.kserve_v2_pb2 import ModelInferRequest, ModelInferResponse
from client.protos.pipeline_service_pb2 import Request, Response
from client.rows_client import kserve_error
from client.rpc_channel import METHOD_PATH, RpcChannel
from client.rpc_client import read_key_value_message
from client.tls import Tls

V2_METHOD_PATH = "/inference.GRPCInferenceService/ModelInfer"


class Called(NamedTuple):
    """What a service is called: its name, or the model's, and the method of key/value."""

    service: str
    method: str


class Door(NamedTuple):
    """A way to ask.

    keys: the names of so many texts that nobody has named. body: of texts under such names. from_json: a body
    of a line of JSON. path: over HTTP. read: raises a ClientError for an answer that is none. method: over
    gRPC.
    """

    keys: Callable[[int], Sequence[str]]
    body: Callable[[Called, Mapping[str, Sequence[str]]], bytes]
    from_json: Callable[[str], bytes]
    path: Callable[[Called], str] = lambda called: ""
    read: Callable[[Any], object] = lambda answer: None
    method: str = ""


class Connection(ABC):
    """One connection to one door; asks without retries."""

    @abstractmethod
    def ask(self, body: bytes, timeout_s: float) -> None:
        """Raises a ClientError where that is not answered."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class HttpKnock(Connection):
    """A connection over HTTP. path: in place of the door's own."""

    def __init__(
        self,
        door: Door,
        url: str,
        path: str,
        *,
        tls: Tls | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str],
    ) -> None:
        self._pool = ConnectionPool(url, tls, api_key, headers)
        self._path = self._pool.prefix + path
        self._read = door.read

    def ask(self, body: bytes, timeout_s: float) -> None:
        self._read(self._pool.post(self._path, body, timeout_s))

    def close(self) -> None:
        self._pool.close()


class RpcKnock(Connection):
    """A connection over gRPC. headers: sent as metadata."""

    def __init__(
        self,
        door: Door,
        address: str,
        *,
        tls: Tls | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str],
    ) -> None:
        self._channel = RpcChannel(address, tls=tls, api_key=api_key, headers=headers)
        self._read, self._method = door.read, door.method

    def ask(self, body: bytes, timeout_s: float) -> None:
        self._read(self._channel.call_bytes(self._method, body, timeout_s))

    def close(self) -> None:
        self._channel.close()


def _numbered(count: int) -> Sequence[str]:
    return [str(number) for number in range(count)]


def _one_text(count: int) -> Sequence[str]:
    return ["text"]


def _key_value(called: Called, texts: Mapping[str, Sequence[str]]) -> bytes:
    value = [text for (text,) in texts.values()]
    return json.dumps({"key": list(texts), "value": value}, ensure_ascii=False).encode()


def _key_value_message(called: Called, texts: Mapping[str, Sequence[str]]) -> bytes:
    value = [text for (text,) in texts.values()]
    message = Request(key=list(texts), value=value, name=called.service, method=called.method)
    return message.SerializeToString()


def _v1(called: Called, texts: Mapping[str, Sequence[str]]) -> bytes:
    rows = [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]
    return json.dumps({"instances": rows}, ensure_ascii=False).encode()


def _v2(called: Called, texts: Mapping[str, Sequence[str]]) -> bytes:
    inputs = [
        {"name": name, "datatype": "BYTES", "shape": [len(column)], "data": list(column)}
        for name, column in texts.items()
    ]
    return json.dumps({"inputs": inputs}, ensure_ascii=False).encode()


def _v2_message(called: Called, texts: Mapping[str, Sequence[str]]) -> bytes:
    message = ModelInferRequest(model_name=called.service)
    for name, column in texts.items():
        tensor = message.inputs.add(name=name, datatype="BYTES", shape=[len(column)])
        tensor.contents.bytes_contents.extend(text.encode() for text in column)
    return message.SerializeToString()


def _as_it_is(line: str) -> bytes:
    return line.encode()


def _as_message(kind: type[Message]) -> Callable[[str], bytes]:
    """Raises ValueError for a line that is no such message."""

    def serialized(line: str) -> bytes:
        try:
            return json_format.Parse(line, kind()).SerializeToString()
        except json_format.ParseError as exc:
            raise ValueError(str(exc)) from exc

    return serialized


def _read_kserve(reply: HttpReply) -> None:
    if reply.status != http.client.OK:
        raise kserve_error(reply)


DOORS: Mapping[str, Door] = {
    "http": Door(
        _numbered, _key_value, _as_it_is, lambda called: f"/{called.service}/{called.method}", read_key_value
    ),
    "grpc": Door(
        _numbered,
        _key_value_message,
        _as_message(Request),
        read=lambda data: read_key_value_message(Response.FromString(data)),
        method=METHOD_PATH,
    ),
    "v1-http": Door(
        _one_text, _v1, _as_it_is, lambda called: f"/v1/models/{called.service}:predict", _read_kserve
    ),
    "v2-http": Door(
        _one_text, _v2, _as_it_is, lambda called: f"/v2/models/{called.service}/infer", _read_kserve
    ),
    "v2-grpc": Door(
        _one_text,
        _v2_message,
        _as_message(ModelInferRequest),
        read=ModelInferResponse.FromString,
        method=V2_METHOD_PATH,
    ),
}
"""By the name that metrics and the service's log have for each."""

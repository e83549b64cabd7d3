"""The endpoints of the default service, each asked as its own clients do, on connections that stay open."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio
import numpy as np

from client.protos import kserve_v2_pb2 as v2
from client.protos.pipeline_service_pb2 import Request, Response
from tests.chaos.outcome import Kind, Outcome
from tests.chaos.questions import Answer

PIPELINE = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
V2_INFER = "/inference.GRPCInferenceService/ModelInfer"
_QUICK_RECONNECT = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]
_POISON, _OVERLOADED, _DOWN = "poison", "overloaded", "not there"


class Endpoint(Protocol):
    """`ask` gives the answer, or how it was refused; OSError and EOFError are for the caller to judge."""

    name: str

    async def ask(self, texts: Sequence[str]) -> Answer | Outcome: ...
    async def close(self) -> None: ...


REUSED_S = 0.5  # that a connection may be idle and still be used again


class HttpConnection:
    """One request at a time; opened anew when the service has closed it, or after REUSED_S without a request.

    A stop closes connections that are silent for a second: a request would cross that.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._answered_at = 0.0  # time.monotonic
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, document: Any) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body. Raises OSError and EOFError."""
        body = json.dumps(document, ensure_ascii=False).encode()
        head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
        return await self._ask(head % (path.encode(), len(body)) + body)

    async def _ask(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        expired = time.monotonic() - self._answered_at > REUSED_S
        if self._writer is None or expired or self._reader.at_eof() or self._writer.is_closing():
            await self.close()
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(request)
        status, headers = _head(await self._reader.readuntil(b"\r\n\r\n"))
        content = await self._reader.readexactly(int(headers.get("content-length", "0")))
        self._answered_at = time.monotonic()
        if headers.get("connection", "").lower() == "close":
            await self.close()
        return status, headers, content

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
            self._writer = None


def _head(data: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = data.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}


class KeyValueHttp:
    name = "key/value HTTP"

    def __init__(self, port: int) -> None:
        self._connection = HttpConnection(port)

    async def ask(self, texts: Sequence[str]) -> Answer | Outcome:
        document = {"key": [str(number) for number in range(len(texts))], "value": list(texts)}
        status, headers, body = await self._connection.post("/bert/prediction", document)
        answer = json.loads(body)
        if status == 200:
            return _of_texts(answer["key"], answer["value"])
        if status == 429:
            return _with_retry_after(headers)
        return _refused(status, answer["err_no"], answer["err_msg"])

    async def close(self) -> None:
        await self._connection.close()


class V2Http:
    name = "v2 HTTP"

    def __init__(self, port: int) -> None:
        self._connection = HttpConnection(port)

    async def ask(self, texts: Sequence[str]) -> Answer | Outcome:
        tensor = {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}
        status, headers, body = await self._connection.post("/v2/models/bert/infer", {"inputs": [tensor]})
        answer = json.loads(body)
        if status == 200:
            outputs = {output["name"]: output["data"] for output in answer["outputs"]}
            return Answer(outputs["label"], outputs["confidence"])
        if status == 503 and "Exceeds maximum queue size" in answer["error"]:
            return _with_retry_after(headers)
        return _refused(status, 9000 if "not tried again" in answer["error"] else 0, answer["error"])

    async def close(self) -> None:
        await self._connection.close()


class V1Http:
    name = "v1 HTTP"

    def __init__(self, port: int) -> None:
        self._connection = HttpConnection(port)

    async def ask(self, texts: Sequence[str]) -> Answer | Outcome:
        path = "/v1/models/bert:predict"
        status, headers, body = await self._connection.post(path, {"instances": list(texts)})
        answer = json.loads(body)
        if status == 200:
            rows = answer["predictions"]
            return Answer([row["label"] for row in rows], [row["confidence"] for row in rows])
        if status == 429:
            return _with_retry_after(headers)
        return _refused(status, 9000 if "not tried again" in answer["error"] else 0, answer["error"])

    async def close(self) -> None:
        await self._connection.close()


class PipelineGrpc:
    name = "PipelineService gRPC"

    def __init__(self, port: int) -> None:
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_QUICK_RECONNECT)
        self._call = self._channel.unary_unary(PIPELINE)

    async def ask(self, texts: Sequence[str]) -> Answer | Outcome:
        message = Request(name="bert", key=[str(number) for number in range(len(texts))], value=texts)
        try:
            answer = Response.FromString(await self._call(message.SerializeToString()))
        except grpc.aio.AioRpcError as exc:
            return _of_status(exc)
        if answer.err_no == 0:
            return _of_texts(answer.key, answer.value)
        return _refused(0, answer.err_no, answer.err_msg)

    async def close(self) -> None:
        await self._channel.close()


class V2Grpc:
    name = "v2 gRPC"

    def __init__(self, port: int) -> None:
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_QUICK_RECONNECT)
        self._call = self._channel.unary_unary(V2_INFER)

    async def ask(self, texts: Sequence[str]) -> Answer | Outcome:
        message = v2.ModelInferRequest(model_name="bert")
        tensor = message.inputs.add(name="text", shape=[len(texts)], datatype="BYTES")
        tensor.contents.bytes_contents.extend(text.encode() for text in texts)
        try:
            answer = v2.ModelInferResponse.FromString(await self._call(message.SerializeToString()))
        except grpc.aio.AioRpcError as exc:
            return _of_status(exc)
        raw = dict(zip((output.name for output in answer.outputs), answer.raw_output_contents, strict=True))
        return Answer(_bytes_tensor(raw["label"]), np.frombuffer(raw["confidence"], "<f4").tolist())

    async def close(self) -> None:
        await self._channel.close()


ENDPOINTS: Sequence[type[KeyValueHttp | PipelineGrpc | V1Http | V2Http | V2Grpc]]
ENDPOINTS = (KeyValueHttp, PipelineGrpc, V1Http, V2Http, V2Grpc)
OVER_HTTP = (KeyValueHttp, V1Http, V2Http)


def _of_texts(keys: Sequence[str], values: Sequence[str]) -> Answer:
    """Of the arrays that key/value answers print."""
    printed = dict(zip(keys, values, strict=True))
    labels = re.findall(r"'([^']*)'", printed["label"].partition("dtype")[0])
    numbers = re.findall(r"\d[\d.e+-]*", printed["confidence"].partition("dtype")[0])
    return Answer(labels, [float(number.rstrip(".")) for number in numbers])


def _bytes_tensor(raw: bytes) -> list[str]:
    texts, at = [], 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 4], "little")
        texts.append(raw[at + 4 : at + 4 + size].decode())
        at += 4 + size
    return texts


def _with_retry_after(headers: Mapping[str, str]) -> Outcome:
    if not headers.get("retry-after", "").isdigit():
        return Outcome(Kind.FAILED, "refused as overloaded, without Retry-After")
    return Outcome(Kind.REFUSED, _OVERLOADED)


def _refused(status: int, err_no: int, message: str) -> Outcome:
    if err_no == 9000 and "not tried again" in message:
        return Outcome(Kind.REFUSED, _POISON)
    if err_no == 3001 or status == 503:
        return Outcome(Kind.REFUSED, _DOWN)
    return Outcome(Kind.FAILED, f"{status or err_no}: {message[:120]}")


def _of_status(error: grpc.aio.AioRpcError) -> Outcome:
    message, trailers = error.details() or "", error.trailing_metadata() or ()
    if any(name == "grpc-retry-pushback-ms" for name, _ in trailers):
        return Outcome(Kind.REFUSED, _OVERLOADED)
    if error.code() is grpc.StatusCode.INTERNAL and "not tried again" in message:
        return Outcome(Kind.REFUSED, _POISON)
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return Outcome(Kind.REFUSED, _DOWN)
    return Outcome(Kind.FAILED, f"{error.code().name}: {message[:120]}")

"""Requests and answers recorded from Triton 2.51, and the same requests sent to a service of ours."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from google.protobuf.json_format import MessageToDict, ParseDict

from client.protos import kserve_v2_pb2
from client.protos.kserve_v2_pb2 import ModelInferRequest, ModelStreamInferResponse
from tests.support.service_process import PATIENCE_S, ServiceProcess, read_answer
from tests.support.triton_state import of_this_run, told_before

SERVICE = "/inference.GRPCInferenceService/"
AS_RECORDED: dict[str, Any] = {"preserving_proto_field_name": True}
EXPIRED_TRIES = 50

RECORDED: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "fixtures/triton.jsonl").read_text("utf-8").splitlines()
]
SERVER_DOCUMENTS = {"server.metadata", "g.metadata"}


class Difference(NamedTuple):
    """What we answer instead, and why."""

    status: int | str
    reason: str


OUTSIDE = "a path outside /v2 belongs to the key/value endpoint, which answers in its own form"
DIFFERENCES = {
    "err.cl_text": Difference(400, "refused with a reason; Triton closes the connection without an answer"),
    "model.config.versions": Difference(200, "of several versions one is served, so the policy is another"),
    "model.metadata.urlenc": Difference(200, "a path says the same with and without percent-encoding"),
    "notfound": Difference(404, OUTSIDE),
    "root": Difference(200, "the server says that it is alive, and leads a browser to its page"),
    "v1.path": Difference(200, "KServe v1 is served, too"),
}


_SEQUENCES = "sequences come with the model repository"
_DECOUPLED = "decoupled models come with the model repository"
_REPOSITORY = "config.pbtxt, ensembles and what a client may override come with the model repository"

# Recorded cases that are not replayed, by the beginning of their names, and why.
LEFT = {
    "cached": "the response cache comes with the model repository",
    "ensemble": "ensembles come with the model repository",
    "err.cl_too_long": "no answer was recorded: ours waits for the body and then answers 408",
    "err.seq": _SEQUENCES,
    "g.big": "5 MB without contents recorded: large tensors have a test of their own",
    "g.ensemble": "ensembles come with the model repository",
    "g.err.decoupled": _DECOUPLED,
    "g.seq": _SEQUENCES,
    "g.stats.decoupled": _DECOUPLED,
    "g.stream.gen": _DECOUPLED,
    "g.stream.repeat": _DECOUPLED,
    "g.stream.seq": _SEQUENCES,
    "generate.multi": _DECOUPLED,
    "generate_stream": _DECOUPLED,
    "metrics": "of a port that has metrics alone: test_v2_ports.py, test_v2_statistics.py",
    "model.config.cached": "the response cache comes with the model repository",
    "model.config.ens": "ensembles come with the model repository",
    "model.config.repeat": _DECOUPLED,
    "model.metadata.gen": _DECOUPLED,
    "optional": "optional inputs come with the model repository",
    "reshape": "reshape comes with the model repository",
    "sequence": _SEQUENCES,
    "stats.all": "figures differ with each run: tests/dialects/test_v2_statistics.py",
    "stats.cached": "figures differ with each run: tests/dialects/test_v2_statistics.py",
    "stats.ensemble": "figures differ with each run: tests/dialects/test_v2_statistics.py",
    "x.ens": _REPOSITORY,
    "x.index": _REPOSITORY,
    "x.infer_failed": _REPOSITORY,
    "x.load.": _REPOSITORY,
    "x.load_config": _REPOSITORY,
    "x.load_ens": _REPOSITORY,
    "x.load_file": _REPOSITORY,
    "x.meta_newversion": _REPOSITORY,
    "x.noconfig": _REPOSITORY,
    "x.ready_failed": _REPOSITORY,
    "x.unload_dep": _REPOSITORY,
    "x.ver_": _REPOSITORY,
}
# Those that a script's service answers; the others a repository alone: tests/triton/.
RECORDINGS = [of_this_run(row) for row in RECORDED if not row["id"].startswith(tuple(LEFT))]
# test_v2_replay_queue.py, test_v2_statistics.py, test_v2_replay_large.py
BY_THEMSELVES = ("queue.", "stats.model", "g.stats", "big.", "err.too_large")
_EACH = [row for row in RECORDINGS if not row["id"].startswith(BY_THEMSELVES)]
HTTP = [row for row in _EACH if row["source"] == "http"]
GRPC = [row for row in _EACH if row["source"] == "grpc"]


class Replayed(NamedTuple):
    """An answer on either protocol."""

    status: int | str
    document: Any
    binary: bytes


def model_of(row: dict[str, Any]) -> str:
    """The model that a recording asks; `simple` where it asks the server."""
    if row["source"] == "grpc":
        request = row.get("request") or (row.get("requests") or [{}])[-1]
        name = request.get("model_name") or request.get("name") or "simple"
    else:
        asked = re.match(r"/v2/models/(\w+)", row["request"]["path"])
        name = asked[1] if asked else "simple"
    known = name.startswith("identity") or name in ("classify", "err_each", "gen", "params", "versions")
    return name if known else "simple"


def recorded_http(row: dict[str, Any]) -> Replayed:
    response = row["response"]
    if not response["status_line"]:
        return Replayed(0, None, b"")
    status = int(response["status_line"].split()[1])
    headers = dict(line.lower().split(": ", 1) for line in response["headers"])
    body = _bytes(response["body"])
    if status == 100:  # the answer proper was recorded as the body of the interim one
        head, _, body = body.partition(b"\r\n\r\n" if b"\r\n\r\n" in body else b"\n\n")
        status = int(head.split()[1])
    if headers.get("transfer-encoding") == "chunked":
        body = b"".join(body.split(b"\r\n")[1::2])  # the sizes are no longer those of what was recorded
    return _replayed(status, headers, body)


def replayed_http(row: dict[str, Any], triton: Callable[[str], ServiceProcess]) -> Replayed:
    request = row["request"]
    service = triton(model_of(row))
    connection = service.connection()
    with told_before(row["id"], service), contextlib.closing(connection):
        told = request["headers"].get("Content-Length", "0")
        if row["id"] in ("err.cl_missing", "err.cl_text"):
            return _replayed_as_written(request, connection)
        headers = {name: value for name, value in request["headers"].items() if name != "Content-Length"}
        body: Any = _bytes(request["body"])[: int(told)] or None  # of a case: too short
        if row["id"] == "chunked_request":  # recorded without its body, which another has
            body = iter(
                [_bytes(each["request"]["body"]) for each in HTTP if each["id"] == "infer.json.version"]
            )
        connection.request(request["method"], request["path"], body, headers)
        answer = read_answer(connection)
    return _replayed(answer.status, answer.headers, answer.body)


def _replayed_as_written(request: dict[str, Any], connection: http.client.HTTPConnection) -> Replayed:
    """With these headers and no others."""
    connection.putrequest(request["method"], request["path"], skip_host=True, skip_accept_encoding=True)
    for header in request["headers"].items():
        connection.putheader(*header)
    connection.endheaders(_bytes(request["body"]))
    answer = read_answer(connection)
    return _replayed(answer.status, answer.headers, answer.body)


def _bytes(body: dict[str, Any]) -> bytes:
    return base64.b64decode(body["base64"]) if "base64" in body else body["text"].encode()


def _replayed(status: int, headers: dict[str, str], body: bytes) -> Replayed:
    encoding = headers.get("content-encoding")
    if encoding:
        body = zlib.decompress(body, 31 if encoding == "gzip" else 15)
    if headers.get("content-type", "").startswith("text/event-stream"):
        events = [json.loads(line[len(b"data: ") :]) for line in body.split(b"\n\n") if line]
        return Replayed(status, {"events": events}, b"")
    length = int(headers.get("inference-header-content-length", len(body)))
    return Replayed(status, json.loads(body[:length]) if body else None, body[length:])


def comparable(answer: Replayed, expected: Replayed | None = None) -> Any:
    """The part that must equal. Of a refusal: the names, shapes and numbers in its text; of ours those that
    the recording has, too."""
    document = answer.document
    if isinstance(document, dict) and "error" in document:
        words = key_words(document["error"])
        if expected is not None and isinstance(expected.document, dict):
            words &= key_words(expected.document.get("error", ""))
        return answer.status, words
    if isinstance(document, dict):
        varying = ("platform", "version", "extensions")
        document = {name: value for name, value in document.items() if name not in varying}
    if isinstance(document, list):
        document = []  # the models of another repository
    return answer.status, repr(document) if document is not None else "", answer.binary


def key_words(text: str) -> set[str]:
    if text.startswith("Failed to process") or not text:  # the traceback of a model of theirs
        return set()
    text = re.sub(r"JSON buffer: .*", "JSON buffer", text)
    return {*re.findall(r"'[\w.]+'|\[[-\d,]+\]|\d+|[A-Z]{2,}\w*", text), text.split(" ")[0]}


def recorded_grpc(row: dict[str, Any]) -> Any:
    """Messages, or the code and the key words of its details; of a stream all answers."""
    if "responses" in row:
        return [_streamed(answer) for answer in row["responses"]], row["code"]
    response = row["response"]
    if response["code"] != "OK":
        return response["code"], key_words(response["details"])
    return "OK", _told(response.get("message", response.get("base64")))


def replayed_grpc(row: dict[str, Any], triton: Callable[[str], ServiceProcess]) -> Any:
    """The same of our answer; the key words are those that the recording has, too."""
    service = triton(model_of(row))
    with told_before(row["id"], service), service.channel() as channel:
        try:
            if "requests" in row:
                asked = [ParseDict(message, ModelInferRequest()) for message in row["requests"]]
                stream = channel.stream_stream(SERVICE + row["method"])
                answers = stream(iter([each.SerializeToString() for each in asked]), timeout=PATIENCE_S)
                told = [MessageToDict(ModelStreamInferResponse.FromString(a), **AS_RECORDED) for a in answers]
                return [_streamed(answer) for answer in told], "OK"
            if "path" in row:
                data = b"" if row["id"] != "g.bad_proto" else b"\xff\xff\xff"
                answer = channel.unary_unary(row["path"])(data, timeout=PATIENCE_S)
                return "OK", base64.b64encode(answer).decode()
            kind = "ModelInfer" if row["method"] == "ModelInfer" else row["method"]
            request = ParseDict(row["request"], getattr(kserve_v2_pb2, f"{kind}Request")())
            data = _call(channel.unary_unary(SERVICE + kind), request)
            message = getattr(kserve_v2_pb2, f"{kind}Response").FromString(data)
            return "OK", _told(MessageToDict(message, **AS_RECORDED))
        except grpc.RpcError as exc:
            words = key_words(row["response"].get("details", ""))
            return exc.code().name, words & key_words(exc.details())


def _call(method: Any, request: Any) -> bytes:
    """Call, again while the request's own `timeout`, of a millisecond, expires on a busy machine."""
    tries = EXPIRED_TRIES if "timeout" in getattr(request, "parameters", ()) else 1
    while True:
        tries -= 1
        try:
            answer: bytes = method(request.SerializeToString(), timeout=PATIENCE_S)
            return answer
        except grpc.RpcError as exc:
            if not tries or exc.details() != "Request timeout expired":
                raise


def _streamed(answer: dict[str, Any]) -> Any:
    return key_words(answer.get("error_message", "none")), answer.get("infer_response")


def _told(message: Any) -> Any:
    varying = ("platform", "version", "extensions")
    return {n: v for n, v in message.items() if n not in varying} if isinstance(message, dict) else message

"""FRONT PROCESS: HTTP handler of KServe v2 and Triton's extensions, with its part of /openapi.json."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import zlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec

from pipeline.api.app import App
from pipeline.api.examples import v2_inputs
from pipeline.api.restrictions import (
    HEALTH,
    INFERENCE,
    LOGGING,
    METADATA,
    MODEL_CONFIG,
    MODEL_REPOSITORY,
    SHARED_MEMORY,
    STATISTICS,
    TRACE,
)
from pipeline.config.config_file import Limits
from pipeline.dialects.json_outline import Outline, check_depth, outline_aside
from pipeline.dialects.kserve import json_fields
from pipeline.dialects.kserve.models import (
    ERROR,
    KServeModel,
    KServeModels,
    describe_model,
    describe_model_zh,
    example_row,
    get_parameter_schema,
    parse_version,
)
from pipeline.dialects.kserve.refusals import KServeRefusal, describe_error, error_body
from pipeline.dialects.kserve.unread import Written
from pipeline.dialects.kserve_v2.answers import GENERATED
from pipeline.dialects.kserve_v2.answers import JSON as JSON_FORM
from pipeline.dialects.kserve_v2.infer_request import (
    ForwardedHeaders,
    InferRequest,
    InputTensor,
    parse_infer,
    parse_raw,
    refuse_in_json,
)
from pipeline.dialects.triton_extensions.repository_api import (
    build_index,
    parse_parameters,
    parse_ready_only,
    parse_upgrade,
)
from pipeline.dialects.triton_extensions.server import V2Server, parse_log_settings
from pipeline.dialects.triton_extensions.trace_settings import parse_trace_settings
from pipeline.errors import OUR_FAULT, Overloaded, ServingError, TooLarge
from pipeline.front.dag_run import Answer, Request
from pipeline.front.http.connection import HttpRequest
from pipeline.front.http.http_handler import (
    JSON,
    SMALL_BYTES,
    HttpHandler,
    Refused,
    check_method,
    header,
    refusal_headers,
    refuse_cross_site,
)
from pipeline.front.http.openapi import OBJECT, Schema, content, get, operation, refusals
from pipeline.messages.frames import Part
from pipeline.models.tensor_spec import RAW_ALONE, Signature, TensorSpec

_WINDOWS = {"gzip": 31, "deflate": 15}  # window bits of zlib; deflate is the zlib format, as in RFC 9110
_LEVEL = 1  # fast: the front has little CPU time
_SHARED_MEMORY = re.compile(
    r"/v2/(?P<kind>system|cuda)sharedmemory(?:/region/(?P<region>[^/]+))?/"
    r"(?P<action>status|register|unregister)"
)
_TRACE = re.compile(r"/v2(?:/models/(?P<model>[^/]+))?/trace/setting")
_LOG_SETTINGS = "/v2/logging"
log = logging.getLogger(__name__)
_BINARY = b"content-type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"
_TEXT = b"content-type: text/plain\r\n"
_EVENTS = b"content-type: text/event-stream; charset=utf-8\r\n"
_MODEL = re.compile(r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>\d+))?(?:/(?P<action>[a-z_]+))?")
_INFERENCE = ("infer", "generate", "generate_stream")
_INDEX = re.compile(r"/v2/repository/(?:[^/]+/)?index")
_CONTROL = re.compile(r"/v2/repository/models/(?P<model>[^/]+)/(?P<order>load|unload)")
UPGRADE = re.compile(r"/v2/repository/models/(?P<model>[^/]+)/upgrade(?:/(?P<gate>accepted|refused))?")
_NUMBER = re.compile(r"\s*(-?\d+)")
HEALTH_PAGES = (b"/v2/health/live", b"/v2/health/ready")
_PAGE_APIS = {
    "/v2": METADATA,
    "/v2/health/live": HEALTH,
    "/v2/health/ready": HEALTH,
    "/v2/models/stats": STATISTICS,
}
_MODEL_APIS = {None: METADATA, "ready": HEALTH, "config": MODEL_CONFIG, "stats": STATISTICS}
_BEFORE_READING = ("Request for unknown model", "inference header size", "Unsupported compression")
_COMPRESSED_AT_ONCE = 64 * 1024  # larger bodies are compressed in a thread, without delay for other requests
_GENERATE_STATUSES = {"AnswerCount": 200, "ModelRaised": 400}  # Triton's, by the name of the error's class
_json = msgspec.json.encode
Page = Callable[[], Any]


def decompress(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Decompress a request body that is encoded with gzip or deflate; "" means no encoding.

    Raises KServeRefusal for an unknown encoding (HTTP 501) and for invalid data (400). Raises TooLarge (413)
    for more than `max_bytes`.
    """
    if encoding in ("", "identity"):
        return body
    window = _WINDOWS.get(encoding)
    if window is None:
        raise KServeRefusal("Unsupported compression type", "UNIMPLEMENTED")
    stream = zlib.decompressobj(window)
    try:
        data = stream.decompress(body, max_bytes + 1)
    except zlib.error as exc:
        raise KServeRefusal(f"failed to decompress the request body as {encoding}: {exc}") from None
    if len(data) > max_bytes:
        raise TooLarge(
            f"the body is over {max_bytes} bytes once decompressed; limits.body_bytes is {max_bytes}"
        )
    if not stream.eof:
        raise KServeRefusal(f"failed to decompress the request body as {encoding}: it ends too early")
    return data


def choose_encoding(accepted: str) -> str:
    """Return gzip or deflate, whichever an Accept-Encoding header prefers; empty if it accepts neither."""
    best, best_quality = "", 0.0
    for option in accepted.lower().split(","):
        name, _, parameter = option.partition(";")
        name = name.strip()
        if name not in _WINDOWS:
            continue
        quality = _quality(parameter)
        if quality > best_quality:
            best, best_quality = name, quality
    return best


def _quality(parameter: str) -> float:
    key, _, value = parameter.strip().partition("=")
    if key.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def compress(body: Part, encoding: str) -> bytes:
    """Compress a response body with the encoding gzip or deflate."""
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOWS[encoding])
    return stream.compress(body) + stream.flush()


def parse_generate(
    body: bytes, model: KServeModel, limits: Limits, outline: Outline | None = None
) -> InferRequest:
    """Parse the JSON body of a request to Triton's `generate`.

    Members that are no input of the model become parameters, except `id` and `parameters`. The value of an
    input is an element or a flat list of elements; it is one row if the model has rows. outline: a large body
    with placeholders for its long arrays, see `json_outline`; None for a small body. Raises KServeRefusal,
    and TooLarge (HTTP 413) for a document that nests deeper than limits.json_depth.
    """
    if outline is not None:
        body = outline.text
    else:
        check_depth(body, limits.json_depth)
    document = json_fields.parse_json(body)
    if not isinstance(document, dict):
        raise json_fields.parse_error("document", "attempt to access JSON non-object as object")
    if len(document) > limits.tensors:
        raise KServeRefusal(f"{len(document)} members were given; limits.tensors is {limits.tensors}")
    infer_request = InferRequest()
    datatypes = {spec.name: spec.datatype for spec in model.signature.inputs}
    # If a row is a single element, a list has several rows.
    in_rows = {spec.name for spec in model.signature.inputs if len(spec.shape) > 1}
    for name, value in document.items():
        datatype = datatypes.get(name)
        if datatype is not None or (model.signature.open and _is_text(value)):
            rows = [1] if model.signature.max_batch_size and name in in_rows else []
            infer_request.add_input(_json_tensor(name, datatype or "BYTES", value, rows))
        elif name == "id":
            infer_request.request_id = json_fields.get_text(document, "id")
        elif name == "parameters":
            for parameter, parameter_value in json_fields.get_parameters(document).items():
                infer_request.add_parameter(parameter, parameter_value)
        else:
            infer_request.add_parameter(name, value)
    return infer_request


def _json_tensor(name: str, datatype: str, value: Any, rows: list[int]) -> InputTensor:
    if value is None or isinstance(value, dict):
        raise KServeRefusal(f"input '{name}' is neither an element nor a list of them")
    refuse_in_json(name, datatype)
    elements = value if isinstance(value, list) else [value]
    data = json.dumps(elements, separators=(",", ":")).encode()
    return InputTensor(name, datatype, [*rows, len(elements)], data, Written.JSON)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and bool(value) and all(isinstance(element, str) for element in value)
    )


def _event(document: Part) -> bytes:
    """Return a server-sent event with a JSON document."""
    return b"data: %b\n\n" % bytes(document)


def find_extension_api(path: str) -> str | None:
    """Return the restricted API to which the path of a Triton extension belongs; None for other paths."""
    if _SHARED_MEMORY.fullmatch(path):
        return SHARED_MEMORY
    if _TRACE.fullmatch(path):
        return TRACE
    return LOGGING if path == _LOG_SETTINGS else None


class HttpExtensions:
    """Handles the HTTP paths of Triton's extensions for shared memory, trace and log settings."""

    def __init__(self, server: V2Server) -> None:
        self._server = server

    def document(self, request: HttpRequest) -> Any:
        """Execute a request to an extension, and return the JSON document of its response; None if empty.

        Raises ServingError, and Refused (HTTP 404) for a path that belongs to no extension.
        """
        shared_memory = _SHARED_MEMORY.fullmatch(request.path)
        if shared_memory is not None:
            return self._shared_memory(request, **shared_memory.groupdict())
        trace = _TRACE.fullmatch(request.path)
        if trace is not None:
            return self._trace(request, trace["model"] or "")
        if request.path == _LOG_SETTINGS:
            return self._logging(request)
        raise Refused(404, request)

    def _shared_memory(self, request: HttpRequest, kind: str, region: str | None, action: str) -> Any:
        check_method(request, *(("GET", "HEAD") if action == "status" else ("POST",)))
        memory, name = self._server.memory, region or ""
        if action != "status":
            refuse_cross_site(request)
        memory.admit(request.peer)
        if action == "status":
            return memory.status(name) if kind == "system" else memory.cuda_status(name)
        if action == "unregister":
            if kind == "system":
                memory.unregister(name)
        elif kind == "system":
            memory.register(name, *parse_registration(json_fields.parse_json(request.body)))
        else:
            _check_fields(json_fields.parse_json(request.body), "raw_handle", "byte_size", "device_id")
            memory.refuse_cuda(name)
        return None

    def _trace(self, request: HttpRequest, model: str) -> Any:
        check_method(request, "GET", "HEAD", "POST")
        if model and not self._server.models.is_ready(model):
            raise KServeRefusal(f"Request for unknown model : {model}")
        if request.method == "POST":
            refuse_cross_site(request)
            settings = parse_trace_settings(json_fields.parse_json(request.body))
            self._server.trace.update(settings, model)
        return self._server.trace.get_settings(model)

    def _logging(self, request: HttpRequest) -> Any:
        check_method(request, "GET", "HEAD", "POST")
        settings = self._server.logging
        if request.method == "POST":
            refuse_cross_site(request)
            settings.update(parse_log_settings(json_fields.parse_json(request.body), settings.kinds()))
        return settings.get_settings()


def parse_registration(document: Any) -> tuple[str, int, int]:
    """Return key, offset and size in bytes of a region, from a JSON request to register shared memory.

    Raises KServeRefusal for missing members and wrong types.
    """
    _check_fields(document, "key", "byte_size")
    key = json_fields.check_text(document["key"])
    offset, size = (json_fields.check_unsigned(document.get(name, 0), "") for name in ("offset", "byte_size"))
    return key, offset, size


def _check_fields(document: Any, *names: str) -> None:
    for name in names:
        if not isinstance(document, dict) or name not in document:
            raise KServeRefusal(f"Shared memory register request has no '{name}' field")


class V2Http(HttpHandler):
    """HTTP handler of KServe v2 and Triton's extensions at /v2: inference, metadata and model control."""

    name = "v2-http"
    pages = ("/v2/health/live", "/v2/health/ready")
    decodes = True

    def __init__(self, server: V2Server) -> None:
        super().__init__(server.scheduler)
        self._server = server
        self._extensions = HttpExtensions(server)
        pattern = server.scheduler.app.header_patterns.http
        self._forwarded = ForwardedHeaders(pattern) if pattern else None
        # Triton rejects HEAD, but probes of other services may send it.
        self._reading = ("GET",) if server.scheduler.app.repository is not None else ("GET", "HEAD")
        self._orders: set[asyncio.Task[None]] = set()
        self._pages: dict[str, Page] = {
            "/v2": server.metadata,
            "/v2/health/live": lambda: None,
            "/v2/health/ready": self._readiness,
            "/v2/models/stats": server.statistics,
        }

    def _read(self, request: HttpRequest) -> Request | None:
        path = request.path
        match = _MODEL.fullmatch(path)
        if match is not None and match["action"] in _INFERENCE:
            check_method(request, "POST")
            return self._infer(request, match["model"], match["version"] or "", match["action"])
        order = _CONTROL.fullmatch(path)
        if order is not None:
            check_method(request, "POST")
            refuse_cross_site(request)
            self._control_model(request, order["model"], order["order"])
        elif (upgrade := UPGRADE.fullmatch(path)) is not None:
            self._control_upgrade(request, upgrade["model"], upgrade["gate"] or "")
        else:
            self._answer_json(request, self._document(request, match))
        return None

    def find_api(self, path: str) -> str:
        if path in self._pages:
            return _PAGE_APIS[path]
        model = _MODEL.fullmatch(path)
        if model is not None:
            return _MODEL_APIS.get(model["action"], INFERENCE)
        if _CONTROL.fullmatch(path) or _INDEX.fullmatch(path) or UPGRADE.fullmatch(path):
            return MODEL_REPOSITORY
        return find_extension_api(path) or INFERENCE

    def _answer_json(self, request: HttpRequest, document: Any) -> None:
        if document is None:  # a check has no body: Triton sends it as text
            request.respond(200, JSON if request.method == "POST" else _TEXT, b"")
        else:
            request.respond(200, JSON, _json(document))

    def _document(self, request: HttpRequest, match: re.Match[str] | None) -> Any:
        page = self._pages.get(request.path)
        if page is not None:
            check_method(request, *self._reading)
            return page()
        if match is not None and match["action"] in (None, "ready", "config", "stats"):
            check_method(request, *self._reading)
            return self._describe_model(match["model"], match["version"] or "", match["action"])
        if _INDEX.fullmatch(request.path):
            check_method(request, "POST")
            return build_index(self._server.models, ready_only=parse_ready_only(request.body))
        return self._extensions.document(request)

    def _readiness(self) -> None:
        if not self._scheduler.server_ready:
            raise KServeRefusal("the service is not ready")

    def _control_model(self, request: HttpRequest, name: str, order: str) -> None:
        """Start to load or unload a model. Respond when that has ended.

        order: load or unload. Raises KServeRefusal for an invalid body.
        """
        parameters = parse_parameters(request.body)
        control = self._server.control
        obey = control.load if order == "load" else control.unload
        self._answer_at_end(request, partial(obey, name, parameters))

    def _control_upgrade(self, request: HttpRequest, name: str, gate: str) -> None:
        """Begin, report or cancel an upgrade of a model.

        gate: "accepted" or "refused", for Flagger's webhooks, which read only the status: it is 200 if the
        upgrade has this result, else 403. Empty for other requests. Raises KServeRefusal for an invalid body.
        """
        upgrades = self._server.upgrades
        if gate:
            check_method(request, "GET", "HEAD", "POST")
            upgrade = upgrades.find_upgrade(name)
            request.respond(200 if upgrade.result == gate else 403, JSON, _json(upgrade.build_report()))
            return
        check_method(request, "GET", "HEAD", "POST", "DELETE")
        if request.method in ("GET", "HEAD"):
            request.respond(200, JSON, _json(upgrades.find_upgrade(name).build_report()))
            return
        refuse_cross_site(request)
        self._server.control.check_allowed()
        if request.method == "DELETE":
            request.respond(200, JSON, _json(upgrades.cancel(name).build_report()))
            return
        version, settings = parse_upgrade(request.body)

        async def begin() -> dict[str, Any]:
            return (await upgrades.begin_upgrade(name, version, settings)).build_report()

        self._answer_at_end(request, begin, status=202)

    def _answer_at_end(
        self, request: HttpRequest, obey: Callable[[], Coroutine[Any, Any, Any]], *, status: int = 200
    ) -> None:
        """Start a long operation, and respond when it has ended. It continues if the client disconnects.

        obey: carries out the operation; returns the JSON document of the response, or None for an empty body.
        """

        async def answer() -> None:
            try:
                document = await obey()
            except ServingError as exc:
                self.refuse(request, exc)
            except Exception:
                log.exception("A fault of ours in %s %s", request.method, request.path)
                self.refuse(request, OUR_FAULT)
            else:
                request.respond(status, JSON, b"" if document is None else _json(document))

        task = asyncio.create_task(answer())
        self._orders.add(task)
        task.add_done_callback(self._orders.discard)

    def _describe_model(self, name: str, version: str, action: str | None) -> Any:
        if action != "ready":
            if action == "stats":
                return self._server.statistics(name, version)
            if action == "config":
                return self._server.config(name, version)
            return self._server.get_metadata(name, version)
        if version:
            parse_version(version)
        if not self._server.models.is_ready(name, version):
            raise KServeRefusal("Model version not ready")
        return None

    # Inference:

    def _infer(self, request: HttpRequest, name: str, version: str, action: str) -> Request | None:
        """Return the inference request for the scheduler; None while a thread decompresses or scans the body.

        action: infer, generate or generate_stream.
        """
        model = self._server.models.find_model(name, version)

        read = partial(self._read_body, request, model, version, action)
        encoding = header(request, b"content-encoding")
        if not encoding:
            return read(request.body)
        # In a thread: a small body may decompress to limits.body_bytes.
        encoding, max_bytes = encoding.strip().lower(), self._server.limits.body_bytes
        reading = asyncio.get_running_loop().run_in_executor(
            None, decompress, request.body, encoding, max_bytes
        )
        reading.add_done_callback(lambda body: self.handle(request, lambda: read(body.result())))
        return None

    def _read_body(
        self,
        request: HttpRequest,
        model: KServeModel,
        version: str,
        action: str,
        body: bytes,
        outline: Outline | None = None,
    ) -> Request | None:
        """Parse a decompressed body to the request for the scheduler; None while a thread scans a large body.

        outline: result of the scan; None before the scan.
        """
        length = None
        if action == "infer":
            length = _header_length(self._find_length(request), body)
        document = body if length is None else body[:length]
        if outline is None and len(document) > SMALL_BYTES:
            read = partial(self._read_body, request, model, version, action, body)
            outline_aside(
                document, self._server.limits, lambda scan: self.handle(request, lambda: read(scan.result()))
            )
            return None
        if action == "infer":
            inference = self._parse_infer(request, model, body, length, outline)
        else:
            inference = self._parse_generate(request, model, body, action, outline)
        inference.version = version
        return inference

    def _parse_generate(
        self, request: HttpRequest, model: KServeModel, body: bytes, action: str, outline: Outline | None
    ) -> Request:
        infer_request = parse_generate(body, model, self._server.limits, outline)
        if self._forwarded is not None:
            self._forwarded.add_to(infer_request, request.headers.items())
        prediction = infer_request.build_request(model, GENERATED, self._scheduler)
        prediction.deadline = self._scheduler.deadline(began=request.began)
        if action == "generate_stream":
            prediction.stream = partial(self._send_event, request)
        return prediction

    def _parse_infer(
        self,
        request: HttpRequest,
        model: KServeModel,
        body: bytes,
        length: int | None,
        outline: Outline | None,
    ) -> Request:
        if length == 0:
            infer_request = parse_raw(body, model)
        else:
            infer_request = parse_infer(
                body,
                length,
                model,
                self._server.limits,
                lambda name, at, size: self._server.memory.span(request.peer, name, at, size),
                outline,
            )
        if self._forwarded is not None:
            self._forwarded.add_to(infer_request, request.headers.items())
        prediction = infer_request.build_request(model, JSON_FORM, self._scheduler)
        if prediction.decoupled:
            raise KServeRefusal(
                "HTTP end point doesn't support models with decoupled transaction policy", "UNIMPLEMENTED"
            )
        prediction.deadline = self._scheduler.deadline(infer_request.deadline_s(model), request.began)
        return prediction

    def _send_event(
        self,
        request: HttpRequest,
        answer: Answer,
        acknowledge: Callable[[], None] = lambda: None,
        head: bytes = b"",
    ) -> None:
        """Send an answer of `generate_stream`, or an error after the first answer, as a server-sent event."""
        if not request.has_begun:
            request.begin_chunks(200, head + _EVENTS)
        if isinstance(answer, ServingError):
            request.send_chunk(_event(error_body(describe_error(answer)[2])), acknowledge)
        elif answer:
            request.send_chunk(_event(answer[0]), acknowledge)

    # Hooks of the port of SageMaker

    def _find_action(self, request: HttpRequest) -> str:
        """Return the action of a request for inference: infer, generate or generate_stream."""
        return request.path.rpartition("/")[2]

    def _find_length(self, request: HttpRequest) -> str:
        """Return the length of the JSON document at the start of a body, from a header; "" if missing."""
        return header(request, b"inference-header-content-length")

    def _encode_binary_head(self, length: int) -> bytes:
        """Return the header lines of a response with raw tensors after a JSON document of this length."""
        return _BINARY % length

    def _get_error_type(self, request: HttpRequest, error: ServingError) -> bytes:
        """Return the content-type header of an error response."""
        return _content_type(request.path, error)

    def _send(self, request: HttpRequest, parts: list[Part], head: bytes) -> None:
        action = self._find_action(request)
        if action == "generate_stream":
            self._send_event(request, parts, head=head)
            request.end_chunks()
            return
        body = parts[0]
        if len(parts) > 1:
            head += self._encode_binary_head(len(body))
            body = b"".join(parts)
        else:
            head += JSON
        if action == "generate":
            request.respond(200, head, body, chunked=True)
            return
        encoding = choose_encoding(header(request, b"accept-encoding")) if self.decodes else ""
        if not encoding:
            request.respond(200, head, body)
            return
        head += b"content-encoding: %b\r\n" % encoding.encode()
        if len(body) < _COMPRESSED_AT_ONCE:
            request.respond(200, head, compress(body, encoding))
            return
        compressing = asyncio.get_running_loop().run_in_executor(None, compress, body, encoding)
        compressing.add_done_callback(lambda done: request.respond(200, head, done.result()))

    def refusal(self, error: ServingError) -> tuple[bytes, bytes]:
        return JSON, error_body(error.message)

    def refuse(self, request: HttpRequest, error: ServingError, head: bytes = b"") -> None:
        self._access_log.refused(self.name, error, request.peer)
        if request.has_begun:
            self._send_event(request, error)
            request.end_chunks()
            return
        status, _, message = describe_error(error)
        if isinstance(error, Refused):
            message = error.phrase
        head += self._get_error_type(request, error) + refusal_headers(error)
        if self._find_action(request) == "generate":
            status = _GENERATE_STATUSES.get(error.kind or type(error).__name__, status)
        if status == 501:
            head += b"accept-encoding: gzip, deflate\r\n"
        request.respond(status, head, error_body(message))


def _content_type(path: str, error: ServingError) -> bytes:
    """Return the content-type header line of an error response, as Triton sends it. The body is always JSON.

    Triton declares JSON once it has begun to read a request. It declares text for earlier errors, and for
    errors of models.
    """
    match = _MODEL.fullmatch(path)
    action = None if match is None else match["action"]
    if isinstance(error, Refused):
        return _TEXT if error.http_status == 404 or action in ("infer", "ready") else JSON
    if action != "infer":
        return _TEXT if action == "ready" else JSON
    was_read = isinstance(error, Overloaded) or (error.kind or type(error).__name__) == KServeRefusal.__name__
    return JSON if was_read and not error.message.startswith(_BEFORE_READING) else _TEXT


def _header_length(value: str, body: bytes) -> int | None:
    """Return the length of the JSON document at the start of a body. 0: raw body; None: only JSON.

    value: value of the header Inference-Header-Content-Length. Raises KServeRefusal (HTTP 400).
    """
    if not value:
        return None if body else 0
    number = _NUMBER.match(value)
    length = int(number[1][:20]) if number else 0
    if not 0 <= length <= len(body):
        raise KServeRefusal(f"inference header size should be in range (0, {len(body)}), got: {length}")
    return length


def v2_paths(app: App, models: KServeModels) -> dict[str, Any]:
    """Return the descriptions of KServe v2's paths for /openapi.json, by path."""
    paths: dict[str, Any] = {}
    for model in models.all():
        below = f"/v2/models/{quote(model.name)}"
        paths[f"{below}/infer"] = {"post": _infer_operation(app, model)}
        if _may_generate(model):
            paths[f"{below}/generate"] = {"post": _generate_operation(app, model)}
        name = model.name
        paths[below] = get("v2", "Inputs and outputs of the model", "模型的输入与输出", model=name)
        paths[f"{below}/ready"] = get("v2", "200 when the model is ready", "就绪时返回 200", None, model=name)
        paths[f"{below}/config"] = get("v2", "Configuration of the model", "模型配置", model=name)
        paths[f"{below}/stats"] = get("v2", "Statistics of the model", "模型统计", model=name)
    return paths | {
        "/v2": get("v2", "Name, version and extensions of the server", "服务器的名称、版本与扩展"),
        "/v2/health/live": get("v2", "200 while the server answers", "服务器存活时返回 200", None),
        "/v2/health/ready": get("v2", "200 when all models are ready", "全部模型就绪时返回 200", None),
        "/v2/models/stats": get("v2", "Statistics of all models", "全部模型的统计"),
        "/v2/repository/index": {"post": _index_operation()},
    }


def _index_operation() -> dict[str, Any]:
    body = content(OBJECT, {})
    index = operation("v2", "Models and their states", "模型及其状态", body, {"type": "array"})
    index["responses"] |= refusals(ERROR)
    return index


def _infer_operation(app: App, model: KServeModel) -> dict[str, Any]:
    row = example_row(app, model)
    inputs = v2_inputs(model.signature, row) if row else None
    example = {"inputs": inputs} if inputs else None
    if example is not None and not model.op:
        example = app.examples.add_parameters(example)
    body = content(_request_schema(app, model), example)
    summary, zh = f"Infer with {describe_model(model)}: tensors", f"用{describe_model_zh(model)}推理：张量"
    infer = operation("v2", summary, zh, body, _response_schema(model.signature), model=model.name)
    binary = {"schema": {"type": "string", "format": "binary"}}
    infer["responses"]["200"]["content"]["application/octet-stream"] = binary
    infer["responses"] |= refusals(ERROR, as_text=True)  # Triton's errors have no content type
    return infer


def _may_generate(model: KServeModel) -> bool:
    """Return whether Triton's `generate` can transport the model's inputs.

    Each input must be one element or a flat list of elements, apart from the batch axis.
    """
    ranks = (1, 2) if model.signature.max_batch_size else (1,)
    return all(len(spec.shape) in ranks for spec in model.signature.inputs)


def _generate_operation(app: App, model: KServeModel) -> dict[str, Any]:
    row = example_row(app, model)
    flat = row and all(
        isinstance(element, str | int | float)
        for value in row.values()
        for element in (value if isinstance(value, list) else [value])
    )
    halves = any(spec.datatype in RAW_ALONE for spec in model.signature.inputs)
    example = (
        {**row, **({} if model.op else app.examples.parameters)} if row and flat and not halves else None
    )
    body = content(OBJECT, example)
    summary = f"Infer with {describe_model(model)}: an element or a list of them for each input"
    zh = f"用{describe_model_zh(model)}推理：每个输入一个元素或一个列表"
    description = operation("v2", summary, zh, body, OBJECT, model=model.name)
    description["responses"] |= refusals(ERROR)
    return description


def _request_schema(app: App, model: KServeModel) -> Schema:
    signature = model.signature
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "parameters": get_parameter_schema(app, model),
            "inputs": {"type": "array", "items": _tensor_schema(signature.inputs)},
            "outputs": {
                "type": "array",
                "items": {"type": "object", "properties": {"name": _name_schema(signature.outputs)}},
            },
        },
        "required": ["inputs"],
    }


def _response_schema(signature: Signature) -> Schema:
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "outputs": {"type": "array", "items": _tensor_schema(signature.outputs)},
        },
    }


def _tensor_schema(specs: Sequence[TensorSpec]) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": {
            "name": _name_schema(specs),
            "datatype": {"type": "string"},
            "shape": {"type": "array", "items": {"type": "integer"}},
            "data": {"type": "array", "items": {}},
        },
        "required": ["name", "datatype", "shape"],
    }
    if specs:
        schema["description"] = "; ".join(
            f"{spec.name}: {spec.datatype} {list(spec.shape)}" for spec in specs
        )
    return schema


def _name_schema(specs: Sequence[TensorSpec]) -> Schema:
    return {"type": "string", **({"enum": [spec.name for spec in specs]} if specs else {})}

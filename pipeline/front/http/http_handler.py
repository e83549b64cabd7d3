"""HTTP endpoints: routes a request to its dialect or page, starts the inference, sends the response."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar

import msgspec

from pipeline.api.restrictions import HEALTH, INFERENCE, METADATA, STATISTICS
from pipeline.config.config_file import Limits
from pipeline.errors import (
    OUR_FAULT,
    ConfigError,
    CrossSite,
    InvalidInput,
    MalformedBody,
    Overloaded,
    ServingError,
    TooLarge,
    Unauthenticated,
    detach,
)
from pipeline.front.dag_run import Answer, Request
from pipeline.front.http.connection import HttpApplication, HttpRequest
from pipeline.front.http.multipart import FORM, FormPart, parse_form
from pipeline.front.http.openapi import docs_page, model_cards, openapi
from pipeline.front.metrics.access_log import UNREAD
from pipeline.front.metrics.metrics import CONTENT_TYPE
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.front.tracing.request_trace import TRACEPARENT, describe_answer
from pipeline.messages.frames import Part

log = logging.getLogger(__name__)

_METRICS_HEAD = b"content-type: %b\r\n" % CONTENT_TYPE.encode()
_RESPONSES_PER_TURN = 32  # of the event loop: each response is copied into its connection


class FiguresPage:
    """Responds to requests for a page with live figures, such as /metrics.

    The page is rendered at most once per interval. Requests within the interval wait for and share the next
    rendering, so that scrapes cost little CPU and no response is older than its request.
    """

    def __init__(self, head: bytes, render: Callable[[], bytes], interval_s: float) -> None:
        """Create the page. render: returns the body. head: header lines of the response.

        interval_s: minimum seconds between two renderings.
        """
        self._head = head
        self._render_body = render
        self._interval_s = interval_s
        self._rendered_at = -math.inf
        self._waiting: deque[HttpRequest] = deque()

    def respond(self, request: HttpRequest) -> None:
        """Send the page now; within `interval_s` of the last rendering, send it after the next rendering."""
        now = time.monotonic()
        if not self._waiting and now >= self._rendered_at + self._interval_s:
            request.respond(200, self._head, self._render())
            return
        if not self._waiting:
            wait_s = self._rendered_at + self._interval_s - now
            asyncio.get_running_loop().call_later(wait_s, self._respond_to_waiting)
        self._waiting.append(request)

    def _render(self) -> bytes:
        self._rendered_at = time.monotonic()
        return self._render_body()

    def _respond_to_waiting(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        self._respond_to_some(waiting, self._render())

    def _respond_to_some(self, waiting: deque[HttpRequest], body: bytes) -> None:
        """Send the rendered page to waiting requests, to a limited number in each event loop iteration."""
        for _ in range(min(_RESPONSES_PER_TURN, len(waiting))):
            waiting.popleft().respond(200, self._head, body)
        if waiting:
            asyncio.get_running_loop().call_soon(self._respond_to_some, waiting, body)


JSON = b"content-type: application/json\r\n"
HEALTH_PAGES = (b"/health/live", b"/health/ready")
EVERYTHING_ELSE = "/"
READING = ("GET", "HEAD")
DOCS = "/docs"
METRICS = "/metrics"
OVERVIEW = "/overview.json"
SMALL_BYTES = 256 * 1024  # bodies up to this size are decoded in the event loop
_ENDPOINT = "http"
_PAGE_APIS = {
    "/health/live": HEALTH,
    "/health/ready": HEALTH,
    "/openapi.json": METADATA,
    DOCS: METADATA,
    METRICS: STATISTICS,
    OVERVIEW: STATISTICS,
}

Page = Callable[[], tuple[int, bytes, bytes]]


class Routes:
    """Maps URL paths to the HTTP handlers of dialects (request formats such as KServe v2).

    The prefix "/v1/" matches all paths below it that have no handler of their own. "/v2" matches only itself.
    """

    def __init__(self, handlers: Mapping[str, HttpHandler]) -> None:
        """Create the routing table. Raises ConfigError if there is no handler for "/".

        handlers: HTTP handlers by path or prefix. The handler of "/" gets all paths that have no other
        handler.
        """
        if EVERYTHING_ELSE not in handlers:
            raise ConfigError(f"no dialect that is installed answers below {EVERYTHING_ELSE!r}")
        self._handlers = dict(handlers)
        self.default = self._handlers[EVERYTHING_ELSE]

    def handler(self, path: str, method: str = "") -> HttpHandler | None:
        """Return the dialect handler of a path; None if no dialect serves the path.

        With None, a page of the server or the handler of "/" responds. method: HTTP method, which matters
        only for the path "/".
        """
        if path == EVERYTHING_ELSE and method == "POST":
            roots = (handler for handler in self._handlers.values() if handler.serves_root())
            return next(roots, self.default)
        handler = self._handlers.get(path)
        return handler if handler is not None else self._handlers.get(path[: path.find("/", 1) + 1])

    def find_api(self, path: str) -> str:
        """Return the API of a path, as Triton's --http-restricted-api names it: "inference", "health", ..."""
        handler = self.handler(path)
        if handler is None and path in _PAGE_APIS:
            return _PAGE_APIS[path]
        return (handler or self.default).find_api(path)

    def refusal(self, error: ServingError, url: bytes) -> tuple[bytes, bytes]:
        """Return header lines and body of the error response to an incomplete or invalid request.

        The dialect that serves the path formats the error. url: the request target, as far as it was
        received.
        """
        head, body = (self.handler(url.decode("latin-1")) or self.default).refusal(error)
        return head + refusal_headers(error), body


class HttpApp(HttpApplication):
    """The HTTP application of the service's main ports: health, metrics and docs pages, and all dialects."""

    def __init__(
        self,
        scheduler: Scheduler,
        routes: Routes,
        paths: Callable[[], Mapping[str, Any]],
        overview: Callable[[], bytes] = bytes,
    ) -> None:
        """Create the application. paths: returns the OpenAPI paths of the dialects, for /openapi.json.

        overview: returns the body of /overview.json. Omitted in a shard, which leaves that page to the
        front-end process.
        """
        self._scheduler = scheduler
        self._access_log = scheduler.access_log
        self._routes = routes
        self._paths = paths
        self._pages: dict[str, Page] = {
            "/health/live": lambda: (200, JSON, b'{"live":true}'),
            "/health/ready": self._readiness,
            "/openapi.json": self._openapi,
            DOCS: lambda: (200, *docs_page()),
        }
        interval_s = scheduler.app.config.limits.metrics_interval_s
        self._figures_pages = {
            METRICS: FiguresPage(_METRICS_HEAD, scheduler.metrics.text, interval_s),
            OVERVIEW: FiguresPage(JSON, overview, interval_s),
        }

    def handle(self, request: HttpRequest) -> None:
        path = request.path
        if path == EVERYTHING_ELSE and request.method in READING:
            self._respond_at_root(request)
            return
        handler = self._routes.handler(path, request.method)
        if handler is not None:
            handler.handle(request)
            return
        page, figures_page = self._pages.get(path), self._figures_pages.get(path)
        if page is None and figures_page is None:
            self._routes.default.handle(request)
        elif request.method not in READING:
            self._routes.default.refuse(request, NotAllowed(request.method, path, *READING))
        elif figures_page is not None:
            figures_page.respond(request)
        elif page is not None:
            request.respond(*page())

    def check_body(self, method: str, path: str, length: int | None) -> None:
        """Raise NotAllowed or TooLarge for a large body sent to a page, before the body is received."""
        handler = self._routes.handler(path)
        is_page = path in self._pages or path in self._figures_pages
        if is_page or (handler is not None and path in handler.pages):
            if method not in READING:
                raise NotAllowed(method, path, *READING)
        elif path != EVERYTHING_ELSE or self._routes.handler(path, method) is not self._routes.default:
            return
        check_page_body(path, length, self._scheduler.app.config.limits)

    def _respond_at_root(self, request: HttpRequest) -> None:
        """Respond to GET /: redirect browsers to /docs, and tell other clients that the service is alive.

        The liveness response has the format of KServe v1. A server with a model repository has no page at "/"
        for clients other than browsers, as in Triton.
        """
        if "text/html" in header(request, b"accept"):
            request.respond(302, b"location: %b\r\n" % DOCS.encode(), b"")
        elif self._scheduler.app.repository is not None:
            self._routes.default.handle(request)
        else:
            request.respond(200, JSON, b'{"status":"alive"}')

    def refusal(self, error: ServingError, url: bytes) -> tuple[bytes, bytes]:
        return self._routes.refusal(error, url)

    def log_refusal(self, error: ServingError, client: str) -> None:
        self._access_log.refused(_ENDPOINT, error, client)

    def log_unread(self, message: str) -> None:
        self._access_log.warn(UNREAD, message)

    def _openapi(self) -> tuple[int, bytes, bytes]:
        """Return status, header lines and body of /openapi.json."""
        document = openapi(self._scheduler.app, self._paths(), model_cards(self._scheduler))
        return 200, JSON, msgspec.json.encode(document)

    def _readiness(self) -> tuple[int, bytes, bytes]:
        """Return status (503 until ready), header lines and body of /health/ready."""
        ready = self._scheduler.ready
        body = json.dumps({"ready": ready, "ops": self._scheduler.readiness()}).encode()
        return 200 if ready else 503, JSON, body


class HttpHandler(ABC):
    """Base class of the HTTP side of a dialect (request format such as KServe v2).

    A subclass parses requests (`_read`), and formats errors (`refuse` and `refusal`).
    """

    name: ClassVar[str]  # endpoint name in metrics and log
    pages: ClassVar[Collection[str]] = ()  # paths for GET without a body
    decodes = False  # whether the handler decodes bodies with a Content-Encoding

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._access_log = scheduler.access_log
        self._traces = scheduler.traces

    def handle(self, request: HttpRequest, read: Callable[[], Request | None] | None = None) -> None:
        """Parse a request, start its inference, and send the result as the response. Errors become responses.

        read: parses the request in place of `_read`; returns None if it has already sent a response.
        """
        try:
            if b"content-encoding" in request.headers and not self.decodes:
                check_content_encoding(request)
            if read is None and len(request.body) > SMALL_BYTES and self._scan_first(request):
                return
            infer_request = self._read(request) if read is None else read()
            if infer_request is None:
                return
            infer_request.client, infer_request.endpoint = request.client, self.name
            if self._traces.is_on:
                traceparent = header(request, TRACEPARENT)
                self._scheduler.begin_trace(infer_request, "HTTP", request.began, traceparent)
            try:
                dag_run = self._scheduler.begin_request(
                    infer_request, partial(self._answer, request, infer_request)
                )
            except Overloaded as exc:
                exc.__traceback__ = None  # the traceback holds the request's inputs
                request.reject_overload(partial(self._answer, request, None, exc), infer_request.deadline)
                return
        except ServingError as exc:
            self._answer(request, None, detach(exc))
        except Exception:
            log.exception("A fault of ours in %s %s", request.method, request.path)
            self._answer(request, None, OUR_FAULT)
        else:
            request.on_left = dag_run.leave

    def _answer(self, request: HttpRequest, infer_request: Request | None, answer: Answer) -> None:
        """Send the result or the error of an inference request, and count and log it."""
        head = b""
        trace = None if infer_request is None else infer_request.trace
        if trace is not None:
            trace.begin_response(describe_answer(answer))
        if infer_request is not None and (timings := infer_request.timings) is not None and timings.is_sent:
            head = b"server-timing: %b\r\n" % timings.header().encode()
        if self._access_log.logs_requests:
            error = answer if isinstance(answer, ServingError) else None
            what = f"{request.method} {request.path}"
            self._access_log.log_request(self.name, request.peer, what, request.began, error)
        if isinstance(answer, list):
            self._access_log.answered(self.name)
            self._send(request, answer, head)
            if self._scheduler.recorded is not None:
                self._scheduler.recorded(request.path, request.body)
        else:
            self.refuse(request, answer, head)
        if trace is not None:
            trace.end_response()

    # Hooks of dialects

    def _scan_first(self, request: HttpRequest) -> bool:
        """Scan a large body in a thread before `handle` parses it. Return whether a scan was started.

        After the scan, `handle` is called again with a `read` that uses the scan's result. This default
        implementation scans nothing.
        """
        return False

    def serves_root(self) -> bool:
        """Whether this dialect handles `POST /`."""
        return False

    @abstractmethod
    def _read(self, request: HttpRequest) -> Request | None:
        """Parse an HTTP request into an inference request; None if the method has already sent a response.

        Requests for a metadata page, for example, are answered immediately. Raises ServingError for an
        invalid request.
        """

    def find_api(self, path: str) -> str:
        """Return the API of a path, as Triton's --http-restricted-api names it.

        The default is "inference".
        """
        return INFERENCE

    @abstractmethod
    def refusal(self, error: ServingError) -> tuple[bytes, bytes]:
        """Return header lines and body of the dialect's error response to incomplete or invalid HTTP."""

    @abstractmethod
    def refuse(self, request: HttpRequest, error: ServingError, head: bytes = b"") -> None:
        """Send an error response in the dialect's format, and log it. head: additional header lines."""

    def _send(self, request: HttpRequest, parts: list[Part], head: bytes) -> None:
        """Send a response body that a worker has encoded, by default with the content type of JSON.

        head: additional header lines. parts: the parts of the encoded body.
        """
        request.respond(200, JSON + head, parts[0])


class Refused(ServingError):
    """Raised for a path that does not exist (404), or a method that the path does not have (405).

    The Allow header of the response lists the methods of the path.
    """

    def __init__(self, status: int, request: HttpRequest, message: str = "", *allowed: str) -> None:
        """Create the error of a request. status: 404 or 405. allowed: methods of the path.

        message: for the log, and for dialects that send more than HTTP's phrase for the status.
        """
        self.phrase = HTTPStatus(status).phrase  # HTTP's phrase for the status
        super().__init__(message or f"{self.phrase}: {request.method} {request.path}")
        self.http_status = status
        self.allowed = allowed  # methods of the path


def check_method(request: HttpRequest, *allowed: str, list_allowed: bool = False) -> None:
    """Raise Refused (405) unless the request's method is one of `allowed`.

    list_allowed: whether the error message lists the allowed methods.
    """
    if request.method not in allowed:
        message = f"{request.method} is not answered at {request.path}; use {' or '.join(allowed)}"
        raise Refused(405, request, message if list_allowed else "", *allowed)


class NotAllowed(ServingError):
    """Raised for a method that the path does not have (405). Its message says what to send instead."""

    http_status = 405
    always_status = True

    def __init__(self, method: str, path: str, *allowed: str, hint: str = "") -> None:
        """Create the error. allowed: methods of the path, for the Allow header.

        hint: text in place of "use ..." in the message.
        """
        super().__init__(f"{method} is not answered at {path}; {hint or f'use {allowed[0]}'}")
        self.allowed = allowed


class UnsupportedEncoding(MalformedBody):
    """Raised for a compressed request body whose Content-Encoding the endpoint can't decode (415)."""

    http_status = 415
    encodings = "identity"


def check_content_encoding(request: HttpRequest) -> None:
    """Raise UnsupportedEncoding (415) for a request with a compressed body (RFC 9110 section 8.4)."""
    encoding = header(request, b"content-encoding").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedEncoding(
            f"Content-Encoding {encoding[:40]!r} is not decoded at {request.path}; send the body as it is"
        )


def check_page_body(path: str, length: int | None, limits: Limits) -> None:
    """Raise TooLarge (413) if a request for a page such as /metrics has a large or chunked body.

    length: bytes of the body; None for a chunked body.
    """
    if length is None or length > limits.header_bytes:
        raise TooLarge(f"a request for {path} has no body: one of {limits.header_bytes} bytes is passed over")


def refusal_headers(error: ServingError) -> bytes:
    """Return an error's header lines, if any: Retry-After, Allow, Accept-Encoding, WWW-Authenticate."""
    lines = retry_after(error)
    if allowed := getattr(error, "allowed", ()):
        lines += b"allow: %b\r\n" % ", ".join(allowed).encode()
    if encodings := getattr(error, "encodings", ""):
        lines += b"accept-encoding: %b\r\n" % encodings.encode()
    if isinstance(error, Unauthenticated):
        lines += b"www-authenticate: Bearer\r\n"
    return lines


def retry_after(error: ServingError) -> bytes:
    """Return the Retry-After header line for an error; empty if the error has no retry delay."""
    wait_s = getattr(error, "retry_after_s", None)
    return b"" if wait_s is None else b"retry-after: %d\r\n" % max(1, math.ceil(wait_s))


def header(request: HttpRequest, name: bytes) -> str:
    """Return the value of a request header as text; empty if the header is missing. name: in lower case."""
    return request.headers.get(name, b"").decode("latin-1")


IMAGE = "image/*"
# Defaults of curl and other clients: the first bytes of the body determine the media type.
_DEFAULT_MEDIA_TYPES = ("", "application/octet-stream", "application/x-www-form-urlencoded")
_FORMATS = {  # first bytes -> media type, description
    b"\xff\xd8\xff": ("image/jpeg", "a JPEG image"),
    b"\x89PNG": ("image/png", "a PNG image"),
    b"GIF8": ("image/gif", "a GIF image"),
    b"RIFF": ("image/webp", "a RIFF file, a WebP image say"),
    b"BM": ("image/bmp", "a BMP image"),
    b"%PDF": ("application/pdf", "a PDF"),
    b"PK\x03\x04": ("application/zip", "a ZIP archive"),
    b"\x1f\x8b": ("application/gzip", "compressed by gzip"),
    b"\x93NUMPY": ("application/x-npy", "a .npy file"),
}


def raw_input(request: HttpRequest, raw_bodies: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the inputs in a body that is a file (such as an image) or a multipart form, by input name.

    None if the body has another media type; the dialect then parses the body. raw_bodies: input name by media
    type, see `App`. Raises MalformedBody or InvalidInput for an invalid form.
    """
    if not raw_bodies:
        return None
    content_type = header(request, b"content-type")
    media = content_type.partition(";")[0].strip().lower()
    if media == FORM:
        return _form_inputs(parse_form(content_type, request.body), raw_bodies)
    name = _find_raw_input(media, request.body, raw_bodies)
    return None if name is None else {name: request.body}


def _form_inputs(parts: Sequence[FormPart], raw_bodies: Mapping[str, str]) -> dict[str, Any]:
    """Return the model inputs in a multipart form: bytes for inputs that accept files, text for other fields.

    A file is assigned to an input by its field name, else by its media type, else to the only file input.
    raw_bodies: input name by media type.
    """
    inputs: dict[str, Any] = {}
    names = list(dict.fromkeys(raw_bodies.values()))
    for part in parts:
        name: str | None = part.name
        if part.is_file and name not in names:
            by_media = _find_raw_input(part.media, part.content, raw_bodies)
            name = by_media or (names[0] if len(names) == 1 else None)
        if name is None:
            raise InvalidInput(f"file {part.name!r} is for no input; name the field {' or '.join(names)}")
        if name in inputs:
            raise InvalidInput(f"the form has two values for {name!r}; send one request for each file")
        inputs[name] = part.content if name in names else _decode_field(part)
    if not any(name in inputs for name in names):
        raise InvalidInput(f"the form has no file for {' or '.join(names)}")
    return inputs


def _decode_field(part: FormPart) -> str:
    """Return the text of a form field. Raises InvalidInput unless it is UTF-8."""
    try:
        return part.content.decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"field {part.name!r} of the form is no UTF-8") from None


def _find_raw_input(media: str, body: bytes, raw_bodies: Mapping[str, str]) -> str | None:
    """Return the name of the input that accepts a body of this media type; None if no input does.

    Clients such as curl send a default media type. Then the first bytes of the body decide.
    """
    if media in _DEFAULT_MEDIA_TYPES:
        media, _ = _sniff_media_type(body) or (media, "")
    return raw_bodies.get(media) or raw_bodies.get(f"{media.partition('/')[0]}/*")


def sniff_format(body: bytes) -> str:
    """Return a description of the body's binary format, such as "a PNG image", by its first bytes.

    Empty for JSON and unknown formats.
    """
    _, description = _sniff_media_type(body) or ("", "")
    return description


def _sniff_media_type(body: bytes) -> tuple[str, str] | None:
    """Return media type and description of a binary format by its first bytes; None if unknown."""
    if body[:4] == b"RIFF" and body[8:12] == b"WAVE":
        return "audio/wav", "a WAV file"
    return next((kind for start, kind in _FORMATS.items() if body.startswith(start)), None)


_SAME_SITE = ("", "same-origin", "none")  # "none": the user entered the address
_FORM = (
    "application/x-www-form-urlencoded"  # what curl and Triton's C++ client send where nobody names a type
)
_SIMPLE_MEDIA_TYPES = ("text/plain", "multipart/form-data", _FORM)
_BROWSER = "mozilla"  # in the User-Agent of every browser, which no page can change
_PORTS = {"http": "80", "https": "443"}


def refuse_cross_site(request: HttpRequest) -> None:
    """Raise CrossSite (403 or 415) for a request that a browser may have sent for a page of another origin.

    For endpoints that change the server: a web page must not change a server that only its visitor can reach.
    Browsers send requests with the content type of a form or text/plain to any server, without a preflight
    request. They name the page's origin in `Origin`, and its relation to the server in `Sec-Fetch-Site`.
    Requests without a content type are allowed: Triton's clients send none, and a browser adds an Origin.
    Programs other than browsers may use the content type of a form.
    """
    site = header(request, b"sec-fetch-site").strip().lower()
    if site not in _SAME_SITE:
        raise CrossSite(f"{request.path} changes the server: a page of another site ({site}) may not ask it")
    origin = header(request, b"origin").strip()
    if b"origin" in request.headers and not _is_same_origin(origin, header(request, b"host")):
        raise CrossSite(f"{request.path} changes the server: a page of {origin[:100]!r} may not ask it")
    media = header(request, b"content-type").partition(";")[0].strip().lower()
    is_program = media == _FORM and _BROWSER not in header(request, b"user-agent").lower()
    if media in _SIMPLE_MEDIA_TYPES and not is_program:
        error = CrossSite(f"{request.path} takes application/json, not {media}, which any page may send")
        error.http_status = 415
        raise error


def _is_same_origin(origin: str, host: str) -> bool:
    """Return whether a request's Origin header names the same host and port as its Host header."""
    scheme, _, name = origin.lower().partition("://")
    port = _PORTS.get(scheme, "")
    return bool(name) and _with_port(name, port) == _with_port(host.strip().lower(), port)


def _with_port(name: str, default: str) -> str:
    """Return a host name with its port; a host name without a port gets the default port."""
    host, colon, port = name.rpartition(":")
    if not colon or port.endswith("]"):  # no port: a name, or an address of IPv6 alone
        return f"{name}:{default}"
    return f"{host}:{port or default}"


_METRICS_ENDPOINT = "metrics"


class MetricsApp(HttpApplication):
    """The HTTP application of the separate metrics port. It serves only /metrics, no models."""

    def __init__(self, scheduler: Scheduler, routes: Routes) -> None:
        self._routes = routes
        self._limits = scheduler.app.config.limits
        render, interval_s = scheduler.metrics.text, self._limits.metrics_interval_s
        self._page = FiguresPage(_METRICS_HEAD, render, interval_s)
        self._access_log = scheduler.access_log

    def handle(self, request: HttpRequest) -> None:
        try:
            if request.path != METRICS:
                raise Refused(404, request)
            check_method(request, *READING)
        except Refused as exc:
            self.log_refusal(exc, request.peer)
            head = JSON + refusal_headers(exc)
            request.respond(exc.http_status, head, msgspec.json.encode({"error": exc.phrase}))
        else:
            self._page.respond(request)

    def refusal(self, error: ServingError, url: bytes) -> tuple[bytes, bytes]:
        return self._routes.refusal(error, url)

    def check_body(self, method: str, path: str, length: int | None) -> None:
        if path == METRICS and method not in READING:
            raise NotAllowed(method, path, *READING)
        check_page_body(path, length, self._limits)

    def log_refusal(self, error: ServingError, client: str) -> None:
        self._access_log.refused(_METRICS_ENDPOINT, error, client)

    def log_unread(self, message: str) -> None:
        self._access_log.warn(UNREAD, message)


class HandlerApp(HttpApplication):
    """The HTTP application of a separate port, all of whose requests go to one handler of a dialect."""

    def __init__(
        self,
        scheduler: Scheduler,
        handler: HttpHandler,
        parse_request: Callable[[HttpRequest], Request | None],
        has_body: Callable[[str], bool],
    ) -> None:
        """Create the application. parse_request: parses the requests of this port.

        has_body: returns whether requests to a path may have a body.
        """
        self._handler = handler
        self._parse_request = parse_request
        self._has_body = has_body
        self._limits = scheduler.app.config.limits
        self._access_log = scheduler.access_log

    def handle(self, request: HttpRequest) -> None:
        self._handler.handle(request, partial(self._parse_request, request))

    def refusal(self, error: ServingError, url: bytes) -> tuple[bytes, bytes]:
        head, body = self._handler.refusal(error)
        return head + refusal_headers(error), body

    def check_body(self, method: str, path: str, length: int | None) -> None:
        if not self._has_body(path):
            check_page_body(path, length, self._limits)

    def log_refusal(self, error: ServingError, client: str) -> None:
        self._access_log.refused(self._handler.name, error, client)

    def log_unread(self, message: str) -> None:
        self._access_log.warn(UNREAD, message)

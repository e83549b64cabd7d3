"""Requests of an HTTP port: the choice of their dialect, the begin of a prediction, and its end."""

from __future__ import annotations

import json
import logging
import math
from abc import ABC, abstractmethod
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
    InvalidInput,
    MalformedBody,
    Overloaded,
    ServingError,
    TooLarge,
    Unauthenticated,
    detach,
)
from pipeline.front.dag_run import Answer, Request
from pipeline.front.http import docs_page
from pipeline.front.http.connection import HttpRequest
from pipeline.front.http.metrics_page import MetricsPage
from pipeline.front.http.multipart import FORM, FormPart, parse_form
from pipeline.front.http.openapi import model_cards, openapi
from pipeline.front.metrics.access_log import UNREAD
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.messages.values import Part

log = logging.getLogger(__name__)

JSON = b"content-type: application/json\r\n"
HEALTH_PAGES = (b"/health/live", b"/health/ready")
EVERYTHING_ELSE = "/"
READING = ("GET", "HEAD")
DOCS = "/docs"
METRICS = "/metrics"
SMALL_BYTES = 256 * 1024  # a body of so few bytes is decoded whole, at once
_DOOR = "http"
_PAGE_APIS = {
    "/health/live": HEALTH,
    "/health/ready": HEALTH,
    "/openapi.json": METADATA,
    DOCS: METADATA,
    METRICS: STATISTICS,
}

Page = Callable[[], tuple[int, bytes, bytes]]


class Routes:
    """Finds the handler of a path: that of "/v1/" has all that lies below but for paths that are another's,
    that of "/v2" this path alone."""

    def __init__(self, handlers: Mapping[str, HttpHandler]) -> None:
        """Raises ConfigError where there is none for "/", which is every path that is nobody's."""
        if EVERYTHING_ELSE not in handlers:
            raise ConfigError(f"no dialect that is installed answers below {EVERYTHING_ELSE!r}")
        self._handlers = dict(handlers)
        self.otherwise = self._handlers[EVERYTHING_ELSE]

    def handler(self, path: str) -> HttpHandler | None:
        """The handler that answers at this path; None where no dialect does."""
        handler = self._handlers.get(path)
        return handler if handler is not None else self._handlers.get(path[: path.find("/", 1) + 1])

    def find_api(self, path: str) -> str:
        """Return the API of a path, as Triton groups them: a page of the server, or a dialect's."""
        handler = self.handler(path)
        if handler is None and path in _PAGE_APIS:
            return _PAGE_APIS[path]
        return (handler or self.otherwise).find_api(path)

    def refusal(self, error: ServingError, url: bytes) -> tuple[bytes, bytes]:
        """Header lines and body that refuse what was no request yet. url: as far as it has arrived."""
        head, body = (self.handler(url.decode("latin-1")) or self.otherwise).refusal(error)
        return head + refusal_headers(error), body


class HttpApp:
    """Answers every request of one service. paths: the dialects' part of /openapi.json."""

    def __init__(self, scheduler: Scheduler, routes: Routes, paths: Callable[[], Mapping[str, Any]]) -> None:
        self._scheduler = scheduler
        self._access_log = scheduler.access_log
        self._routes = routes
        self._paths = paths
        self._pages: dict[str, Page] = {
            "/health/live": lambda: (200, JSON, b'{"live":true}'),
            "/health/ready": self._readiness,
            "/openapi.json": self._openapi,
            DOCS: lambda: (200, *docs_page.page()),
        }
        self._metrics_page = MetricsPage(scheduler.metrics, scheduler.app.config.limits.metrics_interval_s)

    def handle(self, request: HttpRequest) -> None:
        """Answer at once, or when the scheduler has the answer."""
        path = request.path
        if path == EVERYTHING_ELSE and request.method in READING:
            self._lead_on(request)
            return
        handler = self._routes.handler(path)
        if handler is not None:
            handler.handle(request)
            return
        page = self._pages.get(path)
        if page is None and path != METRICS:
            self._routes.otherwise.handle(request)
        elif request.method not in READING:
            self._routes.otherwise.refuse(request, NotAllowed(request.method, path, *READING))
        elif page is None:
            self._metrics_page.answer(request)
        else:
            request.respond(*page())

    def check_body(self, method: str, path: str, length: int | None) -> None:
        """Raise ServingError where a body need not be read: a page has no use for one."""
        handler = self._routes.handler(path)
        if path in self._pages or path == METRICS or (handler is not None and path in handler.pages):
            if method not in READING:
                raise NotAllowed(method, path, *READING)
        elif path != EVERYTHING_ELSE:
            return
        check_page_body(path, length, self._scheduler.app.config.limits)

    def _lead_on(self, request: HttpRequest) -> None:
        """Lead a browser to the page to try the service; tell others that it is alive, as KServe v1 does. At
        a model repository there is nothing for others, as in Triton."""
        if "text/html" in header(request, b"accept"):
            request.respond(302, b"location: %b\r\n" % DOCS.encode(), b"")
        elif self._scheduler.app.repository is not None:
            self._routes.otherwise.handle(request)
        else:
            request.respond(200, JSON, b'{"status":"alive"}')

    def refusal(self, error: ServingError, url: bytes) -> tuple[bytes, bytes]:
        return self._routes.refusal(error, url)

    def note_refusal(self, error: ServingError, client: str) -> None:
        """A connection has refused what was no request yet. client: its address."""
        self._access_log.refused(_DOOR, error, client)

    def note_unread(self, why: str) -> None:
        """A client is sent away that does not read its answers."""
        self._access_log.warn(UNREAD, why)

    def _openapi(self) -> tuple[int, bytes, bytes]:
        document = openapi(self._scheduler.app, self._paths(), model_cards(self._scheduler))
        return 200, JSON, msgspec.json.encode(document)

    def _readiness(self) -> tuple[int, bytes, bytes]:
        ready = self._scheduler.ready
        body = json.dumps({"ready": ready, "ops": self._scheduler.readiness()}).encode()
        return 200 if ready else 503, JSON, body


class HttpHandler(ABC):
    """Answers HTTP requests in one dialect; each dialect brings a class of its own."""

    name: ClassVar[str]  # how metrics and log call it
    pages: ClassVar[Collection[str]] = ()  # paths that are answered to GET alone, and read no body
    decodes = False  # whether it reads bodies with a Content-Encoding

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._access_log = scheduler.access_log

    def handle(self, request: HttpRequest, read: Callable[[], Request | None] | None = None) -> None:
        """Answer at once, or when the scheduler has the answer. read: in place of `_read`."""
        try:
            if not self.decodes:
                check_content_encoding(request)
            if read is None and len(request.body) > SMALL_BYTES and self._scan_first(request):
                return
            infer_request = self._read(request) if read is None else read()
            if infer_request is None:
                return
            infer_request.client, infer_request.door = request.client, self.name
            try:
                dag_run = self._scheduler.begin(infer_request, partial(self._answer, request, infer_request))
            except Overloaded as exc:
                exc.__traceback__ = None  # it holds the request's inputs
                request.refuse_for_now(partial(self._answer, request, None, exc), infer_request.deadline)
                return
        except ServingError as exc:
            self._answer(request, None, detach(exc))
        except Exception:
            log.exception("A fault of ours in %s %s", request.method, request.path)
            self._answer(request, None, OUR_FAULT)
        else:
            request.on_left = dag_run.leave

    def _answer(self, request: HttpRequest, infer_request: Request | None, answer: Answer) -> None:
        head = b""
        if infer_request is not None and infer_request.timings is not None:
            head = b"server-timing: %b\r\n" % infer_request.timings.header().encode()
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

    # What a dialect brings:

    def _scan_first(self, request: HttpRequest) -> bool:
        """Have a large body scanned aside, and then `handle` called again; false: it needs no scan."""
        return False

    @abstractmethod
    def _read(self, request: HttpRequest) -> Request | None:
        """Return the request for the scheduler; None where it is answered without it. Raises ServingError."""

    def find_api(self, path: str) -> str:
        """Return the API of a path, for `--http-restricted-api`: inference unless a dialect has others."""
        return INFERENCE

    @abstractmethod
    def refusal(self, error: ServingError) -> tuple[bytes, bytes]:
        """Header lines and body that refuse what was no request yet."""

    @abstractmethod
    def refuse(self, request: HttpRequest, error: ServingError, head: bytes = b"") -> None:
        """Respond in the dialect's form of a refusal, and note it in the access log."""

    def _send(self, request: HttpRequest, parts: list[Part], head: bytes) -> None:
        """Respond with the answer that a worker made: a JSON text, unless a dialect has other forms.

        head: header lines besides the dialect's own.
        """
        request.respond(200, JSON + head, parts[0])


class Refused(ServingError):
    """Refusal of a path that does not exist, or of a method that the path does not have."""

    def __init__(self, status: int, request: HttpRequest, message: str = "", *allowed: str) -> None:
        """message: for the log, and for clients of dialects that have more than HTTP's own words."""
        self.phrase = HTTPStatus(status).phrase  # HTTP's own words
        super().__init__(message or f"{self.phrase}: {request.method} {request.path}")
        self.http_status = status
        self.allowed = allowed  # the methods that there are


def check_method(request: HttpRequest, *allowed: str, list_allowed: bool = False) -> None:
    """Raise Refused (405) for a method that the path does not have.

    list_allowed: whether the message of the response lists the allowed methods.
    """
    if request.method not in allowed:
        message = f"{request.method} is not answered at {request.path}; use {' or '.join(allowed)}"
        raise Refused(405, request, message if list_allowed else "", *allowed)


class NotAllowed(ServingError):
    """A method that is not answered at a path (405). allowed: the methods that are."""

    http_status = 405
    always_status = True

    def __init__(self, method: str, path: str, *allowed: str, hint: str = "") -> None:
        super().__init__(f"{method} is not answered at {path}; {hint or f'use {allowed[0]}'}")
        self.allowed = allowed


class UnsupportedEncoding(MalformedBody):
    """A body with a Content-Encoding that is not decoded at this path (415)."""

    http_status = 415
    encodings = "identity"


def check_content_encoding(request: HttpRequest) -> None:
    """Raise UnsupportedEncoding for a body that is compressed (RFC 9110 section 8.4)."""
    encoding = header(request, b"content-encoding").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedEncoding(
            f"Content-Encoding {encoding[:40]!r} is not decoded at {request.path}; send the body as it is"
        )


def check_page_body(path: str, length: int | None, limits: Limits) -> None:
    """Raise TooLarge for the body of a request for a page, unless it is as small as headers are."""
    if length is None or length > limits.header_bytes:
        raise TooLarge(f"a request for {path} has no body: one of {limits.header_bytes} bytes is passed over")


def refusal_headers(error: ServingError) -> bytes:
    """The header lines that go with a refusal: Retry-After, Allow, Accept-Encoding, WWW-Authenticate."""
    lines = retry_after(error)
    if allowed := getattr(error, "allowed", ()):
        lines += b"allow: %b\r\n" % ", ".join(allowed).encode()
    if encodings := getattr(error, "encodings", ""):
        lines += b"accept-encoding: %b\r\n" % encodings.encode()
    if isinstance(error, Unauthenticated):
        lines += b"www-authenticate: Bearer\r\n"
    return lines


def retry_after(error: ServingError) -> bytes:
    """The header of a refusal that says when to try again; empty for others."""
    wait_s = getattr(error, "retry_after_s", None)
    return b"" if wait_s is None else b"retry-after: %d\r\n" % max(1, math.ceil(wait_s))


def header(request: HttpRequest, name: bytes) -> str:
    """A header's value; empty where it is not there."""
    return request.headers.get(name, b"").decode("latin-1")


IMAGE = "image/*"
# What curl and others send where nobody names a media type: then the body itself tells what it is.
_UNTOLD = ("", "application/octet-stream", "application/x-www-form-urlencoded")
_KINDS = {  # by their first bytes
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
    """Return the body under the input's name, or the files of a form; None if the dialect parses the body.

    raw_bodies: by media type the names of inputs, see `App`. Raises MalformedBody or InvalidInput for a form.
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
    """Return the inputs of a form: a file for an input of raw bodies, a text for any other field.

    The name of a file's field decides, then the media type of the file, then the only input that there is.
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
    try:
        return part.content.decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"field {part.name!r} of the form is no UTF-8") from None


def _find_raw_input(media: str, body: bytes, raw_bodies: Mapping[str, str]) -> str | None:
    """Find the input for a body of this media type. A body of an unknown type tells the type itself."""
    if media in _UNTOLD:
        media, _ = _sniff_media_type(body) or (media, "")
    return raw_bodies.get(media) or raw_bodies.get(f"{media.partition('/')[0]}/*")


def sniff_format(body: bytes) -> str:
    """Return a description of a binary format, such as "a PNG image"; empty for JSON and unknown formats."""
    _, description = _sniff_media_type(body) or ("", "")
    return description


def _sniff_media_type(body: bytes) -> tuple[str, str] | None:
    if body[:4] == b"RIFF" and body[8:12] == b"WAVE":
        return "audio/wav", "a WAV file"
    return next((kind for start, kind in _KINDS.items() if body.startswith(start)), None)

"""The HTTP routes: key/value requests, health and metrics, as a plain ASGI application."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from pipeline.answers import render_error
from pipeline.errors import DeadlineExceeded, ServingError, TooLarge, UnknownService
from pipeline.request import AnswerForm, Request
from pipeline.server.codecs.key_value import EXAMPLE, parse_http, pass_http_on
from pipeline.server.engine import Engine
from pipeline.server.grpc_timeout import seconds_of
from pipeline.server.metrics import CONTENT_TYPE

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")
_TEXT = (b"content-type", CONTENT_TYPE.encode())
_CLOSE = (b"connection", b"close")
_TIMEOUT = b"grpc-timeout"
DOOR = "http"


class ClientLeft(Exception):
    """The connection closed before the request was complete."""


class HttpApp:
    """Answers every request of one service; `draining` makes each answer the last of its connection."""

    def __init__(self, engine: Engine) -> None:
        self.draining = False
        self._engine = engine
        self._journal = engine.journal
        self._name = engine.app.name
        self._limits = engine.app.config.limits
        self._parse = pass_http_on if engine.takes_messages else parse_http
        self._statuses = engine.app.config.dag.http_errors == "status"
        self._pages: dict[str, Callable[[], tuple[int, tuple[bytes, bytes], bytes]]] = {
            "/health/live": lambda: (200, _JSON, b'{"live":true}'),
            "/health/ready": self._readiness,
            "/metrics": lambda: (200, _TEXT, engine.metrics.text()),
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        page = self._pages.get(path)
        if page is not None:
            await self._answer_page(page, scope, send)
            return
        segments = path.split("/")
        if len(segments) != 3 or not segments[1] or not segments[2] or ":" in segments[2]:
            await self._refuse(send, 404, UnknownService(f"there is nothing at {path}; {self._usage()}"))
        elif scope["method"] != "POST":
            refusal = ServingError(f"{scope['method']} is not answered at {path}; {self._usage()}")
            await self._refuse(send, 405, refusal, [(b"allow", b"POST")])
        else:
            await self._predict(scope, receive, send, segments[1], segments[2])

    async def _predict(self, scope: Message, receive: Receive, send: Send, service: str, method: str) -> None:
        began = time.monotonic()
        try:
            request = self._request(await self._body(receive), scope, service, method)
            answer = await self._engine.infer(request)
        except ClientLeft:
            return
        except ServingError as exc:
            answer = exc
        except Exception:
            log.exception("A fault of ours in POST %s", scope["path"])
            answer = ServingError("internal error; the server's log has its reason")
        if isinstance(answer, DeadlineExceeded) and _asks_for_deadline(scope):
            answer.always_status = True  # the original's gateway answered 504 for a time-out it was given
        error = answer if isinstance(answer, ServingError) else None
        if self._journal.tells_each:
            self._journal.tell(DOOR, (scope["client"] or "?")[0], f"POST {scope['path']}", began, error)
        if isinstance(answer, ServingError):
            await self._answer_error(send, answer)
            return
        self._journal.answered(DOOR)
        await self._send(send, 200, [_JSON], answer)

    def _request(self, body: bytes, scope: Message, service: str, method: str) -> Request:
        if service != self._name:
            raise UnknownService(f"Service name error: there is no service {service!r}; {self._usage()}")
        request = self._parse(body, service, method, self._limits)
        timeout_s = math.inf
        for name, value in scope["headers"]:
            if name == _TIMEOUT:  # the original's gateway honoured it
                timeout_s = seconds_of(value)
        request.deadline = self._engine.deadline(timeout_s)
        return request

    async def _body(self, receive: Receive) -> bytes:
        """The whole body; the connection has refused one over the limit by then."""
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        body: bytes = message["body"]
        if not message["more_body"]:
            return body
        parts = [body]
        size = len(body)
        while message["more_body"]:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            parts.append(message["body"])
            size += len(parts[-1])
            if size > self._limits.body_bytes:
                raise TooLarge(f"the body is over {self._limits.body_bytes} bytes (limits.body_bytes)")
        return b"".join(parts)

    async def _answer_error(self, send: Send, error: ServingError) -> None:
        status = error.http_status if self._statuses or error.always_status else 200
        retry_after_s = getattr(error, "retry_after_s", None)
        extra = [] if retry_after_s is None else [(b"retry-after", b"%d" % max(1, math.ceil(retry_after_s)))]
        await self._refuse(send, status, error, extra)

    async def _refuse(
        self, send: Send, status: int, error: ServingError, extra: Headers | None = None
    ) -> None:
        self._journal.refused(DOOR, error)
        await self._send(send, status, [_JSON, *(extra or ())], render_error(error, AnswerForm.JSON))

    async def _answer_page(
        self, page: Callable[[], tuple[int, tuple[bytes, bytes], bytes]], scope: Message, send: Send
    ) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            refusal = ServingError(f"{scope['method']} is not answered at {scope['path']}; use GET")
            await self._refuse(send, 405, refusal, [(b"allow", b"GET, HEAD")])
            return
        status, kind, body = page()
        await self._send(send, status, [kind], body)

    def _readiness(self) -> tuple[int, tuple[bytes, bytes], bytes]:
        ready = self._engine.ready
        body = json.dumps({"ready": ready, "ops": self._engine.readiness()}).encode()
        return 200 if ready else 503, _JSON, body

    def _usage(self) -> str:
        return f"POST /{self._name}/prediction with a body like {EXAMPLE}"

    async def _send(
        self, send: Send, status: int, headers: Headers, body: bytes | bytearray | memoryview
    ) -> None:
        headers.append((b"content-length", b"%d" % len(body)))
        if self.draining:
            headers.append(_CLOSE)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": bytes(body)})


def _asks_for_deadline(scope: Message) -> bool:
    return any(name == _TIMEOUT for name, _ in scope["headers"])

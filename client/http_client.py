"""The HTTP client of a service; as a script, sends the texts of its command line and prints the answer."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # a script's own folder is on the path, the package's parent is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from client.project_environment import use_project_environment

    use_project_environment("rich")

import http.client
import json
from collections.abc import Callable, Generator, Mapping, Sequence

from client.errors import (
    TIMED_OUT_ERR_NO,
    BadAnswer,
    ClientError,
    RequestRefused,
    RequestTimedOut,
    ServiceUnavailable,
    TooManyRequests,
)
from client.exchange import Client, Reply
from client.http_connection import HttpReply, HttpServers
from client.retry import parse_retry_after
from client.tls import Tls

DEFAULT_URL = "http://127.0.0.1:18082"
REFUSALS: dict[int, type[RequestRefused]] = {
    http.client.TOO_MANY_REQUESTS: TooManyRequests,
    http.client.BAD_GATEWAY: ServiceUnavailable,
    http.client.SERVICE_UNAVAILABLE: ServiceUnavailable,
}


class HttpClient(Client):
    """Client of a service's key/value protocol over HTTP: `POST {url}/{service}/{method}`.

    url: one or several, separated by commas. URLs are used in turn; if a URL is unreachable, the request is
    sent to the next URL. Connections are kept open between requests. Raises ValueError for an invalid `url`,
    `tls` or header.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        service: str = "bert",
        method: str = "prediction",
        timeout_s: float = 10.0,
        retries: int = 2,
        tls: Tls | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(timeout_s, retries)
        self._servers = HttpServers(url, tls, api_key, headers)
        self._path = f"/{service}/{method}"

    def _sender(self, feed: dict[str, str]) -> Callable[[float], Reply]:
        body = _encode(feed)
        return lambda remaining_s: self._servers.post(self._path, body, remaining_s, read_key_value)

    def _streamer(self, feed: dict[str, str]) -> Callable[[float], Generator[Reply, None, None]]:
        body = _encode(feed)
        return lambda remaining_s: self._servers.stream(self._path, body, remaining_s, read_key_value)

    def close(self) -> None:
        self._servers.close()


def _encode(feed: dict[str, str]) -> bytes:
    return json.dumps({"key": list(feed), "value": list(feed.values())}, ensure_ascii=False).encode()


def read_key_value(reply: HttpReply) -> Reply:
    """Return the message and the outputs by name from an HTTP answer of the key/value protocol.

    Raises a ClientError for an error answer.
    """
    try:
        answer = json.loads(reply.body)
    except ValueError:
        answer = None
    if reply.status == http.client.OK and isinstance(answer, dict) and answer.get("err_no", 0) == 0:
        outputs = dict(zip(answer.get("key", ()), answer.get("value", ()), strict=False))
        return str(answer.get("err_msg", "")), outputs
    raise _error(reply, answer)


def _error(reply: HttpReply, answer: object) -> ClientError:
    named = isinstance(answer, dict)
    err_no = answer.get("err_no") if isinstance(answer, dict) else None
    if err_no == TIMED_OUT_ERR_NO or reply.status == http.client.GATEWAY_TIMEOUT:
        text = answer.get("err_msg") if isinstance(answer, dict) else None
        return RequestTimedOut(f"the service gave up: {text or reply.reason}")
    kind = REFUSALS.get(reply.status, RequestRefused)
    if kind is RequestRefused and not named:
        start = reply.body[:200].decode("utf-8", "replace")
        return BadAnswer(f"HTTP {reply.status}, not a JSON object: {start!r}. Does the URL name the service?")
    # Paddle Serving's gateway calls the message `message` if it could not read the request.
    text = (answer.get("err_msg") or answer.get("message")) if isinstance(answer, dict) else None
    retry_after_s = parse_retry_after(reply.retry_after)
    return kind(err_no, str(text or reply.reason), reply.status, retry_after_s=retry_after_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script: send the texts of its command line over HTTP, and return the exit code."""
    from client.client_command import run

    return run(HttpClient, "http_client.py", "--url", DEFAULT_URL, arguments)


if __name__ == "__main__":
    sys.exit(main())

"""A client for rows of data: JSON objects in and out, by `:predict` of the KServe v1 protocol."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

from client.errors import BadAnswer, ClientError, RequestRefused
from client.http_client import REFUSALS
from client.http_connection import HttpReply, HttpServers
from client.retry import call_with_retries, parse_retry_after
from client.tls import Tls

SERVICE = "paddlewheel_service"  # `platform` in the KServe v2 metadata of a whole service


class RowsClient:
    """Client that sends rows to `POST {url}/v1/models/{model}:predict`. Threads may share a client.

    timeout_s: limit in seconds for a whole call, including all retries and the waits between them.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 60.0,
        retries: int = 8,
        tls: Tls | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a client without connecting. url: one or several URLs, separated by commas.

        retries: number of further tries of `predict`, each at every URL. Raises ValueError for a `url` that
        is not of the form http://host:port, and for invalid `tls` or headers.
        """
        self._servers = HttpServers(url, tls, api_key, headers)
        self._timeout_s = timeout_s
        self._retries = retries

    def predict(
        self, model: str, rows: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> list[Any]:
        """Send rows as one request, and return an answer for each row.

        parameters: the request's parameters, such as {"top_k": 3}. Raises RequestRefused if the service
        rejects the rows, or another ClientError.
        """
        request: dict[str, Any] = {"instances": rows}
        if parameters:
            request["parameters"] = parameters
        body = json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass")
        path = f"/v1/models/{model}:predict"
        reply = self._send_with_retries(partial(self._servers.post, path, body), self._retries)
        answers = _member(reply, "predictions")
        if not isinstance(answers, list) or len(answers) != len(rows):
            raise BadAnswer(f"{self._servers.urls} did not answer each of {len(rows)} rows")
        return answers

    def services(self) -> list[str]:
        """Return the names of the services on the server at the URL, without the names of single models.

        Raises a ClientError.
        """
        names = _member(self._send_with_retries(partial(self._servers.get, "/v1/models")), "models")
        return [name for name in names if self.metadata(name).get("platform") == SERVICE]

    def metadata(self, model: str) -> dict[str, Any]:
        """Return the KServe v2 metadata of a model: name, datatype and shape of its `inputs` and `outputs`.

        Raises a ClientError.
        """
        reply = self._send_with_retries(partial(self._servers.get, f"/v2/models/{model}"))
        document = _document(reply)
        return document if isinstance(document, dict) else {}

    def _send_with_retries(self, send: Any, retries: int = 1) -> HttpReply:
        def once(remaining_s: float) -> HttpReply:
            reply: HttpReply = send(remaining_s, _check_status)
            return reply

        return call_with_retries(once, timeout_s=self._timeout_s, retries=retries)

    def close(self) -> None:
        """Close the connections to the service."""
        self._servers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def kserve_error(reply: HttpReply) -> ClientError:
    """Convert a KServe error response to the exception that the caller raises."""
    try:
        message = json.loads(reply.body)["error"]
    except (ValueError, KeyError, TypeError):
        message = reply.body[:200].decode("utf-8", "replace") or reply.reason
    kind = REFUSALS.get(reply.status, RequestRefused)
    retry_after_s = parse_retry_after(reply.retry_after)
    return kind(None, str(message), reply.status, retry_after_s=retry_after_s)


def _check_status(reply: HttpReply) -> HttpReply:
    if reply.status != http.client.OK:
        raise kserve_error(reply)
    return reply


def _document(reply: HttpReply) -> Any:
    try:
        return json.loads(reply.body)
    except ValueError:
        raise BadAnswer(
            f"the answer is no JSON: {reply.body[:100]!r}; does the URL name the service?"
        ) from None


def _member(reply: HttpReply, name: str) -> Any:
    document = _document(reply)
    if not isinstance(document, dict) or name not in document:
        raise BadAnswer(f"the answer has no {name!r}: {reply.body[:100]!r}; does the URL name the service?")
    return document[name]

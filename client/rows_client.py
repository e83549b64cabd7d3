"""Asks a model for its answers to rows: JSON objects in and out, by KServe v1's `:predict`."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

from client.errors import BadAnswer, ClientError, RequestRefused
from client.http_client import REFUSALS
from client.http_connection import ConnectionPool, HttpReply
from client.retry import call_with_retries, parse_retry_after
from client.tls import Tls

SERVICE = "paddlewheel_service"  # the platform of a model that is a whole service, in KServe v2's metadata


class RowsClient:
    """`POST {url}/v1/models/{model}:predict` over kept-alive connections; may be shared by threads.

    `timeout_s` bounds a whole call, its retries and their waits included.
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
        """Raises ValueError for a url that is not of the form http://host:port."""
        self._pool = ConnectionPool(url, tls, api_key, headers)
        self._timeout_s = timeout_s
        self._retries = retries

    def predict(
        self, model: str, rows: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> list[Any]:
        """The answer to each row. Raises a ClientError, RequestRefused where the model refuses the rows."""
        asked: dict[str, Any] = {"instances": rows}
        if parameters:
            asked["parameters"] = parameters
        body = json.dumps(asked, ensure_ascii=False).encode("utf-8", "surrogatepass")
        path = f"{self._pool.prefix}/v1/models/{model}:predict"
        reply = self._tried(partial(self._pool.post, path, body), self._retries)
        answers = _member(reply, "predictions")
        if not isinstance(answers, list) or len(answers) != len(rows):
            raise BadAnswer(f"{self._pool.url} did not answer each of {len(rows)} rows")
        return answers

    def services(self) -> list[str]:
        """The names of the services there. Raises a ClientError."""
        names = _member(self._tried(partial(self._pool.get, f"{self._pool.prefix}/v1/models")), "models")
        return [name for name in names if self.metadata(name).get("platform") == SERVICE]

    def metadata(self, model: str) -> dict[str, Any]:
        """What KServe v2 tells of a model: `inputs` and `outputs`, with name, datatype and shape each.

        Raises a ClientError.
        """
        reply = self._tried(partial(self._pool.get, f"{self._pool.prefix}/v2/models/{model}"))
        told = _document(reply)
        return told if isinstance(told, dict) else {}

    def _tried(self, send: Any, retries: int = 1) -> HttpReply:
        def once(remaining_s: float) -> HttpReply:
            reply: HttpReply = send(remaining_s)
            if reply.status != http.client.OK:
                raise kserve_error(reply)
            return reply

        return call_with_retries(once, timeout_s=self._timeout_s, retries=retries)

    def close(self) -> None:
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def kserve_error(reply: HttpReply) -> ClientError:
    """What a refusal in KServe's form says."""
    try:
        told = json.loads(reply.body)["error"]
    except (ValueError, KeyError, TypeError):
        told = reply.body[:200].decode("utf-8", "replace") or reply.reason
    kind = REFUSALS.get(reply.status, RequestRefused)
    retry_after_s = parse_retry_after(reply.retry_after)
    return kind(None, str(told), reply.status, retry_after_s=retry_after_s)


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

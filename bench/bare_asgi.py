"""Baseline of the HTTP endpoint: a bare uvicorn application that parses the same JSON and returns a constant.

Run as `python -m bench.bare_asgi PORT ANSWER_BYTES`: uvloop, httptools, no access log. JSON is parsed with
msgspec, the fastest parser there is for Python, so that the baseline is not flattered by a slow one.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import uvicorn

_decode = msgspec.json.Decoder().decode


class ConstantApp:
    """Answers every POST with the same bytes."""

    def __init__(self, answer_bytes: int) -> None:
        self._body = b"x" * answer_bytes
        length = (b"content-length", b"%d" % answer_bytes)
        self._headers = [(b"content-type", b"application/json"), length]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        body = message["body"]
        while message["more_body"]:
            message = await receive()
            body += message["body"]
        if body:
            _decode(body)
        await send({"type": "http.response.start", "status": 200, "headers": list(self._headers)})
        await send({"type": "http.response.body", "body": self._body})


def main(arguments: list[str]) -> None:
    port, answer_bytes = map(int, arguments)
    uvicorn.run(
        ConstantApp(answer_bytes), host="127.0.0.1", port=port, loop="uvloop", http="httptools",
        lifespan="off", access_log=False, log_level="warning",
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])

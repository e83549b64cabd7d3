"""The sample requests of `paddlewheel tune`: read from the file of `--sample`, and checked line by line.

A `.txt` file holds one text a line; each is put under the key of the service's own example. A `.jsonl` file
holds one body a line: of key/value (`key`, `value`), KServe v2 (`inputs`) or KServe v1 (`instances`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pipeline.errors import ConfigError

MAX_BYTES = 64 << 20
MAX_REQUESTS = 10_000
_MAX_REPORTED = 5  # lines in a message
_PATHS = {
    "key": "/{name}/prediction",
    "inputs": "/v2/models/{name}/infer",
    "instances": "/v1/models/{name}:predict",
}


class SampleRequest(NamedTuple):
    """An HTTP request to send to the tuned service: path, body, and the line of the sample file."""

    line: int  # line of the file, 0 for the service's example
    path: str
    body: bytes


class Example(NamedTuple):
    """The example request that a service declares in its OpenAPI document."""

    name: str  # name of the service
    key_values: Mapping[str, str]  # example_key_values of its Ops, or empty

    @classmethod
    def of_openapi(cls, document: Any) -> Example:
        """Return the example from a service's decoded `/openapi.json`."""
        name = document["info"]["title"]
        posted = document["paths"][_PATHS["key"].format(name=name)]["post"]
        example = posted["requestBody"]["content"]["application/json"].get("example")
        return cls(name, dict(zip(example["key"], example["value"], strict=True)) if example else {})


def read_sample_lines(path: Path, source: str = "") -> list[tuple[int, str]]:
    """Return the lines of a sample file with their line numbers, after checking each line.

    source: name of the file in messages; empty for the file that `--sample` names. Raises ConfigError for an
    unreadable file and for empty or malformed lines.
    """
    source = source or f"--sample {path}"
    if path.suffix not in (".txt", ".jsonl"):
        raise ConfigError(f"{source}: name it *.txt (a text a line) or *.jsonl (a body a line)")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode("utf-8-sig").removesuffix("\n")
    except OSError as exc:
        raise ConfigError(f"{source} can't be read ({exc.strerror}); name a file of requests") from exc
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        raise ConfigError(f"{source} line {line} is no UTF-8; save the file as UTF-8") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{source} is over {MAX_BYTES} bytes; some hundred requests are enough")
    lines = [(number, line.rstrip("\r")) for number, line in enumerate(text.split("\n"), 1)]
    if not text:
        raise ConfigError(f"{source} is empty; write a request a line")
    if len(lines) > MAX_REQUESTS:
        raise ConfigError(f"{source} has {len(lines)} lines; {MAX_REQUESTS} are the most")
    wrong = [f"line {number} {flaw}" for number, line in lines if (flaw := _flaw(path.suffix, line))]
    if wrong:
        more = f" and {len(wrong) - _MAX_REPORTED} more" if len(wrong) > _MAX_REPORTED else ""
        raise ConfigError(f"{source}: {'; '.join(wrong[:_MAX_REPORTED])}{more}: mend or delete them")
    return lines


def _flaw(suffix: str, line: str) -> str:
    """Return the error of a sample line, as text to follow the line number; empty for a valid line."""
    if not line.strip():
        return "is empty"
    if suffix == ".txt":
        return ""
    try:
        body = msgspec.json.decode(line)
    except msgspec.DecodeError as exc:
        return f"is no JSON ({exc})"
    if not find_request_path(body, ""):
        return f"is no body of a request: an object with one of {', '.join(_PATHS)}"
    return ""


def build_requests(
    lines: Sequence[tuple[int, str]], *, as_texts: bool, example: Example, key: str | None = None
) -> list[SampleRequest]:
    """Return an HTTP request for each line of a sample; without lines, the service's example request.

    as_texts: lines are texts, not JSON bodies. key: the JSON key for each text; None stands for the first key
    of the example. The example's other keys keep their values. Raises ConfigError if the service declares no
    example but needs one.
    """
    path = _PATHS["key"].format(name=example.name)
    if not lines:
        if not example.key_values:
            raise ConfigError("the service declares no example_key_values; give it requests with --sample")
        return [SampleRequest(0, path, _key_values(example.key_values))]
    if not as_texts:
        return [
            SampleRequest(number, find_request_path(msgspec.json.decode(line), example.name), line.encode())
            for number, line in lines
        ]
    key = key or next(iter(example.key_values), None)
    if key is None:
        raise ConfigError(
            "the service declares no example_key_values, so that the key of a text is not known: name it "
            "with --key, or write bodies in a .jsonl file"
        )
    return [
        SampleRequest(number, path, _key_values({**example.key_values, key: line})) for number, line in lines
    ]


def find_request_path(body: Any, name: str) -> str:
    """Return the URL path for a JSON body, by the protocol of its keys; empty for an unknown body.

    name: the service's name.
    """
    kinds = [path for key, path in _PATHS.items() if isinstance(body, dict) and key in body]
    return kinds[0].format(name=name) if kinds else ""


def _key_values(values: Mapping[str, str]) -> bytes:
    """Return the JSON body of a request in Paddle Serving's key/value protocol."""
    body = {"key": list(values), "value": list(values.values())}
    return json.dumps(body, ensure_ascii=False).encode()

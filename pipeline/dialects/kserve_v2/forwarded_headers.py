"""FRONT PROCESS: adds the headers that an operator forwards to the parameters of inference requests."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.api.header_patterns import compile_pattern
from pipeline.dialects.kserve_v2.infer_request import InferRequest

Headers = Iterable[tuple[str | bytes, str | bytes]]


class ForwardedHeaders:
    """Copies headers whose names match a pattern to the parameters of an inference request, as texts."""

    def __init__(self, pattern: str) -> None:
        """Compile the pattern. pattern: a regular expression, see `HeaderPatterns`."""
        self._pattern = compile_pattern(pattern)

    def add_to(self, infer_request: InferRequest, headers: Headers) -> None:
        """Add the matching headers to the request's parameters, replacing parameters of the same name.

        Raises KServeRefusal (HTTP 400) for a name that Triton reserves.
        """
        for key, value in headers:
            name = _to_text(key)
            if self._pattern.search(name):
                infer_request.add_parameter(name, _to_text(value))


def _to_text(value: str | bytes) -> str:
    """Return a header's name or value as text: UTF-8, or ISO-8859-1 for other bytes."""
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")

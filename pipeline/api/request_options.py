"""RequestOptions: a request's fields besides its inputs, for the hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from pipeline.errors import MissingKey

LogId = int | float | str | None
"""The client's number of a request, or the value that an overridden `unpack_request_package` set for it."""


class RequestOptions(NamedTuple):
    """Options of a KServe v2 request. KServe v1 has `parameters` alone."""

    id: str = ""  # the client's name for the request
    priority: int = 0  # 1: highest; 0: none set
    timeout_us: int = 0  # longest wait in the queue, in microseconds; 0: no limit
    parameters: Mapping[str, Any] = MappingProxyType({})  # str, bool, int64, float, or list of str
    correlation_id: int | str = 0  # of the sequence; 0: none
    flags: int = 0  # of the sequence; 0: none
    outputs: Sequence[str] = ()  # requested outputs; empty: all


NO_OPTIONS = RequestOptions()


_MAX_KEYS = 20  # that an error message lists


class RequestInputs(dict[str, Any]):
    """The values of a request by key. Reading a missing key is the client's mistake."""

    def __missing__(self, key: object) -> Any:
        """Raise MissingKey, which is also a KeyError."""
        sent = [repr(name) for name in list(self)[:_MAX_KEYS]]
        if len(self) > _MAX_KEYS:
            sent.append(f"{len(self) - _MAX_KEYS} more")
        raise MissingKey(f"key {key!r} is missing; the request has {', '.join(sent) or 'no key'}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a plain dict: data that an Op passes on is no longer a request."""
        return dict, (dict(self),)


class Answer(dict[str, Any]):
    """An Op's output in the form of each protocol: tensors by name, as KServe v2 sends them."""

    def __init__(
        self,
        tensors: Mapping[str, Any],
        *,
        rows: Sequence[Mapping[str, Any]] | None = None,
        key_values: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(tensors)
        self.rows = rows  # for KServe v1: an object of plain values per instance
        self.key_values = key_values  # for key/value responses

"""A request's fields besides its input tensors, as user code reads them: id, priority, timeout and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from pipeline.errors import MissingKey

LogId = int | float | str | None
"""The client's number of a request, or the value that an overridden `unpack_request_package` set for it."""


class RequestOptions(NamedTuple):
    """Fields of a KServe v2 request besides its input tensors.

    A KServe v1 request sets `parameters` alone.
    """

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
    """The values of a request by name, as user code receives them.

    Reading a missing name fails with HTTP 400.
    """

    def __missing__(self, key: object) -> Any:
        """Raise MissingKey, a KeyError that becomes HTTP 400 and lists the names that the request has."""
        sent = [repr(name) for name in list(self)[:_MAX_KEYS]]
        if len(self) > _MAX_KEYS:
            sent.append(f"{len(self) - _MAX_KEYS} more")
        raise MissingKey(f"key {key!r} is missing; the request has {', '.join(sent) or 'no key'}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle this object as a plain dict.

        In the next step, a missing name is not the client's mistake.
        """
        return dict, (dict(self),)


class Answer(dict[str, Any]):
    """The output of the last step, in the form of each client protocol.

    The dict has the tensors by name, as KServe v2 sends them; attributes have the KServe v1 and key/value
    forms.
    """

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

"""RequestOptions: what a client said of its request beside the inputs, for the hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from pipeline.errors import MissingKey


class RequestOptions(NamedTuple):
    """Of KServe v2; v1 has `parameters` alone.

    id: the client's own name of the request. priority: 1 is the highest, 0 none given. timeout_us: how long
    it may wait, in microseconds, 0 for no such limit. parameters: str, bool, int of 64 bits, float, or a list
    of str by name.
    correlation_id, flags: of the sequence it belongs to, 0 without. outputs: those asked for; none for all.
    """

    id: str = ""
    priority: int = 0
    timeout_us: int = 0
    parameters: Mapping[str, Any] = MappingProxyType({})
    correlation_id: int | str = 0
    flags: int = 0
    outputs: Sequence[str] = ()


NO_OPTIONS = RequestOptions()


_MOST_NAMED = 20  # keys in a message


class RequestInputs(dict[str, Any]):
    """The values of a request by key. To ask for one that was not sent is its client's mistake."""

    def __missing__(self, key: object) -> Any:
        """Raises MissingKey, which is a KeyError, too."""
        sent = [repr(name) for name in list(self)[:_MOST_NAMED]]
        if len(self) > _MOST_NAMED:
            sent.append(f"{len(self) - _MOST_NAMED} more")
        raise MissingKey(f"key {key!r} is missing; the request has {', '.join(sent) or 'no key'}")

    def __reduce__(self) -> tuple[Any, ...]:
        """As a plain dict: what an Op passes on is no request any more."""
        return dict, (dict(self),)


class Answer(dict[str, Any]):
    """Tensors by name, as KServe v2 answers them.

    rows: what KServe v1 answers in place of them, an object of plain values for each instance. key_values:
    the texts that key/value answers. Each tells the same.
    """

    def __init__(
        self,
        tensors: Mapping[str, Any],
        *,
        rows: Sequence[Mapping[str, Any]] | None = None,
        key_values: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(tensors)
        self.rows = rows
        self.key_values = key_values

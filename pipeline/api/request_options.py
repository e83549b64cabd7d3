"""RequestOptions: what a client said of its request beside the inputs, for the hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple


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

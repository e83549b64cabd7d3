"""The parameters of a request that the protocol gives no meaning: which values hooks are given."""

from __future__ import annotations

from typing import Any

from pipeline.dialects.kserve.json_fields import sendable
from pipeline.dialects.kserve.refusals import KServeRefusal

_INTEGERS = range(-(1 << 63), 1 << 64)


def checked_parameter(name: str, value: Any) -> str | bool | int | float:
    """The value. Raises KServeRefusal for one that hooks are not given."""
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, bool | float) or (type(value) is int and value in _INTEGERS):
        return value
    raise KServeRefusal(
        f"parameter '{name}' has invalid type. It should be either 'int', 'bool', 'double' or 'string'."
    )

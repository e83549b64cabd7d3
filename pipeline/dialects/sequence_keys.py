"""FRONT PROCESS: the keys `sequence_id`, `sequence_start` and `sequence_end` of key/value and KServe v1."""

from __future__ import annotations

from typing import Any

from pipeline.api.request_options import RequestOptions
from pipeline.errors import InvalidInput
from pipeline.models.sequence_tensors import END, MAX_ID_BYTES, START

ID_KEY = "sequence_id"
FLAG_KEYS = {"sequence_start": START, "sequence_end": END}
_FLAGS = {"true": True, "1": True, "false": False, "0": False, "": False}


def pop_sequence_options(values: dict[str, Any]) -> RequestOptions:
    """Remove `sequence_id`, `sequence_start` and `sequence_end` from a request's values.

    Returns them as options of the request. Raises InvalidInput for a value of another type.
    """
    key = values.pop(ID_KEY, None)
    flags = sum(flag * _parse_flag(name, values.pop(name, False)) for name, flag in FLAG_KEYS.items())
    return RequestOptions(parameters={}, correlation_id=_parse_id(key), flags=flags)


def _parse_id(key: Any) -> int | str:
    if type(key) is int:
        return key
    if isinstance(key, str):
        return key.encode("utf-8", "replace").decode()  # JSON may contain half of a surrogate pair
    if key is None:
        return 0
    raise InvalidInput(
        f"{ID_KEY} is a {type(key).__name__}; send a number, or a text of at most {MAX_ID_BYTES} bytes"
    )


def _parse_flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    flag = _FLAGS.get(value.lower()) if isinstance(value, str) else None
    if flag is None:
        raise InvalidInput(f"{name} is {str(value)[:32]!r}; send true or false")
    return flag

"""Members of a JSON request, and Triton's messages for missing members and wrong types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from pipeline.dialects.kserve.refusals import KServeRefusal

LENIENT_BYTES = 4 << 20  # the standard library reads what is only nearly JSON: slowly, so no more than this
MAX_TEXTS = 1000  # in a parameter
_UNSIGNED = range(1 << 64)
_PARAMETER_INTEGERS = range(-(1 << 63), 1 << 64)


def parse(text: bytes | memoryview) -> Any:
    """The JSON value in front; what follows it doesn't count, NaN and Infinity do. Raises KServeRefusal."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise _malformed("it is nested too deeply", 0) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        if len(text) > LENIENT_BYTES:
            raise _malformed(str(exc), 0) from None
    try:
        return json.JSONDecoder().raw_decode(str(text, "utf-8", "replace").lstrip())[0]
    except json.JSONDecodeError as exc:
        raise _malformed(exc.msg, exc.pos) from None
    except ValueError:  # int() of thousands of digits
        raise _malformed("a number has too many digits", 0) from None
    except RecursionError:
        raise _malformed("it is nested too deeply", 0) from None


def _malformed(what: str, at: int) -> KServeRefusal:
    return KServeRefusal(f"failed to parse the request JSON buffer: {what}. at {at}", "INTERNAL")


def member(document: Any, name: str) -> Any:
    if not isinstance(document, dict) or name not in document:
        raise unparsed(name, f"attempt to access non-existing object member '{name}'")
    return document[name]


def text(document: Any, name: str) -> str:
    return as_text(member(document, name), name)


def as_text(value: Any, name: str = "") -> str:
    if not isinstance(value, str):
        raise unparsed(name, "attempt to access JSON non-string as string")
    return sendable(value)


def sendable(text: str) -> str:
    """The text with `?` for half a surrogate pair: JSON may have it, a message to a worker can't."""
    return text.encode("utf-8", "replace").decode()


def array(document: Any, name: str) -> list[Any]:
    value = member(document, name)
    if not isinstance(value, list):
        raise unparsed(name, "attempt to access JSON non-array as array")
    return value


def unsigned(value: Any, name: str, verb: str = "parse") -> int:
    if type(value) is not int or value not in _UNSIGNED:
        raise unparsed(name, "attempt to access JSON non-unsigned-integer as unsigned-integer", verb)
    return value


def boolean(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise unparsed(name, "attempt to access JSON non-boolean as boolean")
    return value


def get_parameters(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The member `parameters`, an empty one where there is none. Raises KServeRefusal for no object."""
    parameters = document.get("parameters", {})
    if not isinstance(parameters, dict):
        raise unparsed("parameters", "attempt to access JSON non-object as object")
    return parameters


def checked_parameter(name: str, value: Any) -> str | bool | int | float | list[str]:
    """The value of a parameter as hooks are given it: a list of texts, too, which Triton refuses.

    Raises KServeRefusal for a type that they are not given.
    """
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, list):
        return _texts(name, value)
    if isinstance(value, bool | float) or (type(value) is int and value in _PARAMETER_INTEGERS):
        return value
    raise KServeRefusal(
        f"parameter '{name}' has invalid type. It should be either 'int', 'bool', 'double' or 'string'."
    )


def _texts(name: str, value: list[Any]) -> list[str]:
    if len(value) > MAX_TEXTS:
        raise KServeRefusal(f"parameter '{name}' is a list of {len(value)} texts; {MAX_TEXTS} are allowed.")
    for number, text in enumerate(value):
        if not isinstance(text, str):
            kind = type(text).__name__
            raise KServeRefusal(
                f"parameter '{name}' has invalid type. It should be either 'int', 'bool', 'double' or "
                f"'string', or a list of texts: element {number} is no text but {kind}."
            )
    return [sendable(text) for text in value]


def parameters_of_tensor(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of an input or output; empty for null, which clients send."""
    parameters = document.get("parameters")
    return parameters if isinstance(parameters, dict) else {}


def unparsed(name: str, what: str, verb: str = "parse") -> KServeRefusal:
    """The refusal of a member, in Triton's words. name: empty where Triton does not tell it."""
    return KServeRefusal(f"Unable to {verb} '{name}': {what}" if name else what, "INTERNAL")

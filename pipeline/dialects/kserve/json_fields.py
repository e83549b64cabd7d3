"""Gets and checks members of JSON requests. Missing members and wrong types have Triton's messages."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from pipeline.dialects.kserve.refusals import KServeRefusal

LENIENT_BYTES = 4 << 20  # maximum size for the lenient decoder of the standard library, which is slow
MAX_TEXTS = 1000  # maximum number of texts in a parameter
_UNSIGNED = range(1 << 64)
_PARAMETER_INTEGERS = range(-(1 << 63), 1 << 64)


def parse_json(text: bytes | memoryview) -> Any:
    """Decode the first JSON value of a text, as leniently as Triton.

    NaN, Infinity and a byte order mark of UTF-8 are accepted.

    Raises KServeRefusal with HTTP 500 for invalid JSON, as Triton does.
    """
    if text[:3] == codecs.BOM_UTF8:
        text = text[3:]
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


def _malformed(problem: str, at: int) -> KServeRefusal:
    return KServeRefusal(f"failed to parse the request JSON buffer: {problem}. at {at}", "INTERNAL")


def get_member(document: Any, name: str) -> Any:
    """Return a member of a JSON object. Raises KServeRefusal (HTTP 500, as in Triton) if it is missing."""
    if not isinstance(document, dict) or name not in document:
        raise parse_error(name, f"attempt to access non-existing object member '{name}'")
    return document[name]


def get_text(document: Any, name: str) -> str:
    """Return a member of a JSON object that is a text. Raises KServeRefusal (HTTP 500, as in Triton)."""
    return check_text(get_member(document, name), name)


def check_text(value: Any, name: str = "") -> str:
    """Return `value` if it is a text, with `?` for lone surrogates. Otherwise raise KServeRefusal."""
    if not isinstance(value, str):
        raise parse_error(name, "attempt to access JSON non-string as string")
    return replace_surrogates(value)


def replace_surrogates(text: str) -> str:
    """Return the text with `?` for each lone half of a surrogate pair.

    JSON may contain half of a pair, but messages to workers can't.
    """
    return text.encode("utf-8", "replace").decode()


def get_array(document: Any, name: str) -> list[Any]:
    """Return a member of a JSON object that is an array. Raises KServeRefusal (HTTP 500, as in Triton)."""
    value = get_member(document, name)
    if not isinstance(value, list):
        raise parse_error(name, "attempt to access JSON non-array as array")
    return value


def check_unsigned(value: Any, name: str, verb: str = "parse") -> int:
    """Return `value` if it is an unsigned 64-bit integer. Otherwise raise KServeRefusal.

    name, verb: for the message "Unable to VERB 'NAME'".
    """
    if type(value) is not int or value not in _UNSIGNED:
        raise parse_error(name, "attempt to access JSON non-unsigned-integer as unsigned-integer", verb)
    return value


def check_boolean(value: Any, name: str) -> bool:
    """Return `value` if it is true or false. Otherwise raise KServeRefusal."""
    if not isinstance(value, bool):
        raise parse_error(name, "attempt to access JSON non-boolean as boolean")
    return value


def get_parameters(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the member `parameters` of a request; empty if it is absent.

    Raises KServeRefusal if it is not an object.
    """
    parameters = document.get("parameters", {})
    if not isinstance(parameters, dict):
        raise parse_error("parameters", "attempt to access JSON non-object as object")
    return parameters


def check_parameter(name: str, value: Any) -> str | bool | int | float | list[str]:
    """Return the value of a request parameter for user code: a text, number, bool or list of texts.

    Triton does not allow lists. Raises KServeRefusal (HTTP 400) for a value of another type.
    """
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, list):
        return _check_texts(name, value)
    if isinstance(value, bool | float) or (type(value) is int and value in _PARAMETER_INTEGERS):
        return value
    raise KServeRefusal(
        f"parameter '{name}' has invalid type. It should be either 'int', 'bool', 'double' or 'string'."
    )


def _check_texts(name: str, value: list[Any]) -> list[str]:
    if len(value) > MAX_TEXTS:
        raise KServeRefusal(f"parameter '{name}' is a list of {len(value)} texts; {MAX_TEXTS} are allowed.")
    for number, text in enumerate(value):
        if not isinstance(text, str):
            kind = type(text).__name__
            raise KServeRefusal(
                f"parameter '{name}' has invalid type. It should be either 'int', 'bool', 'double' or "
                f"'string', or a list of texts: element {number} is no text but {kind}."
            )
    return [replace_surrogates(text) for text in value]


def get_tensor_parameters(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the member `parameters` of an input or output; empty for null, which some clients send."""
    parameters = document.get("parameters")
    return parameters if isinstance(parameters, dict) else {}


def parse_error(name: str, problem: str, verb: str = "parse") -> KServeRefusal:
    """Return the error for an invalid member of a request, with Triton's message and HTTP 500.

    name: name of the member; empty if Triton's message has no name.
    """
    return KServeRefusal(f"Unable to {verb} '{name}': {problem}" if name else problem, "INTERNAL")

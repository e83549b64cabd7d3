"""The feeds and fetches of a model, and the prototxt (GeneralModelConfig) that describes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from pipeline.errors import ConfigError
from pipeline.models.dtypes import BY_NAME, BY_PADDLE

Scalar = int | float | str | bool
Message = dict[str, "list[Scalar | Message]"]

MAX_BYTES = 4 << 20
MAX_VALUES = 100_000
MAX_DEPTH = 16
MAX_DIGITS = 400

_TOKEN = re.compile(
    r"""(?P<skip>\s+|\#[^\n]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?f?))
    |(?P<name>[A-Za-z_][\w.]*)
    |(?P<sign>[{}<>\[\]:;,])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_OCTAL = (*(b"%d" % digit for digit in range(8)),)
_CLOSES = {"{": "}", "<": ">"}


@dataclass(frozen=True)
class _Token:
    kind: str  # "string", "number", "name", a sign itself, or "end"
    text: str
    line: int


def read_prototxt(path: Path) -> Message:
    """Read a message from a UTF-8 file of at most 4 MiB.

    Raises ConfigError with file and line.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise ConfigError(f"{path} can't be read: {exc.strerror}") from exc
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path} is over {MAX_BYTES} bytes: not a model description")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data[: exc.start].count(b"\n") + 1
        raise ConfigError(f"{path}, line {line}: not UTF-8 text; expected protobuf's text format") from exc
    return parse_prototxt(text, str(path))


def parse_prototxt(text: str, source: str) -> Message:
    """Parse one message; `source` names it in errors (ConfigError, with the line)."""
    return _Parser(text, source).message("end", 0)


def format_prototxt(message: Mapping[str, Sequence[object]], indent: str = "") -> str:
    """Print a message: strings quoted, booleans as true/false, messages in braces."""
    lines = []
    for name, values in message.items():
        for value in values:
            if isinstance(value, Mapping):
                lines.append(f"{indent}{name} {{\n{format_prototxt(value, indent + '  ')}{indent}}}\n")
            else:
                lines.append(f"{indent}{name}: {_printed(value)}\n")
    return "".join(lines)


def _printed(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda m: f"\\{ord(m[0]):03o}", escaped) + '"'
    return str(value)


class _Parser:
    """Recursive descent with one token of look-ahead."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._tokens = self._scan(text)
        self._next = next(self._tokens)
        self._values_left = MAX_VALUES

    def message(self, end: str, depth: int) -> Message:
        """Parse fields up to the token `end`, and consume it."""
        if depth > MAX_DEPTH:
            raise self._error(f"messages nested deeper than {MAX_DEPTH}")
        fields: Message = {}
        while self._next.kind != end:
            name = self._expect("name", "a field name").text
            colon = self._accept(":")
            values = fields.setdefault(name, [])
            if colon and self._next.kind == "[":
                values.extend(self._list(depth))
            elif self._next.kind in _CLOSES:
                values.append(self._submessage(depth))
            elif colon:
                values.append(self._scalar())
            else:
                raise self._error(f"expected ':' or '{{' after {name!r}, found {self._shown()}")
            if not self._accept(","):
                self._accept(";")
        if end != "end":
            self._advance()
        return fields

    def _submessage(self, depth: int) -> Message:
        return self.message(_CLOSES[self._advance().kind], depth + 1)

    def _list(self, depth: int) -> list[Scalar | Message]:
        self._advance()
        values: list[Scalar | Message] = []
        while self._next.kind != "]":
            values.append(self._submessage(depth) if self._next.kind in _CLOSES else self._scalar())
            if not self._accept(",") and self._next.kind != "]":
                raise self._error(f"expected ',' or ']' in a list, found {self._shown()}")
        self._advance()
        return values

    def _scalar(self) -> Scalar:
        self._values_left -= 1
        if self._values_left < 0:
            raise self._error(f"more than {MAX_VALUES} values")
        if self._next.kind == "string":
            parts = []
            while self._next.kind == "string":  # adjacent strings are one, as in C
                parts.append(self._unquoted(self._advance().text))
            return "".join(parts)
        if self._next.kind == "number":
            return self._number(self._advance().text)
        word = self._expect("name", "a value").text
        return {"true": True, "True": True, "false": False, "False": False}.get(word, word)

    def _number(self, text: str) -> int | float:
        if len(text) > MAX_DIGITS:
            raise self._error(f"a number of {len(text)} characters")
        if "x" in text.lower():
            return int(text, 16)
        try:
            return int(text)
        except ValueError:
            return float(text.rstrip("fF"))

    def _unquoted(self, text: str) -> str:
        def plain(match: re.Match[bytes]) -> bytes:
            code = match[1]
            if code[:1] in _OCTAL:
                return bytes([int(code, 8) & 0xFF])
            if code[:1] == b"x" and len(code) > 1:
                return bytes([int(code[1:], 16)])
            return _ESCAPES.get(code, code)

        # Escapes are bytes of UTF-8, so several of them may make one character.
        try:
            return _ESCAPE.sub(plain, text[1:-1].encode()).decode()
        except UnicodeDecodeError:
            raise self._error(f"the string {text[:60]} is not UTF-8") from None

    def _accept(self, kind: str) -> bool:
        if self._next.kind != kind:
            return False
        self._advance()
        return True

    def _expect(self, kind: str, expected: str) -> _Token:
        if self._next.kind != kind:
            raise self._error(f"expected {expected}, found {self._shown()}")
        return self._advance()

    def _advance(self) -> _Token:
        token = self._next
        if token.kind != "end":
            self._next = next(self._tokens)
        return token

    def _scan(self, text: str) -> Iterator[_Token]:
        line, at = 1, 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise ConfigError(f"{self._source}, line {line}: {text[at : at + 20]!r} is not text format")
            kind = match.lastgroup or ""
            if kind != "skip":
                yield _Token(match[0] if kind == "sign" else kind, match[0], line)
            line += match[0].count("\n")
            at = match.end()
        yield _Token("end", "", line)

    def _shown(self) -> str:
        return "the end of the file" if self._next.kind == "end" else repr(self._next.text[:40])

    def _error(self, message: str) -> ConfigError:
        return ConfigError(f"{self._source}, line {self._next.line}: {message}")


T = TypeVar("T")

MAX_VARIABLES = 1024
MAX_RANK = 16


@dataclass(frozen=True)
class Variable:
    """A feed or fetch of a serving model, with the facts that its engine needs.

    Clients are told of it by a `TensorSpec`, which goes to the front and which Ops without a model declare.
    """

    name: str  # the program's
    alias: str  # what requests and Ops call it
    dtype: str  # as in `dtypes`: NumPy's name, or "bfloat16" or "string"
    # -1 is any length. It starts with the batch axis, -1, unless the model has none or a fixed one.
    shape: tuple[int, ...]
    is_lod: bool = False  # one of Paddle's ragged tensors, whose stored shape can't be trusted
    # An open axis and the greatest length that the model takes there, of a BERT of 512 positions (1, 512).
    longest: tuple[int, int] | None = None

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of the variable's arrays."""
        dtype = BY_NAME.get(self.dtype)  # None: a program's dtype that can't be served
        return np.dtype(self.dtype) if dtype is None else dtype.numpy

    @property
    def has_rows(self) -> bool:
        """Whether the first axis is an open batch axis."""
        return self.shape[:1] == (-1,)


def sized(shape: Sequence[int], rows: int, length: int) -> tuple[int, ...]:
    """Return a shape with `rows` on an open batch axis and `length` on other open axes.

    Of a recurrent state the batch axis is the second: [layers, batch, width].
    """
    state = len(shape) > 2 and shape[0] > 1
    batch_axis = 1 if state else 0
    lengths = (rows if axis == batch_axis else length for axis in range(len(shape)))
    return tuple(dim if dim >= 0 else size for dim, size in zip(shape, lengths, strict=True))


def read_signature(conf: Path, *, batched: bool = True) -> tuple[tuple[Variable, ...], tuple[Variable, ...]]:
    """Read the feeds and fetches of a prototxt. Raises ConfigError with file and position.

    A batch axis that is left out is added, as Paddle Serving means it; not where `batched` is false.
    """
    message = read_prototxt(conf)
    return _variables(message, "feed", conf, batched), _variables(message, "fetch", conf, batched)


def signature_text(feeds: Sequence[Variable], fetches: Sequence[Variable]) -> str:
    """Format feeds and fetches as prototxt. Raises ConfigError for a dtype without a number."""

    def entry(variable: Variable, kind: str) -> dict[str, Sequence[object]]:
        dtype = BY_NAME.get(variable.dtype)
        if dtype is None or dtype.paddle is None:
            names = ", ".join(dtype.name for dtype in BY_PADDLE.values())
            raise ConfigError(f"{kind} {variable.alias!r}: dtype {variable.dtype!r} is not one of {names}")
        return {
            "name": [variable.name],
            "alias_name": [variable.alias],
            "is_lod_tensor": [variable.is_lod],
            f"{kind}_type": [dtype.paddle],
            "shape": list(variable.shape),
        }

    return format_prototxt(
        {"feed_var": [entry(v, "feed") for v in feeds], "fetch_var": [entry(v, "fetch") for v in fetches]}
    )


def _variables(
    message: Message, kind: Literal["feed", "fetch"], conf: Path, batched: bool
) -> tuple[Variable, ...]:
    unknown = message.keys() - {"feed_var", "fetch_var"}
    if unknown:
        raise ConfigError(f"{conf}: unknown field {min(unknown)!r}; a model has feed_var and fetch_var")
    entries = message.get(f"{kind}_var", [])
    if not 0 < len(entries) <= MAX_VARIABLES:
        raise ConfigError(f"{conf}: {len(entries)} entries of {kind}_var, expected 1 to {MAX_VARIABLES}")
    variables = tuple(
        _variable(entry, kind, f"{conf}: {kind}_var {i}", batched) for i, entry in enumerate(entries)
    )
    for what in ("name", "alias"):
        values: set[str] = set()
        for variable in variables:
            value: str = getattr(variable, what)
            if value in values:
                raise ConfigError(f"{conf}: two entries of {kind}_var have the {what} {value!r}")
            values.add(value)
    return variables


def _variable(entry: object, kind: str, where: str, batched: bool) -> Variable:
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} is not a message in braces")
    type_field = f"{kind}_type"
    unknown = entry.keys() - {"name", "alias_name", "is_lod_tensor", type_field, "shape"}
    if unknown:
        raise ConfigError(f"{where}: unknown field {min(unknown)!r}")
    name = _single(entry, "name", str, "", where)
    alias = _single(entry, "alias_name", str, "", where) or name
    if not alias:
        raise ConfigError(f"{where} has no name")
    number = _single(entry, type_field, int, 0, where)  # proto2's default
    if number not in BY_PADDLE:
        numbers = ", ".join(f"{n} {dtype.name}" for n, dtype in BY_PADDLE.items())
        raise ConfigError(f"{where} ({alias}): {type_field} {number} is not one of {numbers}")
    is_lod = _single(entry, "is_lod_tensor", bool, False, where)
    shape = _shape(entry, f"{where} ({alias})")
    if batched and shape[:1] != (-1,):  # Paddle Serving leaves the batch axis out or stores it as -1
        shape = (-1, *shape)
    return Variable(name or alias, alias, BY_PADDLE[number].name, shape, is_lod)


def _single(entry: Message, key: str, kind: type[T], default: T, where: str) -> T:
    values = entry.get(key)
    if not values:
        return default
    value = values[-1]  # text format: the last one counts
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{where}: {key} is {value!r}, expected {kind.__name__}")
    return value


def _shape(entry: Message, where: str) -> tuple[int, ...]:
    dims = [dim for dim in entry.get("shape", []) if isinstance(dim, int) and not isinstance(dim, bool)]
    if len(dims) != len(entry.get("shape", [])) or any(dim < -1 for dim in dims):
        raise ConfigError(f"{where}: shape {entry['shape']} is not a list of lengths, -1 for any")
    if len(dims) > MAX_RANK:
        raise ConfigError(f"{where}: shape has {len(dims)} axes, at most {MAX_RANK} are served")
    return tuple(dims)

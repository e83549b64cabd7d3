"""The typed encoding of values between Ops: a msgpack tree with its large arrays beside it.

str, bytes, numbers, bool, None, lists, tuples, dicts, ndarrays and NumPy scalars keep their type. Anything
else is pickled, and only where `allow_pickle` says that one of our workers made it. The front encodes the
values of clients without pickle, so no byte from outside is ever unpickled.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeAlias

import msgpack
import msgspec
import numpy as np
from msgspec.structs import astuple

Part: TypeAlias = bytes | bytearray | memoryview

INLINE_BYTES = 4096  # smaller arrays stay in the tree: a part of its own costs about as much as copying 4 KB
_MAX_NESTED = 32  # tuples in one another: `decode` takes 40 KB of the stack for each

_TUPLE, _ARRAY, _ARRAY_PART, _SCALAR, _PICKLE, _UNREAD = 1, 2, 3, 4, 5, 6


class NotEncodable(TypeError):
    """A value has no typed encoding and can't be pickled either; the message names its type."""


class Unread(msgspec.Struct, eq=False):
    """A value that the worker decodes, so that the front need not.

    Dialects derive their own classes, whose further fields are plain values.
    """

    data: Part  # as the client wrote it
    kind: ClassVar[str]  # name of the class in messages

    def decode(self) -> Any:
        """Return the value. Raises InvalidInput for data that can't be decoded."""
        raise NotImplementedError


_unread: dict[str, type[Unread]] = {}


def will_read(kinds: Iterable[type[Unread]]) -> None:
    """Have `decode` read these from now on: to be called in a worker, before it is given requests."""
    _unread.update((kind.kind, kind) for kind in kinds)


def encode(value: object, *, allow_pickle: bool) -> list[Part]:
    """The value as parts: first the tree, then the arrays over `INLINE_BYTES`, not copied.

    Raises NotEncodable for what has no encoding.
    """
    return _of_thread.encoding.encode(value, allow_pickle)


def decode(parts: Sequence[Part], *, allow_pickle: bool) -> Any:
    """Rebuild a value. Arrays view the parts they were given, and are writable where those are.

    An `Unread` is read here. Raises ValueError for bytes that `encode` did not make and for one of a kind
    that `will_read` was not told of, and InvalidInput for what it holds.
    """
    return _Decoding(parts, allow_pickle).unpack(parts[0])


class _Decoding:
    """One value on its way from parts."""

    __slots__ = ("allow_pickle", "parts")

    def __init__(self, parts: Sequence[Part], allow_pickle: bool) -> None:
        self.parts = parts
        self.allow_pickle = allow_pickle

    def unpack(self, data: Part) -> Any:
        return msgpack.unpackb(
            data,
            ext_hook=self._extension,
            strict_map_key=False,
            unicode_errors="surrogatepass",
            use_list=True,
        )

    def _extension(self, code: int, data: bytes) -> Any:
        unpack, part = self.unpack, self._part
        if code == _TUPLE:
            return tuple(unpack(data))
        if code == _ARRAY:
            dtype, shape, raw = unpack(data)
            return np.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)
        if code == _ARRAY_PART:
            dtype, shape, index = unpack(data)
            return np.frombuffer(part(index), dtype=dtype).reshape(shape)
        if code == _SCALAR:
            dtype, raw = unpack(data)
            return np.frombuffer(raw, dtype=dtype)[0]
        if code == _UNREAD:
            index, kind, *fields = unpack(data)
            if kind not in _unread:
                raise ValueError(f"a value is of the kind {kind!r}, which nothing here reads")
            return _unread[kind](part(index), *fields).decode()
        if code == _PICKLE and self.allow_pickle:
            return pickle.loads(data)  # noqa: S301 - made by a worker of ours, see the module's first lines
        raise ValueError(f"unknown extension {code} in a value")

    def _part(self, index: int) -> Part:
        if not 0 < index < len(self.parts):
            raise ValueError(f"a value points to part {index} of {len(self.parts)}")
        return self.parts[index]


class _Encoding:
    """One value after another on its way to parts. Nothing of it stays: large parts are gone when it is."""

    __slots__ = ("_allow_pickle", "_depth", "_pack", "_pack_plain", "_parts")

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._allow_pickle = False
        self._depth = 0  # of tuples in one another
        self._pack = _packer(self._extension).pack
        self._pack_plain = _packer(None).pack  # of what an extension holds: `_pack` is busy

    def encode(self, value: object, allow_pickle: bool) -> list[Part]:
        self._allow_pickle = allow_pickle
        parts: list[Part] = [b""]
        self._parts = parts
        try:
            parts[0] = self._pack(value)
        except (OverflowError, ValueError, RecursionError) as exc:  # ints over 64 bits, deep nesting
            if not allow_pickle:
                raise NotEncodable(f"a {type(value).__name__} can't be passed on: {exc}") from exc
            return [_pack_ext(_PICKLE, _pickled(value))]
        finally:
            self._parts = []
        return parts

    def _extension(self, value: object) -> msgpack.ExtType:
        parts, plain = self._parts, self._pack_plain
        if type(value) is tuple:
            return msgpack.ExtType(_TUPLE, self._pack_nested(list(value)))
        if type(value) is np.ndarray and value.dtype.kind not in "OV":
            flat = np.ascontiguousarray(value)
            if flat.nbytes < INLINE_BYTES:
                return msgpack.ExtType(_ARRAY, plain([flat.dtype.str, list(value.shape), flat.tobytes()]))
            parts.append(flat.reshape(-1).view(np.uint8).data)
            return msgpack.ExtType(_ARRAY_PART, plain([flat.dtype.str, list(value.shape), len(parts) - 1]))
        if isinstance(value, np.generic) and value.dtype.kind not in "OV" and value.dtype.itemsize:
            return msgpack.ExtType(_SCALAR, plain([value.dtype.str, value.tobytes()]))
        if isinstance(value, Unread):
            data, *fields = astuple(value)
            parts.append(data)
            return msgpack.ExtType(_UNREAD, plain([len(parts) - 1, value.kind, *fields]))
        if self._allow_pickle:
            return msgpack.ExtType(_PICKLE, _pickled(value))
        raise NotEncodable(f"a {type(value).__name__} can't be passed on")

    def _pack_nested(self, values: list[object]) -> bytes:
        if self._depth == _MAX_NESTED:
            raise ValueError(f"tuples are nested over {_MAX_NESTED} deep")
        self._depth += 1
        try:
            packed: bytes = _packer(self._extension).pack(values)
        finally:
            self._depth -= 1
        return packed


def _packer(default: Callable[[object], msgpack.ExtType] | None) -> msgpack.Packer:
    return msgpack.Packer(default=default, strict_types=True, unicode_errors="surrogatepass")


class _OfThread(threading.local):
    """Made once for each thread that encodes: a packer that two share would mix their values."""

    def __init__(self) -> None:
        self.encoding = _Encoding()


_of_thread = _OfThread()


def _pickled(value: object) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except Exception as exc:  # pickle raises whatever the object's own methods raise
        raise NotEncodable(f"a {type(value).__name__} can't be passed between Ops: {exc}") from exc


def _pack_ext(code: int, data: bytes) -> bytes:
    packed: bytes = msgpack.packb(msgpack.ExtType(code, data))
    return packed

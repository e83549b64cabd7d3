"""FRONT PROCESS: scans JSON bodies: limits their depth, and cuts long arrays out of large ones.

Decoding holds the GIL: a body of 60 MB would block the event loop for a second. So a thread replaces each
long array, the data of a tensor, by a short placeholder (stand-in). The result is the outline of the body.
The front decodes the outline, and the worker decodes the arrays. The thread scans in pieces, because NumPy
releases the GIL.
"""

from __future__ import annotations

import asyncio
import codecs
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.config.config_file import Limits
from pipeline.errors import TooLarge
from pipeline.front.dag_run import Request
from pipeline.front.http.connection import HttpRequest
from pipeline.front.http.http_handler import HttpHandler
from pipeline.messages.frames import Part
from pipeline.process.isolation import log_fault

ELEMENTS_PER_TENSOR = 64  # maximum number of brackets, commas and colons of a tensor, without its data
_PIECE_BYTES = 1 << 20
_SHORT_BYTES = 256  # arrays up to this size stay in the outline
_OPEN_ARRAY, _OPEN_OBJECT, _CLOSE, _SEPARATOR, _QUOTE = 1, 2, 3, 4, 5
_KINDS = np.zeros(256, np.uint8)
_KINDS[[ord("["), ord("{"), ord('"')]] = _OPEN_ARRAY, _OPEN_OBJECT, _QUOTE
_KINDS[[ord("]"), ord("}")]] = _CLOSE
_KINDS[[ord(","), ord(":")]] = _SEPARATOR
_JSON_STARTS = (b"{", b"[", b" ", b"\n", b"\r", b"\t")  # bodies that start otherwise are images, or no JSON
_BRACKETS = (b"[", b"]", b"{", b"}")
_MARK = secrets.token_hex(16) + ":"  # random, so that no client can forge a stand-in
_STAND_IN = b'["' + _MARK.encode() + b'%010d"]'
_STAND_IN_BYTES = len(_STAND_IN % 0)

Indexes = npt.NDArray[np.int64]
Kinds = npt.NDArray[np.uint8]


_scanner = ThreadPoolExecutor(1, "json-outline")  # more threads would compete with the event loop for cores
_NEITHER_BRACKET_NOR_QUOTE = bytes(set(range(256)) - set(b'[]{}"'))


class Outline:
    """A JSON text in which short placeholders replace long arrays, which are the data of tensors."""

    def __init__(self, text: bytes, arrays: Sequence[memoryview] = ()) -> None:
        self.text = text  # with the stand-ins
        self._arrays = arrays

    def restore(self, value: bytes | msgspec.Raw) -> Part:
        """Return the original JSON text of a value: the array for a placeholder, otherwise the value itself.

        value: undecoded JSON text of a value in the outline.
        """
        view = memoryview(value)
        if not self._arrays or len(view) != _STAND_IN_BYTES:
            return view
        number = bytes(view[-12:-2])
        if not number.isdigit() or view != _STAND_IN % int(number):
            return view
        return self._arrays[int(number)]

    def find_array(self, value: object) -> memoryview | None:
        """Return the JSON text of the array that a decoded placeholder replaces; None for any other value."""
        if not self._arrays or type(value) is not list or len(value) != 1 or type(value[0]) is not str:
            return None
        number = value[0].removeprefix(_MARK)
        return self._arrays[int(number)] if len(number) == len(value[0]) - len(_MARK) else None


def make_outline(text: bytes | memoryview, limits: Limits, max_elements: int = 0) -> Outline:
    """Replace the long arrays of a JSON text, which are the data of tensors, by short placeholders.

    Replaced are arrays of over 256 bytes at nesting depth 4, and at depth 3 if they are inside an array.
    max_elements: maximum number of brackets, commas and colons outside of these arrays; 0: as many as
    limits.tensors allows. Raises TooLarge (HTTP 413) for more, and for a text that nests deeper than
    limits.json_depth.
    """
    return _Scan(
        memoryview(text), limits.json_depth, max_elements or ELEMENTS_PER_TENSOR * limits.tensors
    ).run()


class Scan:
    """The result of scanning a JSON body in a thread: its outline, or the reason for its rejection.

    It stores no exception, because the traceback would keep the body alive in a reference cycle.
    """

    def __init__(self, outline: Outline | None, reason: str = "") -> None:
        self._outline = outline
        self._reason = reason

    def result(self) -> Outline:
        """Return the outline. Raises TooLarge (HTTP 413) if the scan rejected the body."""
        if self._outline is None:
            raise TooLarge(self._reason)
        return self._outline


def outline_aside(body: bytes, limits: Limits, then: Callable[[Scan], object], max_elements: int = 0) -> None:
    """Make the outline of a JSON body in a thread. Then call `then` with the result in the event loop.

    Returns immediately. max_elements: see `make_outline`.
    """
    loop = asyncio.get_running_loop()
    scanning = loop.run_in_executor(_scanner, partial(_scan, body, limits, max_elements))
    scanning.add_done_callback(lambda done: then(done.result()))


def _scan(body: bytes, limits: Limits, max_elements: int) -> Scan:
    try:
        return Scan(make_outline(body, limits, max_elements))
    except TooLarge as exc:
        return Scan(None, exc.message)
    except Exception:
        log_fault(make_outline)
        return Scan(None, "the body can't be scanned")


class ScanFirst(HttpHandler):
    """Base class of HTTP handlers that scan a large JSON body in a thread before they decode it.

    A subclass that decodes the outline instead of the whole body overrides `_read_outline`.
    """

    _limits: Limits

    def _scan_first(self, request: HttpRequest) -> bool:
        if request.body[:1] not in _JSON_STARTS:
            return False
        outline_aside(request.body, self._limits, partial(self._take_scanned, request))
        return True

    def _take_scanned(self, request: HttpRequest, scan: Scan) -> None:
        self.handle(request, lambda: self._read_outline(request, scan.result()))

    def _read_outline(self, request: HttpRequest, outline: Outline) -> Request | None:
        """Return the inference request in a large body that has been scanned. Raises ServingError.

        This default decodes the whole body with `_read`. The scan has checked its depth and number of values.
        """
        return self._read(request)


class _Scan:
    """One scan of a JSON text. It finds the long arrays, in pieces of 1 MiB."""

    def __init__(self, text: memoryview, max_depth: int, max_elements: int) -> None:
        self._text = text
        self._max_depth = max_depth
        self._max_elements = max_elements
        self._count = 0  # elements outside of cut arrays
        self._in_string = False
        self._depth = 0
        self._in_array = False  # whether the open value of the second level is an array
        self._cut_from = -1  # start of the array that is being cut; -1 for none
        self._cut_level = 0  # depth of the values of this array
        self._spans: list[tuple[int, int]] = []  # start and end of each cut array

    def run(self) -> Outline:
        start = 0
        while start < len(self._text):
            start = self._scan_piece(start)
        parts: list[Part] = []
        done = 0
        for number, (begin, end) in enumerate(self._spans):
            parts += [self._text[done:begin], _STAND_IN % number]
            done = end
        parts.append(self._text[done:])
        return Outline(b"".join(parts), [self._text[begin:end] for begin, end in self._spans])

    def _scan_piece(self, start: int) -> int:
        """Scan the piece of text that begins at `start`, and return its end, the start of the next piece.

        A piece never ends between a backslash and the character that it escapes.
        """
        piece = bytes(self._text[start : start + _PIECE_BYTES])
        if self._is_plain(piece):
            return start + len(piece)
        if b"\\" in piece:
            if (len(piece) - len(piece.rstrip(b"\\"))) % 2 and len(piece) > 1:
                piece = piece[:-1]
            plain = piece.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
        else:
            plain = piece
        kinds = _KINDS[np.frombuffer(plain, np.uint8)]
        at = np.flatnonzero(kinds)
        kinds = kinds[at]
        quotes = kinds == _QUOTE
        inside = np.logical_xor.accumulate(quotes) ^ self._in_string
        if quotes.size:
            self._in_string = bool(inside[-1])
        outside = ~(inside | quotes)
        self._scan_elements(at[outside] + start, kinds[outside])
        return start + len(piece)

    def _is_plain(self, piece: bytes) -> bool:
        """Return whether a piece needs no scan: it lies in a string, or in an array that is replaced."""
        if b'"' in piece or b"\\" in piece:
            return False
        return self._in_string or (self._cut_from >= 0 and not any(each in piece for each in _BRACKETS))

    def _scan_elements(self, at: Indexes, kinds: Kinds) -> None:
        """Process the brackets, commas and colons outside of strings: check the depth, and find long arrays.

        at, kinds: their offsets in the text, and their kinds, such as _OPEN_ARRAY. Raises TooLarge.
        """
        if not at.size:
            return
        is_open = (kinds == _OPEN_ARRAY) | (kinds == _OPEN_OBJECT)
        is_close = kinds == _CLOSE
        depth = np.cumsum(is_open.view(np.int8) - is_close.view(np.int8), dtype=np.int64) + self._depth
        if depth.max() > self._max_depth:
            deepest = depth.max()
            raise TooLarge(f"the body nests {deepest} levels deep; limits.json_depth is {self._max_depth}")
        self._depth = int(depth[-1])
        if self._cut_from >= 0:
            ends = np.flatnonzero(is_close & (depth == self._cut_level - 1))
            if not ends.size:
                return
            self._spans.append((self._cut_from, int(at[ends[0]]) + 1))
            self._cut_from = -1
            start = ends[0] + 1
            at, kinds, depth = at[start:], kinds[start:], depth[start:]
        self._cut(at, kinds, depth)

    def _cut(self, at: Indexes, kinds: Kinds, depth: Indexes) -> None:
        """Record the arrays of a piece to replace by placeholders, and count the elements outside of them.

        Raises TooLarge for too many elements.
        """
        begins, ends = self._arrays_to_cut(kinds, depth)
        count = at.size
        if begins.size and ends[-1] == at.size:  # the last array continues in the next piece
            count -= int(at.size - begins[-1])
            self._cut_from, self._cut_level = int(at[begins[-1]]), int(depth[begins[-1]])
            begins, ends = begins[:-1], ends[:-1]
        long = at[ends] - at[begins] > _SHORT_BYTES
        begins, ends = begins[long], ends[long]
        self._spans += zip(at[begins].tolist(), (at[ends] + 1).tolist(), strict=True)
        self._count += count - int((ends - begins).sum())
        if self._count > self._max_elements:
            raise TooLarge(
                f"the body has more than {self._max_elements} values beside the data of its tensors; "
                f"limits.tensors allows {ELEMENTS_PER_TENSOR} for each"
            )

    def _arrays_to_cut(self, kinds: Kinds, depth: Indexes) -> tuple[Indexes, Indexes]:
        """Return the starts and ends of the arrays to replace, as indexes into `kinds`.

        The end of an array that continues in the next piece is the size of `kinds`.
        """
        seconds = np.flatnonzero((kinds != _CLOSE) & (kinds != _SEPARATOR) & (depth == 2))
        third, third_ends = _arrays(kinds, depth, 3)
        fourth, fourth_ends = _arrays(kinds, depth, 4)
        of_arrays = np.concatenate(([self._in_array], kinds[seconds] == _OPEN_ARRAY))
        within = of_arrays[np.searchsorted(seconds, third)]
        third, third_ends = third[within], third_ends[within]
        self._in_array = bool(of_arrays[-1])
        if third.size:  # arrays within a cut array need no cut
            last = np.searchsorted(third, fourth) - 1
            free = (last < 0) | (third_ends[last] < fourth)
            fourth, fourth_ends = fourth[free], fourth_ends[free]
        begins, ends = np.concatenate((third, fourth)), np.concatenate((third_ends, fourth_ends))
        order = np.argsort(begins)
        return begins[order], ends[order]


def _arrays(kinds: Kinds, depth: Indexes, level: int) -> tuple[Indexes, Indexes]:
    """Return the starts and ends of the arrays whose elements have the nesting depth `level`.

    Starts and ends are indexes into `kinds`. The end of an array that is not closed is the size of `kinds`.
    """
    begins = np.flatnonzero((kinds == _OPEN_ARRAY) & (depth == level))
    closes = np.append(np.flatnonzero((kinds == _CLOSE) & (depth == level - 1)), kinds.size)
    return begins, closes[np.searchsorted(closes, begins)]


def check_depth(body: bytes, limit: int) -> None:
    """Raise TooLarge (HTTP 413) if a JSON body nests deeper than `limit` levels.

    A check takes about 10 ns per byte. Bodies with few brackets, or without a bracket at the start, are not
    scanned.
    """
    if body.count(b"[") + body.count(b"{") <= limit:  # each level of nesting has a bracket
        return
    if not body.removeprefix(codecs.BOM_UTF8).lstrip(b" \t\r\n").startswith((b"[", b"{")):
        return
    if b"\\" not in body:
        body = body.translate(None, _NEITHER_BRACKET_NOR_QUOTE)
    _, depth = nesting(body)
    if depth.size and depth.max() > limit:
        raise TooLarge(
            f"JSON nesting depth exceeds maximum allowed limit ({limit}): the body nests {depth.max()} "
            f"levels deep; limits.json_depth is {limit}"
        )


def check_objects(body: bytes, limit: int) -> None:
    """Raise TooLarge (HTTP 413) if a JSON body has more than `limit` objects.

    An empty object has two bytes in the body, but takes much more memory when decoded.
    """
    if body.count(b"{") <= limit:
        return
    outside, _ = nesting(body)
    count = int((outside & (np.frombuffer(body, np.uint8) == ord("{"))).sum())
    if count > limit:
        raise TooLarge(f"the body has {count} objects; limits.tensors is {limit - 1}")


def nesting(text: bytes) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int32]]:
    """Return two arrays over the bytes of a JSON text: whether a byte is outside strings, and its depth."""
    plain = np.frombuffer(text.replace(b"\\\\", b"  ").replace(b'\\"', b"  "), np.uint8)
    outside = np.bitwise_xor.accumulate((plain == ord('"')).view(np.uint8)) == 0
    opened = outside & ((plain == ord("[")) | (plain == ord("{")))
    closed = outside & ((plain == ord("]")) | (plain == ord("}")))
    return outside, np.cumsum(opened.view(np.int8) - closed.view(np.int8), dtype=np.int32)

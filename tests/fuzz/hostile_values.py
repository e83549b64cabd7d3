"""Values that hooks, models and clients may bring: arrays of every kind, objects that raise, exceptions.

Each is made by a function, so that every run of a request has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pipeline.errors import InvalidInput, MissingFeed, ModelFailed, ProductError, ServingError

HUGE = 1 << 45  # elements: more memory than there is addresses for, so that a copy fails at once


class Unspeakable:
    """An object whose every method raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __len__(self) -> int:
        raise SystemExit("no length")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __iter__(self) -> Iterator[Any]:
        raise KeyboardInterrupt("no elements")

    def __reduce__(self) -> str:
        raise RuntimeError("no pickle")


class Faceless:
    """An object that isinstance can't look at."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("no class")


class BrokenList(list[Any]):
    def __len__(self) -> int:
        raise RuntimeError("no length")

    __bool__ = __len__  # type: ignore[assignment]


class BrokenDict(dict[str, Any]):
    def items(self) -> Any:
        raise SystemExit("no items")

    keys = values = __iter__ = items  # type: ignore[assignment]


class BrokenArray(np.ndarray[Any, Any]):
    @property
    def shape(self) -> Any:
        raise RuntimeError("no shape")


class Untellable(ServingError):
    """A refusal of the app's own class, without a single attribute that can be sent."""

    err_no = http_status = grpc_code = "none"  # type: ignore[assignment]
    kind = object()  # type: ignore[assignment]

    @property
    def message(self) -> str:
        raise SystemExit("no message")

    @property  # type: ignore[override]
    def told(self) -> bool:
        raise RuntimeError("not told")

    @property  # type: ignore[override]
    def clients(self) -> bool:
        raise RuntimeError("nobody's")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    __str__ = __repr__ = Unspeakable.__repr__  # type: ignore[assignment]


class Silent(BaseException):
    __str__ = __repr__ = Unspeakable.__repr__  # type: ignore[assignment]


class Numberless(InvalidInput):
    err_no = 1 << 70
    http_status = 204
    kind = 5  # type: ignore[assignment]
    clients = "yes"  # type: ignore[assignment]


def _cyclic() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _generator() -> Iterator[int]:
    yield 1


OBJECTS: list[Callable[[], Any]] = [
    lambda: None, lambda: 5, lambda: "text", lambda: b"\xff", lambda: object(), Unspeakable, Faceless,
    BrokenList, BrokenDict, _cyclic, _generator, lambda: _nested(3), lambda: _nested(3000), lambda: {1, 2},
    lambda: 1 << 200, lambda: float("nan"), lambda: "\ud800", list, lambda: [None], lambda: (),
    dict, lambda: {5: 6}, lambda: {"a": Unspeakable()}, lambda: {"a": _cyclic()}, lambda: Exception,
    lambda: (None, None, "", "", 0), lambda: [Faceless()], lambda: np.float32(1), lambda: lambda: None,
]  # fmt: skip
EXCEPTIONS: list[Callable[[], BaseException]] = [
    lambda: ValueError("wrong"), lambda: KeyError("missing"), lambda: SystemExit(3), KeyboardInterrupt,
    GeneratorExit, StopIteration, lambda: RecursionError("deep"), MemoryError, Silent, Untellable,
    lambda: Numberless("\ud800"), lambda: ServingError(), lambda: InvalidInput("bad"),
    lambda: MissingFeed("none", "ids"), lambda: ModelFailed("no"), lambda: ProductError("no", 51),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"),
    lambda: BaseExceptionGroup("both", [SystemExit(1), ValueError("x")]),
]  # fmt: skip
EMPTY: list[Callable[[int, int], Any]] = [  # by rows and length
    lambda n, k: np.ones((n, 0), np.int64),
    lambda n, k: np.ones((0, k), np.int64),
    lambda n, k: np.ones((0, 0), np.int64),
    lambda n, k: np.ones((n, k, 0), np.int64),
    lambda n, k: np.empty((1, 0, HUGE), np.int64),
]
ARRAYS: list[Callable[[int, int], Any]] = [
    *EMPTY,
    lambda n, k: np.ones((n, k), np.int64),
    lambda n, k: np.ones(n, np.int64),
    lambda n, k: np.array(1),
    lambda n, k: np.ones((n, k, 1), np.int64),
    lambda n, k: np.ones((n, k + 1), np.int64),
    lambda n, k: np.ones((n + 1, k), np.int64),
    lambda n, k: np.ones((n, k), np.int32),
    lambda n, k: np.ones((n, k), ">i8"),
    lambda n, k: np.full((n, k), 1 << 63, np.uint64),
    lambda n, k: np.full((n, k), 0.5),
    lambda n, k: np.full((n, k), np.nan),
    lambda n, k: np.full((n, k), np.inf, np.float32),
    lambda n, k: np.ones((n, k), np.complex64),
    lambda n, k: np.ones((n, k), bool),
    lambda n, k: np.ones((n, k), object),
    lambda n, k: np.full((n, k), "1", object),
    lambda n, k: np.full((n, k), None, object),
    lambda n, k: np.full((n, k), Unspeakable(), object),
    lambda n, k: np.full((n, k), "7"),
    lambda n, k: np.full((n, k), b"x"),
    lambda n, k: np.zeros((n, k), "datetime64[s]"),
    lambda n, k: np.zeros((n, k), [("a", "<i8")]),
    lambda n, k: np.ma.masked_array(np.ones((n, k), np.int64), mask=True),
    lambda n, k: np.ones((n, k), np.int64).view(BrokenArray),
    lambda n, k: np.broadcast_to(np.int64(1), (1, HUGE)),
    lambda n, k: [["1"] * k] * n,
    lambda n, k: ["a"] * n,
    lambda n, k: [1, 2],
    lambda n, k: [[1], [2, 3]],
]  # fmt: skip

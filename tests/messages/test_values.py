"""What passes between Ops keeps its type and content; what a client sent can't become a pickle."""

from __future__ import annotations

import collections
import gc
import pickle
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import FrameType
from typing import Any

import msgpack
import numpy as np
import pytest

from pipeline.messages.frames import INLINE_BYTES, NotEncodable, Part, Unread, decode, encode, will_read
from tests.support.service_process import PATIENCE_S


@dataclass
class Box:
    content: Any


class Refuses:
    def __reduce__(self) -> Any:
        raise ValueError("not this one")


def passed_on(value: object) -> Any:
    """As a worker receives it: the tree as bytes, large parts as writable copies."""
    tree, *arrays = encode(value, allow_pickle=True)
    return decode([bytes(tree), *map(bytearray, arrays)], allow_pickle=True)


PLAIN = [
    None, True, 0, -1, 2**63 - 1, -(2**63), 2**64 - 1, 0.1, float("inf"), "", "国足", "\ud800", b"", b"\xff",
    [], [1, [2, ["a"]]], {}, {"a": {"b": None}}, {1: 2, None: 3, b"c": 4, (1, 2): 5, 2.5: 6},
]  # fmt: skip
TUPLES = [(), (1,), (1, (2, [3, ()])), [(1, 2)], {"a": (1,)}]
OTHERS = [
    2**64, -(2**80), 1 + 2j, {1, 2}, frozenset("a"), range(3), Box([1, Box("x")]), [(Box(1), 2)],
    collections.OrderedDict(b=1, a=2),
]  # fmt: skip
SCALARS = [
    np.int8(-5), np.uint64(2**64 - 1), np.float16(0.1), np.float32(0.1), np.float64(0.1), np.bool_(True),
    np.complex64(1j), np.str_("国"), np.bytes_(b"a\x00b"), np.datetime64("2020-02-29", "D"), np.str_(""),
    np.bytes_(b""),
]  # fmt: skip
ARRAYS = [
    np.array(3.5),
    np.array([]),
    np.zeros((2, 0, 3), "float32"),
    np.arange(6, dtype="int8").reshape(2, 3),
    np.array([True, False]),
    np.array(["", "国足"]),
    np.array([b"ab", b""]),
    np.array(["2020-02-29"], "datetime64[D]"),
    np.arange(3, dtype=">i4"),
    np.arange(INLINE_BYTES - 1, dtype="uint8"),
    np.arange(INLINE_BYTES, dtype="uint8"),
    np.arange(INLINE_BYTES + 1, dtype="uint8"),
    np.arange(20_000.0).reshape(20, 10, 100),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(20_000).reshape(100, 200).T,
    np.arange(20_000)[::-3],
    np.broadcast_to(np.arange(3000), (2, 3000)),
    np.array([Box(1), None], object),
    np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
    np.ma.array([1, 2], mask=[False, True]),
]


@pytest.mark.parametrize(
    "value",
    PLAIN + TUPLES + OTHERS + SCALARS,
    ids=lambda v: f"{type(v).__name__} {v!a:.30}".replace("\\", "/"),
)
def test_a_value_keeps_type_and_content(value: object) -> None:
    received = passed_on(value)
    assert type(received) is type(value)
    assert received == value


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{type(a).__name__} {a.dtype} {a.shape}")
def test_an_array_keeps_dtype_shape_and_content_and_is_writable(array: np.ndarray) -> None:
    received = passed_on(array)
    assert (type(received), received.dtype, received.shape) == (type(array), array.dtype, array.shape)
    assert np.array_equal(received, array)
    assert received.flags.writeable


def test_not_a_number_stays_one() -> None:
    assert np.isnan(passed_on(float("nan")))
    assert np.isnan(passed_on(np.float32("nan")))


@pytest.mark.parametrize("depth", [30, 250, 600])
@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: (v,), lambda v: {"a": v}])
def test_deep_nesting_is_passed_on(wrap: Any, depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    received = passed_on(value)
    for _ in range(depth):
        assert type(received) is type(value)
        received = received["a"] if isinstance(received, dict) else received[0]
    assert received == 1


def test_large_arrays_inside_a_value_are_parts_and_not_copied() -> None:
    large, small = np.arange(5000.0), np.arange(5.0)
    tree, *parts = encode({"a": [large, {"b": (small, large[::2])}]}, allow_pickle=True)
    assert len(tree) < 1000
    assert [len(part) for part in parts] == [large.nbytes, large.nbytes // 2]
    assert np.shares_memory(np.frombuffer(parts[0]), large)


def test_two_equal_arrays_arrive_as_two() -> None:
    array = np.arange(5000)
    one, other = passed_on([array, array])
    one[0] = 99
    assert other[0] == 0


@pytest.mark.parametrize("value", [Refuses(), [{"a": Refuses()}], (Refuses(),), lambda: None])
def test_what_cannot_be_pickled_is_refused_with_its_type(value: object) -> None:
    with pytest.raises(NotEncodable, match=r"a (Refuses|function) can't be passed between Ops"):
        encode(value, allow_pickle=True)


@pytest.mark.parametrize("value", [Box(1), {1}, 2**70, np.array([None]), 1j, {"a": [Box(1)]}])
def test_without_pickle_only_typed_values_are_encoded(value: object) -> None:
    with pytest.raises(NotEncodable):
        encode(value, allow_pickle=False)


def test_a_pickle_in_bytes_is_bytes() -> None:
    """The codec of the extension is chosen by us, never by what a str or bytes holds."""
    sent = pickle.dumps(Box(1))
    assert passed_on({"a": sent, "b": sent.decode("latin-1")})["a"] == sent
    extension = msgpack.packb(msgpack.ExtType(5, sent))
    assert passed_on(extension) == extension


def test_a_pickle_is_refused_where_none_is_allowed() -> None:
    with pytest.raises(ValueError, match="unknown extension 5"):
        decode(encode(Box(1), allow_pickle=True), allow_pickle=False)


def test_a_thread_in_the_middle_of_a_value_disturbs_no_other_thread() -> None:
    """Threads of one worker encode at the same time; a tuple makes the packer call back into Python."""
    in_the_middle, go_on = threading.Event(), threading.Event()

    def pause(frame: FrameType, event: str, _: object) -> None:
        called_by = frame.f_back.f_code if frame.f_back else None
        if event == "call" and called_by is encode.__code__ and not in_the_middle.is_set():
            in_the_middle.set()
            go_on.wait(PATIENCE_S)

    def slow() -> Any:
        sys.setprofile(pause)
        return passed_on({"text": "of the slow one", "pair": (1, 2)})

    with ThreadPoolExecutor(1) as pool:
        slower = pool.submit(slow)
        assert in_the_middle.wait(PATIENCE_S)
        assert passed_on({"text": "of the fast one"}) == {"text": "of the fast one"}
        go_on.set()
        assert slower.result() == {"text": "of the slow one", "pair": (1, 2)}


def test_an_unknown_extension_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown extension 9"):
        decode([msgpack.packb(msgpack.ExtType(9, b""))], allow_pickle=True)


def test_an_array_is_gone_with_its_value_and_waits_for_no_garbage_collector() -> None:
    array = np.zeros(INLINE_BYTES, np.float32)
    gone = weakref.ref(array)
    gc.disable()
    try:
        parts = encode({"x": array, "pair": (1, array)}, allow_pickle=False)
        del array, parts
        assert gone() is None
    finally:
        gc.enable()


class Repeated(Unread):
    """A text that the worker repeats."""

    kind = "tests repeated"
    times: int
    between: str

    def decode(self) -> str:
        return self.between.join([bytes(self.data).decode()] * self.times)


class Unknown(Unread):
    kind = "tests unknown"

    def decode(self) -> str:
        raise AssertionError("never decoded")


def test_an_unread_value_is_decoded_where_its_kind_is_known() -> None:
    will_read([Repeated])
    array = np.zeros(INLINE_BYTES, np.uint8)
    value = {"a": array, "b": Repeated(b"x", 2, "-"), "c": (Repeated(b"yz", 3, ""),)}
    parts = encode(value, allow_pickle=False)
    assert [bytes(part) for part in parts[2:]] == [b"x", b"yz"]
    received = decode(parts, allow_pickle=False)
    assert (received["b"], received["c"]) == ("x-x", ("yzyzyz",))


def test_an_unread_value_of_another_kind_is_refused() -> None:
    parts = encode(Unknown(b""), allow_pickle=False)
    with pytest.raises(
        ValueError, match=r"^a value is of the kind 'tests unknown', which nothing here reads$"
    ):
        decode(parts, allow_pickle=False)


@pytest.mark.parametrize("index", [0, 2, -1])
def test_a_value_that_points_outside_its_parts_is_refused(index: int) -> None:
    tree = msgpack.packb(msgpack.ExtType(3, msgpack.packb(["|u1", [4], index])))
    with pytest.raises(ValueError, match=rf"^a value points to part {index} of 2$"):
        decode([tree, bytes(4)], allow_pickle=False)


def test_an_array_below_the_size_of_a_part_stays_in_the_tree() -> None:
    for size, count in ((INLINE_BYTES - 1, 1), (INLINE_BYTES, 2)):
        assert len(encode(np.zeros(size, np.uint8), allow_pickle=False)) == count


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2**64, "a int can't be passed on"),
        ([Box(1)], "a Box can't be passed on"),
        (np.array([None]), "a ndarray can't be passed on"),
    ],
)
def test_a_value_without_a_typed_encoding_is_refused_by_its_type(value: object, message: str) -> None:
    with pytest.raises(NotEncodable) as refused:
        encode(value, allow_pickle=False)
    assert str(refused.value).startswith(message)


def test_tuples_may_be_nested_so_deep_and_no_deeper_without_pickle() -> None:
    def nested(depth: int) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = (value,)
        return value

    for _ in range(2):  # one refusal has no effect on the next value
        assert decode(encode(nested(32), allow_pickle=False), allow_pickle=False) == nested(32)
        with pytest.raises(
            NotEncodable, match=r"^a tuple can't be passed on: tuples are nested over 32 deep$"
        ):
            encode(nested(33), allow_pickle=False)
    side_by_side = [nested(2) for _ in range(100)]
    assert decode(encode(side_by_side, allow_pickle=False), allow_pickle=False) == side_by_side


@pytest.mark.parametrize("value", ["\ud800", ("\ud800",), np.float32(0.5), np.str_("国"), np.array(["国"])])
def test_values_of_clients_need_no_pickle(value: Any) -> None:
    received = decode(encode(value, allow_pickle=False), allow_pickle=False)
    assert type(received) is type(value)
    assert received == value


def test_a_scalar_of_several_fields_keeps_them() -> None:
    scalar = np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")])[0]
    received = passed_on(scalar)
    assert (received.dtype, received["a"], received["b"]) == (scalar.dtype, 1, 2.0)


def test_a_thread_that_has_encoded_nothing_yet_encodes_every_kind() -> None:
    value = [(1, (2,)), np.arange(3), np.arange(5000), np.float32(1.5)]

    def encode_in_thread() -> list[Part]:
        with pytest.raises(NotEncodable):
            encode(Box(1), allow_pickle=False)
        return encode(value, allow_pickle=False)

    with ThreadPoolExecutor(1) as pool:
        parts = pool.submit(encode_in_thread).result()
    received = decode(parts, allow_pickle=False)
    assert received[0] == value[0]
    assert all(np.array_equal(*pair) for pair in zip(received[1:], value[1:], strict=True))

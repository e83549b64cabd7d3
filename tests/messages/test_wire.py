"""Frames arrive whole and in order, however the socket cuts them, over shared memory and beside it."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator

import msgspec
import pytest

from pipeline.messages.frames import (
    ARENA_BYTES,
    ARENA_BYTES_FROM,
    FRAME_LIMIT,
    REGION_BYTES,
    Arena,
    Frame,
    FrameReader,
    Tail,
    create_arena_fd,
    frame,
    reply_region,
    request_region,
    stow,
)
from pipeline.messages.messages import CallMessage, DispatchMessage, Probed
from pipeline.messages.values import INLINE_BYTES, Part

SIZES = [
    0, 1, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, ARENA_BYTES_FROM - 1, ARENA_BYTES_FROM,
    ARENA_BYTES_FROM + 1, 100_000,
]  # fmt: skip


@pytest.fixture
def arena() -> Iterator[Arena]:
    fd = create_arena_fd()
    made = Arena(fd)
    os.close(fd)
    yield made
    made.close()


def sent(parts: list[bytes], arena: Arena | None, dispatch: int = 0) -> bytes:
    tail: list[bytes] = []
    call = CallMessage(0, 1, 0, "", None, "", None, 1.5, [("text", stow(parts, tail))])
    region = request_region(dispatch) if arena else None
    return b"".join(frame(DispatchMessage(dispatch, [call]), tail, arena, region))


def parts_in(received: Frame) -> list[Part]:
    message = received.message
    assert isinstance(message, DispatchMessage)
    ((name, stowed),) = message.calls[0].inputs
    assert name == "text"
    return received.tail.unstow(stowed)


def numbers_of(frames: list[Frame]) -> list[int]:
    return [f.message.id for f in frames if isinstance(f.message, DispatchMessage)]


def parts_of(sizes: list[int], seed: int = 0) -> list[bytes]:
    dice = random.Random(seed)
    return [dice.randbytes(size) for size in sizes]


@pytest.mark.parametrize("shared", [True, False], ids=["with shared memory", "without"])
@pytest.mark.parametrize("chunk", [1, 7, 4096, 1 << 30], ids=lambda size: f"{size} bytes a read")
def test_frames_arrive_whole_however_they_are_cut(arena: Arena, shared: bool, chunk: int) -> None:
    messages = [parts_of([]), parts_of([10]), parts_of([5000]), parts_of([3, 40_000, 9]), parts_of([0])]
    used = arena if shared else None
    reader = FrameReader(used)
    for number, parts in enumerate(messages):
        stream = sent(parts, used, number)
        received = [f for at in range(0, len(stream), chunk) for f in reader.feed(stream[at : at + chunk])]
        assert numbers_of(received) == [number]
        assert parts_in(received[0]) == parts


def test_several_frames_in_one_read_come_out_in_order() -> None:
    stream = b"".join(sent(parts_of([size], size), None, number) for number, size in enumerate(SIZES))
    frames = list(FrameReader(None).feed(stream))
    assert numbers_of(frames) == list(range(len(SIZES)))
    assert [parts_in(f)[0] for f in frames] == [parts_of([s], s)[0] for s in SIZES]


@pytest.mark.parametrize("size", SIZES)
def test_a_part_of_any_size_arrives_and_large_ones_are_writable_copies(arena: Arena, size: int) -> None:
    parts = parts_of([size])
    (whole,) = FrameReader(arena).feed(sent(parts, arena))
    (received,) = parts_in(whole)
    assert received == parts[0]
    if size >= INLINE_BYTES:
        assert isinstance(received, bytearray)
        received[0] ^= 0xFF
        assert bytes(arena.view[:1]) in (parts[0][:1], b"\0")


def test_small_tails_stay_on_the_socket_and_large_ones_in_shared_memory(arena: Arena) -> None:
    assert len(sent(parts_of([ARENA_BYTES_FROM - 1]), arena)) > ARENA_BYTES_FROM - 1
    assert len(sent(parts_of([ARENA_BYTES_FROM]), arena)) < 100
    assert len(sent(parts_of([ARENA_BYTES_FROM]), None)) > ARENA_BYTES_FROM


def test_what_does_not_fit_into_its_region_goes_over_the_socket(arena: Arena) -> None:
    fits, over = bytes(REGION_BYTES), bytes(REGION_BYTES + 1)
    assert len(sent([fits], arena)) < 100
    assert len(sent([over], arena)) > REGION_BYTES
    (whole,) = FrameReader(arena).feed(sent([over], arena))
    assert parts_in(whole) == [over]


def test_replies_of_one_dispatch_follow_each_other_in_its_region_until_it_is_full(arena: Arena) -> None:
    region = reply_region(0)
    offsets = [region.allocate(REGION_BYTES // 3) for _ in range(4)]
    assert offsets[3] == -1
    assert offsets[1] - offsets[0] == offsets[2] - offsets[1] == REGION_BYTES // 3
    assert region.allocate(1) >= 0


def test_dispatches_in_flight_and_their_replies_never_share_memory() -> None:
    regions = [request_region(0), request_region(1), reply_region(0), reply_region(1)]
    starts = sorted(region.allocate(REGION_BYTES) for region in regions)
    assert starts == [number * REGION_BYTES for number in range(4)]
    assert starts[-1] + REGION_BYTES == ARENA_BYTES
    assert request_region(2).allocate(1) == request_region(0).allocate(1)


def test_two_requests_under_way_keep_their_bytes_while_both_are_read(arena: Arena) -> None:
    one, other = parts_of([50_000], 1), parts_of([60_000], 2)
    stream = sent(one, arena, 4) + sent(other, arena, 5)
    received = [parts_in(f) for f in FrameReader(arena).feed(stream)]
    assert received == [one, other]


def test_a_frame_that_announces_more_than_the_limit_is_refused() -> None:
    (whole,) = frame(Probed(""))
    stream = whole[:8] + (FRAME_LIMIT + 1).to_bytes(4, "little") + whole[12:]
    with pytest.raises(ValueError, match="over"):
        list(FrameReader(None).feed(stream))


def test_a_tail_outside_the_arena_is_refused(arena: Arena) -> None:
    (whole,) = frame(Probed(""))
    stream = whole[:8] + (100).to_bytes(4, "little") + (ARENA_BYTES - 99).to_bytes(4, "little") + whole[16:]
    with pytest.raises(ValueError, match="outside its arena"):
        list(FrameReader(arena).feed(stream))


def test_more_parts_than_a_tail_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="10 bytes, 11 were announced"):
        Tail(bytes(10)).unstow([5, 6])


def test_a_dispatch_is_taken_back_only_as_long_as_it_has_not_begun(arena: Arena) -> None:
    arena.note_begin(0)
    assert not arena.taken_back(1)
    arena.take_back(1)
    assert (arena.begun(0), arena.begun(1), arena.begun_requests(1)) == (True, False, 0)
    assert arena.taken_back(1)
    assert not arena.taken_back(2)
    arena.note_begin(2, requests=0)
    assert (arena.begun(2), arena.begun_requests(2), arena.begun_requests(3)) == (True, 0, 0)
    arena.note_begin(2, requests=3)
    assert (arena.begun(2), arena.begun_requests(2), arena.begun_requests(3)) == (True, 3, 0)
    assert arena.begun_requests(1) > 1000, "all of an earlier one"
    arena.take_back(2)
    assert arena.taken_back(2)


@pytest.mark.parametrize(
    "message",
    [[0, "one request"], [0, [[0, 1, 0, 0]]], {"id": 0}, "a text"],
    ids=["no list", "too short", "no array", "a text"],
)
def test_what_is_no_message_of_its_kind_is_refused(message: object) -> None:
    packed = msgspec.msgpack.encode(message)
    header = bytes([DispatchMessage.kind, 0, 0, 0]) + struct.pack("<IIi", len(packed), 0, -1)
    with pytest.raises(ValueError, match="Expected"):
        list(FrameReader(None).feed(header + packed))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="99 is the kind of no message"):
        list(FrameReader(None).feed(bytes([99, 0, 0, 0]) + struct.pack("<IIi", 0, 0, -1)))

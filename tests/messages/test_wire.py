"""Frames arrive whole and in order, however the socket cuts them, over shared memory and beside it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from pipeline.errors import InvalidInput, MalformedBody, ServingError
from pipeline.messages import frames as wire
from pipeline.messages.frames import (
    ARENA_BYTES,
    ARENA_BYTES_FROM,
    FRAME_LIMIT,
    INLINE_BYTES,
    REGION_BYTES,
    Arena,
    Frame,
    FrameReader,
    Part,
    Tail,
    arena_fds,
    create_arena_fd,
    frame,
    reply_region,
    request_region,
    stow,
)
from pipeline.messages.messages import CallMessage, DispatchMessage, Probed, Refusal

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


def test_several_large_parts_lie_one_behind_the_other_in_the_arena(arena: Arena) -> None:
    parts = parts_of([5000, 6000, 7000])
    stream = sent(parts, arena)
    assert bytes(arena.view[:18_000]) == b"".join(parts)
    (whole,) = FrameReader(arena).feed(stream)
    assert parts_in(whole) == parts


@pytest.mark.parametrize("shared", [True, False], ids=["with shared memory", "without"])
def test_the_front_reads_large_parts_as_bytes_which_nothing_can_change(arena: Arena, shared: bool) -> None:
    used = arena if shared else None
    (whole,) = FrameReader(used, writable=False).feed(sent(parts_of([50_000]), used))
    assert type(parts_in(whole)[0]) is bytes


def test_without_a_region_a_frame_goes_over_the_socket(arena: Arena) -> None:
    assert frame(Probed(""), [bytes(5000)], arena)[1:] == [bytes(5000)]
    assert len(frame(Probed(""))) == 1


def test_a_frame_that_has_not_arrived_whole_is_not_read_twice() -> None:
    first, second = sent(parts_of([5000]), None, 1), sent(parts_of([6000]), None, 2)
    reader, stream = FrameReader(None), first + second
    assert numbers_of(list(reader.feed(stream[: len(first) + 100]))) == [1]
    assert reader.halfway
    (rest,) = reader.feed(stream[len(first) + 100 :])
    assert (numbers_of([rest]), parts_in(rest)) == ([2], parts_of([6000]))
    assert not reader.halfway


def test_a_frame_of_the_largest_size_is_awaited_and_a_larger_one_is_refused() -> None:
    (whole,) = frame(Probed(""))
    size = int.from_bytes(whole[4:8], "little")
    largest = whole[:8] + (FRAME_LIMIT - size).to_bytes(4, "little") + whole[12:]
    reader = FrameReader(None)
    assert list(reader.feed(largest)) == []
    assert reader.halfway
    larger = whole[:8] + (FRAME_LIMIT - size + 1).to_bytes(4, "little") + whole[12:]
    with pytest.raises(ValueError, match=rf"^a frame of {FRAME_LIMIT + 1} bytes is over {FRAME_LIMIT}$"):
        list(FrameReader(None).feed(larger))


def test_a_tail_may_end_with_the_arena_and_not_behind_it(arena: Arena) -> None:
    (whole,) = frame(Probed(""))
    for size, fits in ((100, True), (101, False)):
        header = whole[:8] + size.to_bytes(4, "little") + (ARENA_BYTES - 100).to_bytes(4, "little")
        if fits:
            ((_, tail),) = FrameReader(arena).feed(header + whole[16:])
            assert tail.size == size
        for reader in () if fits else (FrameReader(arena), FrameReader(None)):
            with pytest.raises(ValueError, match=r"^a frame points outside its arena$"):
                list(reader.feed(header + whole[16:]))


def test_a_worker_can_not_change_the_size_of_its_arena() -> None:
    fd = create_arena_fd()
    try:
        size = os.fstat(fd).st_size
        assert fd in arena_fds()
        for other in (size - 1, size + 1):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, other)
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    finally:
        os.close(fd)
    assert fd not in arena_fds()


def test_an_arena_names_the_thread_of_its_instance(arena: Arena) -> None:
    assert arena.thread_id == 0
    arena.name_thread(2**40)
    assert arena.thread_id == 2**40
    assert not arena.taken_back(0), "the numbers behind the regions do not overlap"
    assert not arena.begun(0)


def test_a_region_is_filled_from_its_start_again_after_a_reset() -> None:
    region = request_region(1)
    first = region.allocate(1000)
    assert region.allocate(10) == first + 1000
    region.reset()
    assert region.allocate(REGION_BYTES) == first


@pytest.mark.parametrize(
    ("error", "always_status"),
    [(InvalidInput("no text"), False), (MalformedBody("no JSON"), True), (ServingError("broken"), False)],
)
@pytest.mark.parametrize("clients", [True, False])
@pytest.mark.parametrize("logged", [True, False])
def test_a_refusal_is_the_same_error_in_the_other_process(
    error: ServingError, always_status: bool, clients: bool, logged: bool
) -> None:
    error.clients = clients
    packed = msgspec.msgpack.encode(Refusal.from_error(error, logged=logged))
    received = msgspec.msgpack.decode(packed, type=Refusal).error()
    for field in ("message", "err_no", "http_status", "grpc_code"):
        assert getattr(received, field) == getattr(error, field)
    assert received.kind == type(error).__name__
    assert (received.clients, received.logged, received.always_status) == (clients, logged, always_status)


def test_a_refusal_keeps_the_kind_that_an_error_has_and_whether_it_is_logged() -> None:
    error = ServingError("broken \ud800")
    error.kind, error.logged = "Chosen \ud800", True
    refusal = Refusal.from_error(error)
    assert refusal.kind.startswith("Chosen ")
    assert refusal.logged is True
    msgspec.msgpack.encode(refusal)


def test_the_protocol_version_is_a_digest_of_the_files_that_define_the_messages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert re.fullmatch("[0-9a-f]{16}", wire._hash_definitions())
    assert wire._hash_definitions() == wire.PROTOCOL_VERSION
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_bytes(b"x = 1\n")
    second.write_bytes(b"y = 2\n")
    files = tuple(SimpleNamespace(__file__=str(path)) for path in (first, second))
    monkeypatch.setattr(wire, "DEFINITIONS", files)
    assert wire._hash_definitions() == hashlib.sha256(b"x = 1\ny = 2\n").hexdigest()[:16]

"""Trial: one codec in a process of its own, where a crash or a hang in native code is seen, too."""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import struct
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from bench.processes import resident_mb
from tests.fuzz.codecs import CODECS, Codec
from tests.fuzz.messages import kept
from tests.fuzz.mutation import MAX_BYTES, Mutator

HANG_S = 20.0  # longer than any input may take
GROWTH_MB = 48.0  # what a process may gain after its first tenth, its allocator's caches among it
_HEADER = struct.Struct("<QI")  # inputs begun, bytes of the one under way
_POLL_S = 0.2


@dataclass
class Result:
    """refused and answered: how many; crashes: what was raised where, with the first input for it."""

    name: str
    inputs: int = 0
    refused: int = 0
    answered: int = 0
    crashes: dict[str, bytes] = field(default_factory=dict)
    hangs: list[bytes] = field(default_factory=list)
    mb_before: float = 0.0
    mb_after: float = 0.0

    @property
    def kept_its_promise(self) -> bool:
        return not self.crashes and not self.hangs and self.mb_after - self.mb_before < GROWTH_MB


def try_inputs(codec: Codec, count: int, seed: int, begin: Callable[[int, bytes], None]) -> Result:
    """Every input once found, every seed, then mutations of them; `begin` is told each before it is read."""
    result = Result(codec.name)
    known = [*kept(codec.name), *codec.seeds()]
    mutator = Mutator(known, codec.words, seed)
    for number in range(count):
        data = known[number] if number < len(known) else mutator.next()
        begin(number, data)
        result.inputs += 1
        try:
            codec.read(data)
            result.answered += 1
        except codec.refusals:
            result.refused += 1
        except Exception as exc:
            last = traceback.extract_tb(exc.__traceback__)[-1]
            result.crashes.setdefault(f"{type(exc).__name__} in {last.filename}:{last.lineno}: {exc}", data)
        if number == count // 10:
            result.mb_before = resident_mb(os.getpid())
    result.mb_after = resident_mb(os.getpid())
    return result


def _in_child(name: str, count: int, seed: int, shared: mmap.mmap, answer: Connection) -> None:
    codec = next(each for each in CODECS if each.name == name)

    def begin(number: int, data: bytes) -> None:
        _HEADER.pack_into(shared, 0, number + 1, len(data))
        shared[_HEADER.size : _HEADER.size + len(data)] = data

    answer.send(try_inputs(codec, count, seed, begin))


def run_trial(codec: Codec, count: int, seed: int, progress: Callable[[int], None]) -> Result:
    """As `try_inputs` in a child, whose death or silence is a crash or a hang of the input under way."""
    shared = mmap.mmap(-1, _HEADER.size + MAX_BYTES)
    ours, theirs = multiprocessing.Pipe(duplex=False)
    # fork: the mapping is shared with the child alone
    child = multiprocessing.get_context("fork").Process(
        target=_in_child, args=(codec.name, count, seed, shared, theirs)
    )
    child.start()
    theirs.close()
    seen, seen_at = 0, time.monotonic()
    while not ours.poll(_POLL_S) and child.is_alive():
        begun, size = _HEADER.unpack_from(shared)
        progress(begun)
        if begun != seen:
            seen, seen_at = begun, time.monotonic()
        elif time.monotonic() - seen_at > HANG_S:
            child.kill()
            child.join()
            hung = shared[_HEADER.size : _HEADER.size + size]
            return Result(codec.name, begun, hangs=[hung])
    try:
        result: Result = ours.recv()
    except EOFError:
        begun, size = _HEADER.unpack_from(shared)
        child.join()
        fatal = {f"the process died ({child.exitcode})": shared[_HEADER.size : _HEADER.size + size]}
        return Result(codec.name, begun, crashes=fatal)
    child.join()
    progress(result.inputs)
    return result


def described(result: Result) -> str:
    """Every crash and hang with the beginning of its input, for the terminal."""
    lines = [
        f"{result.name}: {what}\n    {json.dumps(data[:200].decode('latin-1'))}"
        for what, data in result.crashes.items()
    ]
    lines += [
        f"{result.name}: hung on\n    {json.dumps(data[:200].decode('latin-1'))}" for data in result.hangs
    ]
    return "\n".join(lines)

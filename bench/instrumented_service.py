"""The default service, with workers that count the CPU time inside tokenizer and predictor calls.

Each call reads CLOCK_THREAD_CPUTIME_ID twice. That adds about 1 us per batch to the figures of the service.
Other threads of the process do not count. Each thread writes its totals to a mapped file, in the folder that
BENCH_INSIDE names.
"""

from __future__ import annotations

import importlib.util
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER_VARIABLE = "BENCH_INSIDE"
_TOTALS = struct.Struct("<qqqqq")


class Inside(NamedTuple):
    """Totals of the tokenizer and predictor calls of all workers: CPU nanoseconds, calls, texts."""

    tokenizer_ns: int = 0
    predictor_ns: int = 0
    tokenizer_calls: int = 0
    predictor_calls: int = 0
    texts: int = 0

    @property
    def cpu_s(self) -> float:
        return (self.tokenizer_ns + self.predictor_ns) / 1e9

    def since(self, earlier: Inside) -> Inside:
        return Inside(*(now - then for now, then in zip(self, earlier, strict=True)))


def read_inside(folder: Path) -> Inside:
    """Return the totals of all workers that write to `folder`."""
    rows = read_threads_inside(folder).values()
    return Inside(*(sum(column) for column in zip(*rows, strict=True))) if rows else Inside()


def read_threads_inside(folder: Path) -> dict[tuple[int, int], Inside]:
    """Return the totals by process and thread id."""
    rows = {}
    for file in folder.glob("*.inside"):
        process, thread = file.stem.split("-")
        rows[int(process), int(thread)] = Inside(*_TOTALS.unpack(file.read_bytes()))
    return rows


class _ThreadTotals(threading.local):
    """Totals of one thread, in its file."""

    def __init__(self) -> None:
        path = Path(os.environ[FOLDER_VARIABLE], f"{os.getpid()}-{threading.get_native_id()}.inside")
        path.write_bytes(bytes(_TOTALS.size))
        with path.open("r+b") as file:
            self.target = mmap.mmap(file.fileno(), _TOTALS.size)
        self.values = [0] * 5


class Counter:
    """Counts calls in every thread of this process."""

    def __init__(self) -> None:
        self._totals = _ThreadTotals()

    def counted(
        self, function: Callable[..., Any], kind: int, rows_of: Callable[..., int]
    ) -> Callable[..., Any]:
        """`function`, its CPU time added to total `kind` and its calls to `kind + 2`."""
        totals, pack, clock = self._totals, _TOTALS.pack_into, time.thread_time_ns

        def call(batch: Any) -> Any:
            began = clock()
            result = function(batch)
            values = totals.values
            values[kind] += clock() - began
            values[kind + 2] += 1
            values[4] += rows_of(batch)
            pack(totals.target, 0, *values)
            return result

        return call


class Replaced:
    """A wrapper of an object with one method replaced. All other attributes are the object's own."""

    def __init__(self, wrapped: Any, **methods: Callable[..., Any]) -> None:
        self._wrapped = wrapped
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


def default_service() -> Any:
    spec = importlib.util.spec_from_file_location("web_service", ROOT / "web_service.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from pipeline.script import prepare_from_arguments

    default: Any = default_service()

    class CountedBertOp(default.BertOp):  # type: ignore[misc]
        def init_op(self) -> None:
            super().init_op()
            counter = Counter()
            tokenizer: Any = self.tokenizer
            predictor: Any = self.predictor
            encode_batch = counter.counted(tokenizer.encode_batch, 0, len)
            predictor.run = counter.counted(predictor.run, 1, lambda feeds: 0)
            self.tokenizer: Any = Replaced(tokenizer, encode_batch=encode_batch)

    class CountedBertService(default.BertService):  # type: ignore[misc]
        def get_pipeline_response(self, read_op: Any) -> Any:
            return CountedBertOp(name="bert", input_ops=[read_op])

    service = CountedBertService(name="bert")
    prepare_from_arguments(service, ROOT / "config.yml")
    service.run_service()


if __name__ == "__main__":
    main()

"""A loop over tokenizer and predictor without a server: the upper limit, with a process for each instance.

Run as `python -m bench.peers.loops MODEL ENGINE PRECISION TEXTS`, it is one of these processes. For each line
"WINDOW SECONDS" it prints a line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import IO, NamedTuple

from bench.bare_predictor import BarePredictor
from bench.load import CannotMeasure
from bench.running import ROOT
from pipeline.process.environment import MODEL_PROCESS

BATCHES = (1, 2, 4, 8, 16, 32)
EVERYTHING = 0  # as a window size: all texts are sorted together
_TRIAL_S = 0.4


class Ran(NamedTuple):
    """Result of a loop. batch: maximum number of texts in a run; the fastest that was tried."""

    texts: int
    seconds: float
    batch: int


def cut(texts: Sequence[str], window: int, batch: int) -> list[list[str]]:
    """Return batches of texts with similar lengths, sorted within each window of texts.

    The batches are shuffled, always in the same order: a part of them has short and long texts.
    """
    window = window or len(texts)
    batches = []
    for start in range(0, len(texts), window):
        at_hand = sorted(texts[start : start + window], key=len)
        batches += [at_hand[first : first + batch] for first in range(0, len(at_hand), batch)]
    random.Random(1).shuffle(batches)
    return batches


class Loop:
    """The work of one process."""

    def __init__(self, predictor: BarePredictor, texts: Sequence[str]) -> None:
        self._predictor = predictor
        self._texts = texts
        self._best: dict[int, int] = {}  # batch by window

    def run(self, window: int, seconds: float) -> Ran:
        if window not in self._best:
            sizes = [size for size in BATCHES if window == EVERYTHING or size <= window]
            tried = [self._run(window, size, _TRIAL_S) for size in sizes]
            self._best[window] = max(tried, key=lambda ran: ran.texts / ran.seconds).batch
        return self._run(window, self._best[window], seconds)

    def _run(self, window: int, batch: int, seconds: float) -> Ran:
        done, began = 0, time.perf_counter()
        for texts in cycle(cut(self._texts, window, batch)):
            self._predictor.logits(texts)
            done += len(texts)
            if (took := time.perf_counter() - began) >= seconds:
                return Ran(done, took, batch)
        raise AssertionError("there are no texts")


class LoopProcesses:
    """Several loop processes that run at the same time. start_s: time until all were ready."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]], start_s: float) -> None:
        self._processes = processes
        self.start_s = start_s

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def run(self, window: int, seconds: float, at_once: int) -> list[Ran]:
        """Run `at_once` of the processes, and return their results. Raises CannotMeasure."""
        chosen = self._processes[:at_once]
        for process in chosen:
            _pipe(process.stdin).write(f"{window} {seconds}\n")
            _pipe(process.stdin).flush()
        return [Ran(*json.loads(read_line(process))) for process in chosen]


@contextlib.contextmanager
def loop_processes(
    model: Path, engine: str, precision: str, texts: Sequence[str], count: int
) -> Iterator[LoopProcesses]:
    """Start the loop processes, and wait until all are ready. Raises CannotMeasure."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(tempfile.NamedTemporaryFile("w", encoding="utf-8"))
        file.write("\n".join(texts))
        file.flush()
        command = [sys.executable, "-m", "bench.peers.loops", str(model), engine, precision, file.name]
        processes, began = [], time.monotonic()
        for _ in range(count):
            process = subprocess.Popen(
                command, cwd=ROOT, env=MODEL_PROCESS | os.environ, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            read_line(process)
        yield LoopProcesses(processes, time.monotonic() - began)


def read_line(process: subprocess.Popen[str]) -> str:
    """Return the next output line of a process.

    Raises CannotMeasure with its error output if it has ended.
    """
    line = _pipe(process.stdout).readline()
    if not line:
        raise CannotMeasure(f"the loop ended: {_pipe(process.stderr).read()[-800:].strip()}")
    return line


def _pipe(file: IO[str] | None) -> IO[str]:
    assert file is not None
    return file


def main(model: str, engine: str, precision: str, texts: str) -> None:
    lines = Path(texts).read_text(encoding="utf-8").splitlines()
    loop = Loop(BarePredictor(Path(model), ROOT / "config.yml", engine, precision), lines)
    loop.run(1, _TRIAL_S)
    _say("ready")
    for line in sys.stdin:
        window, seconds = line.split()
        _say(json.dumps(loop.run(int(window), float(seconds))))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])

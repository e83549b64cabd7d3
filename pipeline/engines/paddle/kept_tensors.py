"""Small batches on the CPU keep their intermediate tensors from run to run.

Paddle gives every tensor of a PIR program back after its last use, by way of a thread, and allocates it again
in the next run: some fifth of a small batch's CPU, and its slowest runs (`python -m bench.kept_tensors`).
A predictor whose first run finds FLAGS_eager_delete_tensor_gb negative keeps them all. At once they are far
more than a run needs at any time: so a second predictor of the same weights keeps those of batches that are
known to stay within KEPT_BYTES, and the usual one runs the others.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping

from pipeline.engines.feeds import Array
from pipeline.engines.paddle.paddle_import import error_sentence, paddle
from pipeline.engines.paddle.session import Session

log = logging.getLogger(__name__)

KEPT_BYTES = 32 << 20  # of an instance; with more, workers grow for longer (docs/decisions/kept-tensors.md)
_FLAG = "FLAGS_eager_delete_tensor_gb"
_MOST_SHAPES = 4096  # images may come in any size

Shape = tuple[int, int]  # rows, and numbers in a row of all feeds


class KeptTensors:
    """Runs small batches by a session that keeps its tensors, all others by the usual one.

    What a batch would keep is told by those that were run: it grows at most with the rows, and with the
    square of a row's length (attention).
    """

    def __init__(self, usual: Session) -> None:
        self._usual = usual
        self._keeping: Session | None = None
        self._begun = False
        self._bytes = 0  # that it keeps
        self._shapes: set[Shape] = set()  # that it has run
        self._largest: list[tuple[Shape, int]] = []  # of them, those that no other covers, and what was kept

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run feeds as a `Session` does: by alias in and out."""
        shape, keeping = _get_shape(feeds), self._keeping
        if keeping is not None and (shape in self._shapes or self._fits(shape)):
            return self._run_keeping(keeping, shape, feeds)
        if not self._begun and shape[0] == 1:  # as a warm-up has: of more rows nothing is known yet
            self._begin(shape, feeds)
        return self._usual.run(feeds)

    def _begin(self, shape: Shape, feeds: Mapping[str, Array]) -> None:
        self._begun = True
        try:
            with _never_deleting():
                self._keeping = self._usual.clone()
                self._run_keeping(self._keeping, shape, feeds)
        except Exception as exc:  # the usual session may do it all the same, and else says what is wrong
            log.info("intermediate tensors are not kept: %s", error_sentence(exc))
            self._keeping = None

    def _run_keeping(self, keeping: Session, shape: Shape, feeds: Mapping[str, Array]) -> dict[str, Array]:
        before = _allocated()
        fetches = keeping.run(feeds)
        grown = _allocated() - before
        if grown > 0 or shape not in self._shapes:
            self._record_growth(shape, max(0, grown))
        return fetches

    def _record_growth(self, shape: Shape, grown: int) -> None:
        """Note what a run has kept, after the first of its shape and where it has grown.

        Most programs grow with a new shape alone, one with loops may a little with each run.
        """
        self._bytes += grown
        if self._bytes > KEPT_BYTES:
            log.info("intermediate tensors come to %d MB and are kept no longer", self._bytes >> 20)
            self._keeping = None
            return
        if len(self._shapes) >= _MOST_SHAPES:
            self._shapes.clear()
        self._shapes.add(shape)
        self._largest = [(run, kept) for run, kept in self._largest if not _covers(shape, run)]
        self._largest.append((shape, self._bytes))

    def _fits(self, shape: Shape) -> bool:
        rows, width = shape
        return any(
            kept * max(1.0, rows / most_rows) * max(1.0, width / most_width) ** 2 <= KEPT_BYTES
            for (most_rows, most_width), kept in self._largest
        )


def _get_shape(feeds: Mapping[str, Array]) -> Shape:
    size = rows = 0
    for array in feeds.values():
        size += array.size
        rows = rows or (array.shape[0] if array.ndim else 1)
    return max(1, rows), max(1, size // max(1, rows))


def _covers(one: Shape, other: Shape) -> bool:
    return one[0] >= other[0] and one[1] >= other[1]


def _allocated() -> int:
    """Bytes of all tensors of this process that are not on a card."""
    return int(paddle.base.core.host_memory_stat_current_value("Allocated", 0))


@contextlib.contextmanager
def _never_deleting() -> Iterator[None]:
    """Set Paddle's flag for the block so that a predictor which is made in it keeps its tensors."""
    usual = paddle.get_flags(_FLAG)
    paddle.set_flags({_FLAG: -1.0})
    try:
        yield
    finally:
        paddle.set_flags(usual)

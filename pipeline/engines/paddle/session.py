"""Runs a loaded Paddle model: plainly, with kept tensors for small batches, or with its tokenizer first."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from pipeline.engines.feeds import LOD_SUFFIX, Array
from pipeline.engines.paddle.paddle_import import error_sentence, inference, paddle
from pipeline.engines.paddle.program import Half, TextProgram


class Session:
    """Runs inference with a `paddle.inference.Predictor`, and maps aliases to its tensor names.

    `feeds` and `fetches` map aliases to names of inputs and outputs. `ragged` names the inputs with offsets
    (LoD). With `has_sequences`, outputs may have offsets, too.
    """

    def __init__(
        self,
        predictor: Any,
        feeds: Mapping[str, str],
        fetches: Mapping[str, str],
        *,
        ragged: Collection[str] = (),
        has_sequences: bool = False,
    ) -> None:
        self._predictor = predictor
        self._names = feeds, fetches
        self._ragged = ragged
        self._has_sequences = has_sequences
        # A handle stays valid as long as the predictor, and looking it up costs as much as a small copy.
        self._inputs = {alias: predictor.get_input_handle(name) for alias, name in feeds.items()}
        self._outputs = {alias: predictor.get_output_handle(name) for alias, name in fetches.items()}

    def clone(self) -> Session:
        """Return a session with the same weights and separate tensors."""
        feeds, fetches = self._names
        return Session(
            self._predictor.clone(), feeds, fetches, ragged=self._ragged, has_sequences=self._has_sequences
        )

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run inference on arrays by alias.

        Returns arrays by alias, and int32 offsets of sequences as "ALIAS.lod". Paddle's exceptions pass
        through.
        """
        for alias, handle in self._inputs.items():
            handle.copy_from_cpu(feeds[alias])
            if alias in self._ragged:
                handle.set_lod([feeds[alias + LOD_SUFFIX].tolist()])
        self._predictor.run()
        fetches = {}
        for alias, handle in self._outputs.items():
            fetches[alias] = handle.copy_to_cpu()
            if self._has_sequences and (lod := handle.lod()):
                fetches[alias + LOD_SUFFIX] = np.array(lod[0], np.int32)
        return fetches


_TRIAL = ["a", "a a a a a a a a a"]
_TOLERANCE = 1e-3  # of an output's largest value: far above rounding errors, far below a wrong output


class Runs(Protocol):
    """An object that runs inference for a Paddle model: Session, KeptTensors or Tokenizing."""

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]: ...


def build_text_config(half: Half) -> inference.Config:
    """Return a Paddle configuration that loads one part of a text model: the tokenizer or the rest."""
    config = inference.Config()
    config.set_model_buffer(half.program, len(half.program), half.params, len(half.params))
    return config


class Tokenizing:
    """Runs a text model: its tokenizer, then the remaining model on the tokenizer's ids.

    `texts` maps aliases to the tokenizer's inputs. `fetched` maps aliases to the tokenizer's outputs that
    clients get. Ids and segments are int64 [n, longest]: the operator pads shorter rows with 0.
    """

    def __init__(
        self, halves: TextProgram, texts: Mapping[str, str], fetched: Mapping[str, str], rest: Runs | None
    ) -> None:
        config = build_text_config(halves.tokenizer)
        config.disable_gpu()
        config.disable_glog_info()
        config.switch_ir_optim(False)
        if config.mkldnn_enabled():
            config.disable_mkldnn()
        self._predictor = inference.create_predictor(config)
        self._inputs = {alias: self._predictor.get_input_handle(name) for alias, name in texts.items()}
        self._outputs = {name: self._predictor.get_output_handle(name) for name in halves.tokens}
        self._fetched = fetched
        self._rest = rest

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run inference on arrays by alias. Returns arrays by alias. Text inputs are arrays of str [n]."""
        for alias, handle in self._inputs.items():
            handle.copy_from_cpu(feeds[alias].tolist())
        self._predictor.run()
        tokens = {name: handle.copy_to_cpu() for name, handle in self._outputs.items()}
        fetches = {alias: tokens[name] for alias, name in self._fetched.items()}
        if self._rest is not None:
            fetches |= self._rest.run({**feeds, **tokens})
        return fetches


def bears_padding(run: Callable[[Mapping[str, Array]], Mapping[str, Array]], texts: Iterable[str]) -> bool:
    """Whether padding a short text of a text model to a longer text leaves its outputs unchanged.

    `run` runs the model. `texts` names all inputs of the model.
    """
    alone, together = (
        run({alias: np.array(rows, object) for alias in texts}) for rows in (_TRIAL[:1], _TRIAL)
    )
    return all(
        together[name].shape == (2, *fetch.shape[1:])
        and np.allclose(
            together[name][:1], fetch, atol=_TOLERANCE * (np.abs(fetch).max(initial=0) or 1), rtol=0
        )
        for name, fetch in alone.items()
    )


log = logging.getLogger(__name__)

# Small batches on the CPU keep their intermediate tensors from run to run. Paddle frees every tensor of a PIR
# program after its last use, in a thread, and allocates it again in the next run. That costs a fifth of a
# small batch's CPU time, and causes its slowest runs (`python -m bench.kept_tensors`).
# A predictor keeps all its tensors if FLAGS_eager_delete_tensor_gb is negative during its first run. The
# tensors take far more memory than one run needs. So a second predictor with the same weights runs the
# batches whose tensors fit in KEPT_BYTES, and the usual predictor runs all others.
KEPT_BYTES = 32 << 20  # per instance; with more, workers grow for longer (docs/decisions/kept-tensors.md)
_FLAG = "FLAGS_eager_delete_tensor_gb"
_MAX_SHAPES = 4096  # images may come in any size

Shape = tuple[int, int]  # rows, and elements of a row over all feeds


class KeptTensors:
    """Runs small batches in a session that keeps intermediate tensors, and others in the usual session.

    The memory of a new shape is estimated from shapes that ran: it grows at most with the rows, and with the
    square of a row's length (attention).
    """

    def __init__(self, usual: Session) -> None:
        self._usual = usual
        self._keeping: Session | None = None
        self._has_begun = False
        self._bytes = 0  # kept by the second session
        self._shapes: set[Shape] = set()  # that the second session has run
        self._largest: list[tuple[Shape, int]] = []  # shapes that no other covers, with the bytes kept then

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run inference on input arrays by alias. Returns output arrays by alias."""
        shape, keeping = _get_shape(feeds), self._keeping
        if keeping is not None and (shape in self._shapes or self._fits(shape)):
            return self._run_keeping(keeping, shape, feeds)
        if not self._has_begun and shape[0] == 1:  # the warm-up: nothing is known of more rows yet
            self._begin_keeping(shape, feeds)
        return self._usual.run(feeds)

    def _begin_keeping(self, shape: Shape, feeds: Mapping[str, Array]) -> None:
        self._has_begun = True
        try:
            with _tensors_kept():
                self._keeping = self._usual.clone()
                self._run_keeping(self._keeping, shape, feeds)
        except Exception as exc:  # the usual session may still run the feeds, or raises the reason
            log.info("intermediate tensors are not kept: %s", error_sentence(exc))
            self._keeping = None

    def _run_keeping(self, keeping: Session, shape: Shape, feeds: Mapping[str, Array]) -> dict[str, Array]:
        before = _get_allocated_bytes()
        fetches = keeping.run(feeds)
        grown = _get_allocated_bytes() - before
        if grown > 0 or shape not in self._shapes:
            self._record_growth(shape, max(0, grown))
        return fetches

    def _record_growth(self, shape: Shape, grown: int) -> None:
        """Record the bytes that an inference has kept in memory, for a new input shape and after each growth.

        Most models grow only with a new shape. Models with loops may grow a little with each inference.
        """
        self._bytes += grown
        if self._bytes > KEPT_BYTES:
            log.info("intermediate tensors come to %d MB and are kept no longer", self._bytes >> 20)
            self._keeping = None
            return
        if len(self._shapes) >= _MAX_SHAPES:
            self._shapes.clear()
        self._shapes.add(shape)
        self._largest = [(run, kept_bytes) for run, kept_bytes in self._largest if not _covers(shape, run)]
        self._largest.append((shape, self._bytes))

    def _fits(self, shape: Shape) -> bool:
        rows, width = shape
        return any(
            kept_bytes * max(1.0, rows / max_rows) * max(1.0, width / max_width) ** 2 <= KEPT_BYTES
            for (max_rows, max_width), kept_bytes in self._largest
        )


def _get_shape(feeds: Mapping[str, Array]) -> Shape:
    size = rows = 0
    for array in feeds.values():
        size += array.size
        rows = rows or (array.shape[0] if array.ndim else 1)
    return max(1, rows), max(1, size // max(1, rows))


def _covers(shape: Shape, other: Shape) -> bool:
    return shape[0] >= other[0] and shape[1] >= other[1]


def _get_allocated_bytes() -> int:
    """Return the bytes of all tensors of this process in host memory."""
    return int(paddle.base.core.host_memory_stat_current_value("Allocated", 0))


@contextlib.contextmanager
def _tensors_kept() -> Iterator[None]:
    """Set a Paddle flag within a `with` block: predictors created in the block keep their tensors."""
    usual = paddle.get_flags(_FLAG)
    paddle.set_flags({_FLAG: -1.0})
    try:
        yield
    finally:
        paddle.set_flags(usual)

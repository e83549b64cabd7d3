"""Proves on random rows that padding a model's inputs leaves its outputs as they are.

The proof runs rows alone, padded, and beside rows of other lengths, from length 1 up to the greatest length
that the model takes. Whatever the proof can't settle counts against padding: a wrong proof gives silent wrong
answers, and a missing proof costs only speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pipeline.engines.feeds import Array
from pipeline.errors import ServingError
from pipeline.models.additions import FeedPadding
from pipeline.models.signature import Variable
from pipeline.padding.contents import (
    UNCHECKED_IDS,
    FeedContent,
    Feeds,
    Role,
    RowContents,
    content_role,
    cut_output,
    growing_axes,
    pad_feeds,
)

MAX_LENGTH = 1024  # a batch of longer rows takes attention hundreds of megabytes
MIN_LENGTH = 64  # a proof that ends earlier, for lack of time, is none
BUDGET_S = 20.0
WALL_FACTOR = 2  # seconds that may pass for each second of the budget: neighbours use the cores as well
TOLERANCE = 1e-4
HALF_TOLERANCE = 5e-3  # of float16
ROUGH_TOLERANCE = 1e-2
FLOOR = 1e-6  # below this, a difference is a rounding error
FILL = 1e4  # outputs have -1e4 or -1e9 at masked places, and the scale of the others counts

_LENGTHS = (1, 2, 3, 5, 9, 17, 33, 65, 129, 257, 513, 769)  # each is padded to twice as much or more
_PADS = (0, 1)  # ids that padding has in the vocabularies of tokenizers
_SINGLE_IDS = 128
_MAX_ID = 1 << 20
_MORE_PASSES, _MORE_PASSES_S = 2, 0.3  # of models that are run in no time

Run = Callable[[Feeds], Mapping[str, Array]]


class PaddingProof(NamedTuple):
    """Result of a padding proof: the inputs that may be padded, the maximum length, and the reason.

    If no inputs may be padded, only rows of equal shapes share a batch.
    """

    feeds: Mapping[str, FeedPadding]
    fetches: Mapping[str, int]  # the axis that is cut back
    max_length: int
    reason: str


@dataclass(frozen=True)
class PaddedModel:
    """A model whose padding is to be proven: a function that runs it, its inputs, and limits of their ids."""

    run: Run  # raises ServingError for feeds that the model rejects
    feeds: Sequence[Variable]
    id_limits: Mapping[str, int]  # by feed, ids are below it
    checks_ids: bool  # the engine rejects ids beyond its tables, so limits can be searched
    declared: Mapping[str, FeedPadding] = field(default_factory=dict)  # padding to prove; empty: find it
    examples: Mapping[str, Array] = field(default_factory=dict)  # values of feeds that are not padded
    max_length: int = MAX_LENGTH  # longest row that is tried
    tolerance: float = TOLERANCE  # of an output, relative to its largest value


class _Refuted(Exception):
    """Raised within a padding proof if a padded row's outputs differ from the outputs of the row alone."""


class _Inconclusive(Exception):
    """Raised within a padding proof that can't be completed for this model.

    Padding then counts as unproven.
    """


class _TooSlow(Exception):
    """Raised within a padding proof if the next inference would exceed the time budget."""


class Budget:
    """Time budget of a proof, in CPU seconds. Elapsed time counts as well, at half its duration."""

    def __init__(self, seconds: float = BUDGET_S) -> None:
        self.seconds = seconds
        self.waited = False  # whether a run was refused only because other processes used the CPU
        self._cpu, self._wall = time.process_time(), time.monotonic()

    @property
    def cpu_s(self) -> float:
        """CPU seconds of this process since the budget began."""
        return time.process_time() - self._cpu

    @property
    def spent_s(self) -> float:
        """Seconds spent: the CPU time, or half of the elapsed time if that is more."""
        return max(self.cpu_s, (time.monotonic() - self._wall) / WALL_FACTOR)

    def allows(self, seconds: float) -> bool:
        """Return whether an inference of `seconds` would end within the budget."""
        fits = self.spent_s + seconds <= self.seconds
        self.waited |= not fits and self.cpu_s + seconds <= self.seconds
        return fits


def prove_padding(model: PaddedModel, budget: Budget | None = None) -> PaddingProof:
    """Determine by test runs which inputs of a model may be padded without changing its outputs.

    Does not raise: for an unproven model, the result has no inputs and the reason.
    """
    budget = budget or Budget()
    failures: list[Exception] = []
    try:
        limits = _id_limits(model)
    except _Inconclusive as exc:
        return PaddingProof({}, {}, 0, f"padding is not proven, for {exc}")
    for mask, pad in _ways(model, limits):
        contents = _contents(model, limits, mask, pad)
        try:
            fetches, max_length, note = _Trial(model, contents, mask, budget).prove()
        except _TooSlow:
            failures.append(_Inconclusive("runs take too long"))
            break
        except (_Refuted, _Inconclusive) as exc:
            failures.append(exc)
            continue
        padding = {c.variable.alias: c.pad for c in contents if c.role is not Role.EXAMPLE}
        how = f"with {mask!r} as mask" if mask else "without a mask"
        values = "" if pad is None else f", ids padded with {pad}"
        why = f"padded rows answer as alone, {how}{values}, up to a length of {max_length}{note}"
        return PaddingProof(padding, fetches, max_length, why)
    return PaddingProof({}, {}, 0, _reason(failures))


def _reason(failures: Sequence[Exception]) -> str:
    """Return why padding is not proven, from the failures of all tried ways to pad.

    The first way is the most likely to be right.
    """
    if not failures:
        return "padding is not proven, for the ids that the model takes are not known"
    if isinstance(failures[0], _Inconclusive):
        return f"padding is not proven, for {failures[0]}"
    tries = "1 way" if len(failures) == 1 else f"{len(failures)} ways"
    return f"padded rows answer otherwise than alone ({tries} tried; {failures[0]})"


def _id_limits(model: PaddedModel) -> dict[str, int]:
    """Return an upper bound (exclusive) for the ids of each integer input, by input name.

    0: the model accepts any integer. Negative: the bound can't be determined. Raises _Inconclusive for inputs
    that are not rows of numbers.
    """
    limits = dict(model.id_limits)
    for variable in model.feeds:
        if variable.is_lod or variable.dtype == "bfloat16" or variable.numpy_dtype.kind not in "iubf":
            raise _Inconclusive(f"input {variable.alias!r} holds no rows of plain numbers")
        if model.declared and variable.alias not in model.declared:
            continue
        if variable.numpy_dtype.kind != "f" and not limits.get(variable.alias):
            limits[variable.alias] = _find_limit(model, variable, limits)
    return limits


def _find_limit(model: PaddedModel, variable: Variable, limits: Mapping[str, int]) -> int:
    """Determine by test runs the greatest integer that an input accepts, and return it plus 1.

    0: the model accepts any integer. Negative: the limit can't be determined.
    """
    if not model.checks_ids:  # an id beyond a table would read memory beyond it
        return UNCHECKED_IDS if model.declared else -1
    row = RowContents(_contents(model, limits, "", None), 0).plain_row(2)
    top = int(np.iinfo(variable.numpy_dtype).max) if variable.numpy_dtype.kind != "b" else 1

    def runs(value: int) -> bool:
        return _answers(model.run, row | {variable.alias: np.full_like(row[variable.alias], value)})

    if runs(min(top, _MAX_ID)):
        return 0
    if not runs(0):
        return -1
    low, high = 0, min(top, _MAX_ID)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if runs(middle) else (low, middle)
    return low + 1


def _answers(run: Run, feeds: Feeds) -> bool:
    try:
        run(feeds)
    except ServingError:
        return False
    return True


def _ways(model: PaddedModel, limits: Mapping[str, int]) -> Iterator[tuple[str, int | None]]:
    """Yield the ways to pad that are to be tried, each as the name of the mask input and the padding id.

    An empty name means that no input is a mask. The id is None if no input holds ids, or if padding is
    declared.
    """
    integers = [
        variable
        for variable in model.feeds
        if variable.numpy_dtype.kind != "f" and (not model.declared or variable.alias in model.declared)
    ]
    masks = [v.alias for v in integers if not model.id_limits.get(v.alias) and _may_be_mask(model, v.alias)]
    named = [name for name in masks if "mask" in name.lower()]
    masks = [*named, *(name for name in masks if name not in named)] if len(model.feeds) > 1 else []
    for mask in (*masks, ""):
        ids = [v.alias for v in integers if content_role(v, mask) is Role.IDS]
        if any(limits[name] < 0 for name in ids):
            continue
        for pad in _PADS if ids and not model.declared else [None]:
            if pad is None or all(not limits[name] or pad < limits[name] for name in ids):
                yield mask, pad


def _may_be_mask(model: PaddedModel, alias: str) -> bool:
    return not model.declared or model.declared[alias].value == 0


def _contents(model: PaddedModel, limits: Mapping[str, int], mask: str, pad: int | None) -> list[FeedContent]:
    contents = []
    for variable in model.feeds:
        role = content_role(variable, mask)
        rule = FeedPadding(1, pad or 0 if role is Role.IDS else 0)
        if model.declared:
            rule = model.declared.get(variable.alias, rule)
            if variable.alias not in model.declared:
                role = Role.EXAMPLE
        limit = max(0, limits.get(variable.alias, 0))
        contents.append(FeedContent(variable, role, rule, limit, model.examples.get(variable.alias)))
    return contents


class _Trial:
    """Tests one way to pad: runs random rows alone, padded and mixed, and compares their outputs."""

    def __init__(
        self, model: PaddedModel, contents: Sequence[FeedContent], mask: str, budget: Budget
    ) -> None:
        self._model = model
        self._mask = mask
        self._budget = budget
        self._rows = RowContents(contents, 20)
        self._padding = {c.variable.alias: c.pad for c in contents if c.role is not Role.EXAMPLE}
        # A declared value is meant to be padding; that of a float which nobody declared can't be.
        self._junk = not model.declared and any(c.role is Role.NUMBERS for c in contents)
        self._cuts: dict[str, int | None] = {}
        self._kinds: dict[str, str] = {}
        self._limit = model.max_length
        self._runs_to = 0  # the greatest length that is known to run
        self._varied: set[str] = set()
        self._seconds: dict[tuple[int, int], float] = {}  # of runs, by rows and length
        self._before: tuple[Feeds, Mapping[str, Array], Array, int] | None = None

    def prove(self) -> tuple[dict[str, int], int, str]:
        """Run all tests. Returns the output axes to be cut back, the maximum length, and a note for the log.

        Raises _Refuted and _Inconclusive.
        """
        self._find_cuts()
        if self._mask and "mask" not in self._mask.lower():
            self._check_mask()
        length, note = self._pass(_LENGTHS), ""
        if length < self._limit:
            if length < MIN_LENGTH:
                raise _Inconclusive(f"runs take too long (tried up to a length of {length})")
            note = ", for longer rows take too long to try"
        chance = np.random.default_rng(28)
        for _ in range(_MORE_PASSES):
            if self._budget.cpu_s > _MORE_PASSES_S:
                break
            lengths = [int(chance.integers(a, b)) for a, b in pairwise(_LENGTHS)]
            self._pass(lengths)
        floats = {name for name in self._cuts if self._kinds[name] == "f"}
        constant = sorted((floats or self._cuts.keys()) - self._varied)
        if constant:
            raise _Inconclusive(f"output {constant[0]!r} is the same for every row tried")
        return {name: axis for name, axis in self._cuts.items() if axis is not None}, length, note

    def _pass(self, lengths: Sequence[int]) -> int:
        """Test rows of these lengths, in ascending order.

        Returns the maximum length that counts as tested.
        """
        tried = 0
        self._before = None
        for length in lengths:
            try:
                if length < self._limit:
                    self._find_end(self._targets(length)[-1])
                if length >= self._limit:
                    break
                self._try_length(length)
            except _TooSlow:
                break
            tried = length
        return self._limit if 2 * tried >= self._limit else tried

    def _try_length(self, length: int) -> None:
        """Compare the outputs of rows of one length: run alone, padded, and in a batch with shorter rows."""
        count = 8 if length < 10 else 4 if length < 40 else 2
        feeds, rough = self._rows.rows(count, length)
        targets = self._targets(length)
        alone = self._try_rows(feeds, rough, length, targets)
        if length == 1 and (singles := self._rows.single_ids(_SINGLE_IDS)) is not None:
            self._try_rows(singles, np.zeros(_SINGLE_IDS, bool), 1, targets[:1])
        if length < 100:
            self._try_mixed(feeds, alone, rough, length)

    def _targets(self, length: int) -> list[int]:
        """Return the lengths to which rows of this length are padded: from 1 more to several times more."""
        times = (1.5, 2, 4, 8) if length < 6 else (1.3, 2, 4) if length < 20 else (2,)
        targets = {length + 1, *(int(length * factor) for factor in times)}
        return sorted({min(target, self._limit) for target in targets if target > length})

    def _try_rows(
        self, feeds: Feeds, rough: Array, length: int, targets: Sequence[int]
    ) -> Mapping[str, Array]:
        alone = self._run_model(feeds, length)
        self._check_shapes(alone, len(rough), length)
        if length < 40:
            row = {name: array[:1] for name, array in feeds.items()}
            first = {name: output[:1] for name, output in alone.items()}
            self._compare_padded(first, self._run_model(row, length), rough[:1], length, length)
        for target in targets:
            padded = pad_feeds(feeds, self._padding, target)
            self._compare_padded(alone, self._run_model(padded, target), rough, length, target)
            if self._junk and target in (targets[0], targets[-1]):
                junk = self._rows.junk(padded, length, (Role.NUMBERS,))
                self._compare_padded(alone, self._run_model(junk, target), rough, length, target)
        return alone

    def _try_mixed(self, feeds: Feeds, alone: Mapping[str, Array], rough: Array, length: int) -> None:
        """Compare the outputs of rows that share a batch with shorter rows of the length tested before."""
        before, self._before = self._before, (feeds, alone, rough, length)
        if before is None:
            return
        short, answers, short_rough, short_length = before
        half = len(rough) // 2
        filled = pad_feeds({name: array[:half] for name, array in short.items()}, self._padding, length)
        together = {name: np.concatenate([filled[name], feeds[name][:half]]) for name in feeds}
        outputs = self._run_model(together, length)
        first, second = (
            {name: output[part] for name, output in outputs.items()}
            for part in (slice(half), slice(half, None))
        )
        self._compare_padded(_head(answers, half), first, short_rough[:half], short_length, length)
        self._compare_padded(_head(alone, half), second, rough[:half], length, length)

    def _find_cuts(self) -> None:
        """Find the axis on which each output grows with the input's length, and check repeatability.

        Raises _Refuted and _Inconclusive.
        """
        outputs = []
        for length in (2, 3):
            self._find_end(length)
            feeds, rough = self._rows.rows(2, length)
            outputs.append(self._run_model(feeds, length))
        again = self._run_model(feeds, 3)
        for name, output in outputs[1].items():
            if not _agree(output, again[name], rough, self._model.tolerance):
                raise _Inconclusive(f"output {name!r} differs from run to run")
            try:
                axes = growing_axes([run[name] for run in outputs])
            except ValueError as exc:
                raise _Refuted(f"output {name!r} {exc}") from exc
            if len(axes) > 1:
                raise _Refuted(f"output {name!r} grows along axes {axes}, and only one can be cut back")
            self._cuts[name] = axes[0] if axes else None
            self._kinds[name] = output.dtype.kind
        for run, length in zip(outputs, (2, 3), strict=True):
            self._check_shapes(run, 2, length)

    def _check_mask(self) -> None:
        """Check that zeros in the mask input hide the other inputs' values there, and that ones do not.

        Otherwise _Refuted is raised: then the input is not a mask but integer content, and is tested as
        content.
        """
        length, target = 5, 9
        self._find_end(target)
        feeds, rough = self._rows.rows(8, length)
        feeds[self._mask][:] = 1
        alone = self._run_model(feeds, length)
        hidden = self._rows.junk(
            pad_feeds(feeds, self._padding, target), length, (Role.IDS, Role.NUMBERS, Role.TYPES)
        )
        self._compare_padded(alone, self._run_model(hidden, target), rough, length, target)
        shown = hidden | {self._mask: np.ones_like(hidden[self._mask])}
        try:
            self._compare_padded(alone, self._run_model(shown, target), rough, length, target)
        except _Refuted:
            return
        raise _Refuted(f"input {self._mask!r} hides nothing")

    def _check_shapes(self, outputs: Mapping[str, Array], count: int, length: int) -> None:
        for name, output in outputs.items():
            axis = self._cuts[name]
            if output.shape[:1] != (count,):
                raise _Refuted(f"output {name!r} has no row for each row")
            if axis is not None and output.shape[axis] != length:
                raise _Refuted(f"output {name!r} has length {output.shape[axis]} for a row of {length}")
            if count > 1 and not _all_equal(output):
                self._varied.add(name)

    def _find_end(self, length: int) -> None:
        """Reduce the maximum length if the model does not run rows of this length."""
        if length <= self._runs_to:
            return
        if self._model_runs(length):
            self._runs_to = length
            return
        if self._runs_to < 3:
            raise _Inconclusive(f"the model does not run a row of length {length}")
        low, high = self._runs_to, length
        usual = 1 << (high - 1).bit_length() - 1  # of a BERT, as many positions as a power of 2
        guesses = [usual + 1, usual]
        while high - low > 1:
            middle = guesses.pop() if guesses and low < guesses[-1] < high else (low + high) // 2
            low, high = (middle, high) if self._model_runs(middle) else (low, middle)
        # A model that takes multiples of a number fails in between as well.
        if any(self._model_runs(low + n) for n in (2, 3)) or not self._model_runs(max(1, low - 1)):
            raise _Inconclusive(f"the model runs some lengths below {length} and not others")
        self._limit = self._runs_to = low

    def _model_runs(self, length: int) -> bool:
        self._check_budget(1, length)
        started = self._budget.cpu_s
        runs = _answers(self._model.run, self._rows.plain_row(length))
        self._seconds[1, length] = self._budget.cpu_s - started
        return runs

    def _run_model(self, feeds: Feeds, length: int) -> Mapping[str, Array]:
        rows = len(next(iter(feeds.values())))
        self._check_budget(rows, length)
        started = self._budget.cpu_s
        try:
            outputs = self._model.run(feeds)
        except ServingError as exc:
            raise _Inconclusive(
                f"the model does not run every row of length {length} ({exc.message})"
            ) from exc
        self._seconds[rows, length] = self._budget.cpu_s - started
        return outputs

    def _check_budget(self, rows: int, length: int) -> None:
        """Raise _TooSlow for an inference that would exceed the time budget."""
        expected_s = min((self._scaled(run, rows, length) for run in self._seconds), default=0.0)
        if not self._budget.allows(expected_s):
            raise _TooSlow

    def _scaled(self, run: tuple[int, int], rows: int, length: int) -> float:
        """Estimate the seconds of an inference for other rows and another length, from a measured inference.

        Attention grows with the square of the length. run: rows and length of the measured inference.
        """
        growth = length / run[1]
        return self._seconds[run] * max(1.0, rows / run[0] * growth * max(1.0, growth))

    def _compare_padded(
        self, alone: Mapping[str, Array], padded: Mapping[str, Array], rough: Array, length: int, target: int
    ) -> None:
        for name, expected in alone.items():
            output = cut_output(padded[name], self._cuts[name], length)
            how = (
                f"of a row of length {length}, padded to {target}"
                if target > length
                else (f"of a row of length {length} beside others")
            )
            if output.shape != expected.shape:
                raise _Refuted(f"output {name!r} {how} has another shape")
            if not _agree(expected, output, rough, self._model.tolerance):
                raise _Refuted(f"output {name!r} {how}")


def _head(outputs: Mapping[str, Array], count: int) -> dict[str, Array]:
    return {name: output[:count] for name, output in outputs.items()}


def _all_equal(output: Array) -> bool:
    """Whether all rows of an output are equal. NaN and infinity are compared as 0."""
    if output.dtype.kind == "f":
        output = np.nan_to_num(output, nan=0.0, posinf=0.0, neginf=0.0)
    return bool((output == output[:1]).all())


def _agree(expected: Array, actual: Array, rough: Array, tolerance: float) -> bool:
    """Whether two outputs are equal in each row, except for rounding errors.

    rough: rows that are compared with a larger tolerance. tolerance: relative to the largest value.
    """
    if expected.dtype.kind not in "fc":
        return np.array_equal(expected, actual)
    alone, padded = (array.reshape(len(array), -1).astype(np.float64) for array in (expected, actual))
    same = (alone == padded) | (np.isnan(alone) & np.isnan(padded))
    sizes = np.where(np.isfinite(alone), np.abs(alone), 0.0)
    small = np.where(sizes < FILL, sizes, 0.0).max(axis=1, initial=0.0, keepdims=True)
    usual = max(tolerance, HALF_TOLERANCE) if expected.dtype == np.float16 else tolerance
    allowed = np.where(rough, max(usual, ROUGH_TOLERANCE), usual)[:, None]
    with np.errstate(invalid="ignore"):
        near = np.abs(alone - padded) <= allowed * (sizes + small) + FLOOR
    return bool((same | near).all())

"""The worker as fuzzing sees it: the bytes choose an Op, its limits, and the requests of a dispatch.

    run_dispatch(b"...")    raises AssertionError for a broken promise, AllRefused where nothing was answered

The real Executor runs the dispatch on a small model. Each request must be settled once, and as when alone.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from pipeline import Op
from pipeline.api.app import ServedModel
from pipeline.api.op import REQUEST_OP
from pipeline.dialects.dialect import load_forms
from pipeline.engines.feeds import check_feeds, check_forms
from pipeline.messages.frames import FrameReader, Part, Tail, decode, encode, frame, stow
from pipeline.messages.messages import Outcome, Reply, Settled, Timings
from pipeline.models.additions import FeedPadding, Padding
from pipeline.models.signature import Variable
from pipeline.plugins import DIALECTS, find
from pipeline.process.isolation import fault_counts
from pipeline.triton.ensemble import build_model_dag
from pipeline.worker import runner as runner_module
from pipeline.worker.call import Call
from pipeline.worker.executor import Executor, Outputs
from pipeline.worker.hooks import Hooks
from pipeline.worker.model import Joining
from pipeline.worker.plan import BatchLimits, RunCosts, Slice, plan
from pipeline.worker.runner import Runner
from tests.fuzz.hostile_values import ARRAYS, EMPTY, EXCEPTIONS, OBJECTS

MODEL = "fuzzed"
MAX_REQUESTS = 8
REFUSED_ID, LEAVING_ID = 9_001, 9_002  # ids that the model fails for
PROCESS_ID = 8_000  # with the data_id: of a request whose `process` misbehaves
_SERVED = {MODEL: ServedModel(MODEL, build_model_dag(MODEL))}
_FORMS = load_forms([find(DIALECTS)["key_value"]])
_FORM = "key_value.json"


class AllRefused(Exception):
    """No request of the dispatch was answered."""


class Choices:
    """Reads decisions from bytes; all are 0 once the bytes are used up."""

    def __init__(self, data: bytes) -> None:
        self._bytes = iter(data)

    def below(self, end: int) -> int:
        return next(self._bytes, 0) % end

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.below(len(options))]

    def chance(self, of_ten: int) -> bool:
        return self.below(10) >= 10 - of_ten


class Script(NamedTuple):
    """Hooks of one request; each function is called anew for every run."""

    feed: Callable[[], Any]
    process: Callable[[dict[str, Any]], Any]
    output: Callable[[dict[str, Any]], Any]
    answers: bool  # whether the output is printed as an answer, else it is passed to another Op


class Single(Op):
    """An Op whose hooks do what the scripts say, by the data_id of the request."""

    scripts: Mapping[int, Script]

    def preprocess(self, input_dicts: dict[str, Any], data_id: int = 0, log_id: int = 0) -> Any:
        self.current = data_id
        return self.scripts[data_id].feed()

    def postprocess(
        self, input_dicts: dict[str, Any], fetch_dict: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        assert self.current == data_id, "another request's self"
        return self.scripts[data_id].output(fetch_dict)


class Processing(Single):
    def process(self, feed_batch: list[dict[str, Any]], typical_logid: int = 0) -> Any:
        """Do what the first request of the batch does that has a `process` of its own."""
        (merged,) = feed_batch
        for data_id, script in self.scripts.items():
            if (merged["ids"] == PROCESS_ID + data_id).any():
                return script.process(merged)
        return _sums(merged)


class Batchwise(Op):
    scripts: Mapping[int, Script]

    def preprocess_batch(self, requests: Sequence[Any]) -> Any:
        return [self.scripts[request.data_id].feed() for request in requests]

    def postprocess_batch(self, requests: Sequence[Any], fetches: Sequence[Any]) -> Any:
        pairs = zip(requests, fetches, strict=True)
        return [self.scripts[request.data_id].output(fetch) for request, fetch in pairs]


class Forgetful(Batchwise):
    """Returns a list of another length where more than one request comes."""

    def postprocess_batch(self, requests: Sequence[Any], fetches: Sequence[Any]) -> Any:
        return super().postprocess_batch(requests, fetches)[: 1 + len(requests) // 3]


class Uncopyable(Single):
    def __copy__(self) -> Op:
        raise RuntimeError("no copy")


class Sums:
    """A model of ids: their sums, and twice each of them."""

    feeds: tuple[Variable, ...] = tuple(Variable(n, n, "int64", (-1, -1)) for n in ("ids", "mask"))
    fetches = (Variable("sum", "sum", "int64", (-1,)), Variable("twice", "twice", "int64", (-1, -1)))
    merges = True

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        checked = check_feeds(self.feeds, feeds)
        ids = checked["ids"]
        if ids.shape != checked["mask"].shape:
            raise ValueError(f"{ids.shape} is not {checked['mask'].shape}")
        if (ids == LEAVING_ID).any():
            raise SystemExit("the engine leaves")
        if (ids == REFUSED_ID).any():
            raise RuntimeError("the engine refuses")
        return {"sum": (ids * checked["mask"]).sum(axis=1), "twice": 2 * ids}

    def close(self) -> None:
        """Do nothing: it has no resources."""


class CheckedSums(Sums):
    def check(self, feeds: Mapping[str, Any]) -> None:
        check_forms(self.feeds, feeds)


class LongestSums(CheckedSums):
    feeds = tuple(Variable(n, n, "int64", (-1, -1), longest=(1, 40)) for n in ("ids", "mask"))


class BrokenCosts(RunCosts):
    """Raises what is never raised for feeds that were checked."""

    def __init__(self, error: BaseException) -> None:
        super().__init__({(1, 1): 1.0}, 1)
        self._error = error

    def of_length(self, length: int) -> Sequence[float]:
        raise self._error

    of = note = of_length  # type: ignore[assignment]


class Setting(NamedTuple):
    """An Op with its model and its limits."""

    op: type[Op]
    model: type[Sums]
    limits: BatchLimits
    joining: Joining
    costs: Callable[[], RunCosts | None]
    costs_are_sane: bool


def chosen_setting(choices: Choices) -> Setting:
    kinds = (Single, Single, Processing, Batchwise, Forgetful, Uncopyable)
    limits = BatchLimits(
        1 + choices.below(MAX_REQUESTS),
        choices.pick((None, None, 1, 2, 5)),
        choices.pick((None, None, 1, 30, 300)),
    )
    padding = Padding({"ids": FeedPadding(1), "mask": FeedPadding(1)}, {"twice": 1})
    joining = choices.pick(
        (
            Joining(),
            Joining(padding),
            Joining(padding, free=True),
            Joining(padding, (4, 8), 64, {"ids": 2, "mask": 2}),
        )
    )
    costs: Callable[[], RunCosts | None]
    sane = True
    match choices.below(4):
        case 0:
            costs = lambda: None  # noqa: E731
        case 1:
            costs, sane = choices.pick((_broken_costs, _wild_costs)), False
        case _:
            points = {(r, n): 1e-4 + r * n * 1e-6 for r in (1, 4, 8) for n in (1, 16, 64)}
            costs = lambda: RunCosts(points, limits.requests)  # noqa: E731
    op, model = choices.pick(kinds), choices.pick((Sums, CheckedSums, LongestSums))
    return Setting(op, model, limits, joining, costs, sane)


def _broken_costs() -> RunCosts:
    return BrokenCosts(ZeroDivisionError("costs"))


def _wild_costs() -> RunCosts:
    return RunCosts({(r, n): v for r in (1, 8) for n, v in ((1, 5e-324), (64, 1e308))}, 4)


def chosen_script(choices: Choices, number: int) -> Script:
    """Most requests do as they should; the others do so in one respect alone."""
    rows, length = 1 + choices.below(3), 1 + choices.below(12)
    ids = np.arange(rows * length, dtype=np.int64).reshape(rows, length) + 10 * number
    feed: Callable[[], Any] = lambda: {"ids": ids.copy(), "mask": np.ones_like(ids)}  # noqa: E731
    script = Script(feed, _sums, _plain_output, choices.chance(5))
    if choices.chance(5):
        return script
    match choices.below(9):
        case 0 | 1 | 2:
            return script._replace(feed=_wrong_arrays(choices, rows, length))
        case 3:
            special = choices.pick((REFUSED_ID, LEAVING_ID))
            return script._replace(feed=lambda: {"ids": ids * 0 + special, "mask": np.ones_like(ids)})
        case 4:
            parts = [feed, choices.pick((feed, _wrong_arrays(choices, rows, length)))]
            return script._replace(feed=lambda: [part() for part in parts], output=_output_of_many)
        case 5:
            return script._replace(feed=_misbehaviour(choices))
        case 6:
            wrapped = choices.pick((lambda f: (f, True, None, ""), lambda f: (f, False, 51, "no"), _named))
            return script._replace(feed=lambda: wrapped(feed()))
        case 7:
            misbehave = _misbehaviour(choices)
            return script._replace(output=lambda fetch: misbehave())
        case _:
            misbehave = _misbehaviour(choices)
            marked = np.full((rows, length), PROCESS_ID + number + 1)
            return script._replace(
                feed=lambda: {"ids": marked.copy(), "mask": np.ones_like(ids)},
                process=lambda _: _not_empty(misbehave()),
            )


def _wrong_arrays(choices: Choices, rows: int, length: int) -> Callable[[], Any]:
    """Return a feed with one or two unusual arrays."""
    array = choices.pick(EMPTY if choices.chance(4) else ARRAYS)
    other = array if choices.chance(6) else choices.pick(ARRAYS)
    extra = choices.pick(({}, {}, {"ids.lod": np.array([0, rows])}, {"more": np.ones((rows, 2))}))
    return lambda: {"ids": array(rows, length), "mask": other(rows, length), **extra}


def _misbehaviour(choices: Choices) -> Callable[[], Any]:
    """Return a hook that raises, or returns what no hook may."""
    if choices.chance(5):
        error = choices.pick(EXCEPTIONS)

        def fail() -> Any:
            raise error()

        return fail
    value: Callable[[], Any] = choices.pick(OBJECTS)
    return value


def _not_empty(fetch: Any) -> Any:
    """Return the fetch, but None for {}: it would be a fetch of every request in the batch."""
    return None if type(fetch) is dict and not fetch else fetch


def _named(feed: dict[str, Any]) -> dict[str, Any]:
    return {name.upper(): array for name, array in feed.items()}


def _sums(merged: dict[str, Any]) -> Any:
    return {"sum": (merged["ids"] * merged["mask"]).sum(axis=1), "twice": 2 * merged["ids"]}


def _plain_output(fetch: dict[str, Any]) -> Any:
    return {name: np.array(value).tolist().__repr__() for name, value in fetch.items()}


def _output_of_many(fetches: list[dict[str, Any]]) -> Any:
    return {str(number): repr(_plain_output(fetch)) for number, fetch in enumerate(fetches)}


class Answer(NamedTuple):
    """How a request was settled: the outcome with its bytes, or the number and status of its error."""

    outcome: Outcome
    content: Any


class Front:
    """Takes replies as the front does: as frames. Keeps what became of each request."""

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}
        self.ended = False

    def __call__(self, settled: list[Settled], tail: list[Part], timings: Timings, *, last: bool) -> None:
        assert not self.ended, "a reply after the last one"
        self.ended = last
        (received,) = FrameReader(None).feed(b"".join(frame(Reply(0, last, settled, timings), tail)))
        assert isinstance(received.message, Reply)
        for request in received.message.settled:
            assert request.index not in self.answers, f"request {request.index} is settled twice"
            self.answers[request.index] = self._answer(request, received.tail)

    def _answer(self, settled: Settled, tail: Tail) -> Answer:
        if settled.refusal is not None:
            return Answer(settled.outcome, (settled.refusal.err_no, settled.refusal.http_status))
        parts = tail.unstow(settled.parts)
        if settled.outcome is Outcome.ANSWER:
            return Answer(settled.outcome, b"".join(parts))
        return Answer(settled.outcome, repr(decode(parts, allow_pickle=True)))


def run_scripts(setting: Setting, scripts: Mapping[int, Script]) -> dict[int, Answer]:
    """Run one dispatch of these requests, by their numbers, through an Executor of its own."""
    kind = type(setting.op.__name__, (setting.op,), {})  # its own: SetAttributes changes the class
    op = kind(name=MODEL)
    op.scripts = {number + 1: script for number, script in scripts.items()}  # type: ignore[attr-defined]
    hooks = Hooks(op)
    runner = Runner(hooks, setting.model(), setting.limits, setting.joining, setting.costs())
    executor = Executor(hooks, runner, Outputs(hooks, _FORMS, answers=_SERVED))
    tail: list[Part] = []
    calls = []
    for number, script in scripts.items():
        stowed = stow(encode({"0": "a request"}, allow_pickle=False), tail)
        to = (_FORM, MODEL) if script.answers else ("", "")
        calls.append(
            Call(number, number + 1, 0, to[0], None, "", None, math.inf, [(REQUEST_OP, stowed)], to[1])
        )
    front = Front()
    with patch.object(runner_module, "NOTED_EVERY", 1):  # of an Executor that only runs one dispatch
        try:
            executor.run(calls, Tail(b"".join(tail)), front)
        except BaseException as exc:  # it would end the worker
            raise AssertionError(f"the dispatch raised {type(exc).__name__}") from exc
    assert front.ended, "no last reply"
    assert front.answers.keys() == scripts.keys(), "requests without an answer"
    return front.answers


def run_dispatch(data: bytes) -> None:
    """Run the dispatch that the bytes describe. Raises AssertionError, or AllRefused."""
    choices = Choices(data)
    setting = chosen_setting(choices)
    scripts = {number: chosen_script(choices, number) for number in range(1 + choices.below(MAX_REQUESTS))}
    with _quiet():
        before = fault_counts.copy()
        together = run_scripts(setting, scripts)
        if setting.costs_are_sane:
            assert fault_counts == before, f"isolated: {sorted(fault_counts - before)}"
        for number, script in scripts.items():
            alone = run_scripts(setting, {number: script})
            assert together[number] == alone[number], f"request {number} is answered otherwise alone"
    if all(answer.outcome is Outcome.ERROR for answer in together.values()):
        raise AllRefused


def run_plan(data: bytes) -> None:
    """Plan batches of the items that the bytes describe. Raises AssertionError."""
    choices = Choices(data)
    setting = chosen_setting(choices)
    items = [
        Slice(1 + choices.below(6), 1 + choices.below(256), choices.pick((None, "a", "b", -1, -2)))
        for _ in range(choices.below(40))
    ]
    costs = setting.costs()
    batches = plan(items, setting.limits, None if isinstance(costs, BrokenCosts) else costs)
    assert sorted(at for batch in batches for at in batch) == list(range(len(items)))
    for batch in batches:
        members = [items[at] for at in batch]
        rows, length = sum(item.rows for item in members), max(item.length for item in members)
        limits = setting.limits
        assert len(batch) == 1 or members[0].shape is not None
        assert len({item.shape for item in members}) == 1
        assert len(batch) <= limits.requests
        assert len(batch) == 1 or rows <= (limits.rows or rows)
        assert len(batch) == 1 or rows * length <= (limits.tokens or rows * length)


def seeds() -> list[bytes]:
    """Return choices at random, alike in each run."""
    return [random.Random(number).randbytes(64) for number in range(60)]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Make log lines and write them nowhere. NumPy warns of values that are wrong on purpose: ignore that."""
    logger = logging.getLogger("pipeline")
    handlers, propagates, level = logger.handlers[:], logger.propagate, logger.level
    logger.handlers[:], logger.propagate = [_Nowhere()], False
    logger.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.handlers[:], logger.propagate = handlers, propagates
        logger.setLevel(level)


class _Nowhere(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        self.format(record)

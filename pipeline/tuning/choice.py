"""Measured choice of engine and precision for one model on one machine: its data, score, and storage.

Choices are stored beside the model, or in the user's cache folder if the model's folder can't be written. The
key has a digest of the model's files, the CPU and its cores, the engines' versions and the open settings. An
image that was started once therefore has the choice of all its replicas.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import platform
import secrets
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from pipeline.errors import ConfigError
from pipeline.models.digests import hash_sample
from pipeline.models.serving_model import ServingModel
from pipeline.plugins import ENGINES, PROJECT, find
from pipeline.process.environment import usable_cores
from pipeline.process.folders import cache_folder

USUAL_LENGTHS = (16, 64)  # candidates are compared at these: a headline and a short paragraph
Point = tuple[int, int, float]


class Timed(msgspec.Struct, frozen=True):
    """Measured speed of a model with one engine and precision: seconds per run by batch size and length."""

    engine: str
    precision: str
    file: str = ""  # name of the program, one of the model's forms
    points: tuple[Point, ...] = ()  # (rows, length, seconds) of runs
    took_s: float = 0.0  # all of the measurement, loading included
    refused: str = ""  # the reason why it is no candidate; empty for a candidate
    unsuited: bool = False  # only the generated feeds were rejected: the Op's feeds may be accepted
    onednn: bool = False  # oneDNN was tried, which config.yml leaves open

    @property
    def name(self) -> str:
        """Name for the log and tables, e.g. "openvino bf16"."""
        return f"{self.engine} {self.precision}{' with oneDNN' if self.onednn else ''}"

    @property
    def is_whole(self) -> bool:
        """Whether the stored measurement is valid: an error, or positive times with a batch of one row."""
        timed = all(rows > 0 and length > 0 and seconds > 0 for rows, length, seconds in self.points)
        return bool(self.refused) or (timed and any(rows == 1 for rows, _, _ in self.points))

    def alone_s(self) -> float:
        """Return the seconds of a run with a single row: the latency without concurrent requests."""
        return _mean([min(s for _, s in self._timings_at(length, 1)) for length in self._compared()])

    def row_s(self) -> float:
        """Return the seconds per row at the best batch size: the cost under load."""
        return _mean([min(s / rows for rows, s in self._timings_at(length)) for length in self._compared()])

    def mean_s(self) -> float:
        """Return the geometric mean of `row_s` and `alone_s` in seconds, by which candidates are compared."""
        return math.sqrt(self.row_s() * self.alone_s())

    def best_rows(self) -> int:
        """Return the batch size with the least time per row, at the shortest of the compared lengths."""
        return min(self._timings_at(min(self._compared())), key=lambda run: run[1] / run[0])[0]

    def _compared(self) -> Sequence[int]:
        """Return the sequence lengths at which measurements of several engines are compared."""
        lengths = sorted({length for _, length, _ in self.points})
        return [length for length in lengths if length in USUAL_LENGTHS] or lengths[:1]

    def _timings_at(self, length: int, most_rows: int | None = None) -> list[tuple[int, float]]:
        """Return the batch sizes and seconds of the runs with this sequence length."""
        return [
            (rows, s)
            for rows, at, s in self.points
            if at == length and (most_rows is None or rows <= most_rows)
        ]


class Served(msgspec.Struct, frozen=True, omit_defaults=True):
    """Measured throughput of an engine and precision under concurrent callers."""

    engine: str
    precision: str
    placement: str  # process or thread; auto for a single instance
    batch_limit: int = 0  # the best
    rates: tuple[tuple[int, int, float], ...] = ()  # (batch limit, callers, requests per second)
    refused: str = ""
    onednn: bool = False
    cpu_s: tuple[tuple[int, int, float], ...] = ()  # (batch limit, callers, CPU seconds of a request)
    by_cpu: bool = False  # whether CPU time decided, because other work kept cores busy
    ratio: float = 0.0  # of its speed to that of the candidate to which it lost; 0 without
    pairs: int = 0  # of loops, whose median the ratio is
    shards: int = 1  # processes that serve connections by themselves; 1: worker processes behind one front

    @property
    def is_whole(self) -> bool:
        """Whether the stored measurement is valid: all numbers are in range."""
        return (
            self.batch_limit >= 0
            and self.shards >= 1
            and all(min(figures) > 0 for figures in (*self.rates, *self.cpu_s))
            and [at for *at, _ in self.cpu_s] in ([], [at for *at, _ in self.rates])
            and (not self.by_cpu or len(self.cpu_s) == len(self.rates))
        )

    def describe(self) -> str:
        """Return the settings and their requests per second as text, for the log."""
        name = f"{self.engine} {self.precision}{' with oneDNN' if self.onednn else ''}"
        placed = "" if self.placement == "auto" else f", {self.placement}"
        if self.shards > 1:
            placed = f", {self.shards} shards"
        if self.refused:
            return f"{name}{placed}: {' '.join(self.refused.split())}"
        cpu_ms = {(limit, callers): seconds * 1e3 for limit, callers, seconds in self.cpu_s}
        loops = [
            f"{rate:.0f}/s at {callers}" + (f" with {cpu_ms[limit, callers]:.2f} ms of CPU" if cpu_ms else "")
            for limit, callers, rate in self.rates
            if limit == self.batch_limit
        ]
        if self.pairs:
            loops.append(f"{self.ratio:.2f}x the preferred one in {self.pairs} pairs of loops")
        return f"{name}{placed}, batches of {self.batch_limit}: {', '.join(loops)}"


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fastest engine, precision, placement and batch size for a model on this machine, as measured.

    Files of earlier versions have no `served`.
    """

    among: tuple[Timed, ...]  # all candidates, the chosen candidate first
    key: str = ""  # see `get_choice_key`
    left_open: tuple[str, ...] = ()  # `engine`, `precision`, `use_mkldnn`: keys that config.yml leaves open
    served: tuple[Served, ...] = ()  # candidates whose instances were measured, the chosen candidate first
    provisional: bool = False  # the requests were generated: no sample is beside the model
    memory_bytes: int = 0  # `limits.max_memory`, by which it was chosen; 0 without a limit
    compared_shards: int = 1  # shards that were compared with worker processes; 1: none

    @property
    def engine(self) -> str:
        """Name of the chosen engine, as in `local_service_conf.engine`."""
        return self.among[0].engine

    @property
    def precision(self) -> str:
        """Name of the chosen precision, as in `local_service_conf.precision`."""
        return self.among[0].precision

    @property
    def onednn(self) -> bool:
        """Whether oneDNN was measured, its results agreed, and it was chosen."""
        return self.among[0].onednn

    @property
    def placement(self) -> str:
        """Chosen placement of the instances, `process` or `thread`; `auto` if it was not measured.

        This is the best placement without shards, because fewer shards than chosen may start.
        """
        return next((served.placement for served in self.served if served.shards == 1), "auto")

    @property
    def shards(self) -> int:
        """Chosen number of shards; 1 if shards were not measured, or were not fast enough.

        A shard is a worker that serves HTTP connections itself.
        """
        return self.served[0].shards if self.served else 1

    @property
    def batch_limit(self) -> int:
        """Chosen maximum of requests in a batch; 0 if it was not measured."""
        return self.served[0].batch_limit if self.served else 0

    @property
    def best_rows(self) -> int:
        """Batch size at which a row costs the least time."""
        return self.batch_limit or self.among[0].best_rows()

    @property
    def rows_per_s(self) -> float:
        """Throughput of one instance in rows per second, in the best batch."""
        return 1 / self.among[0].row_s()

    @property
    def is_whole(self) -> bool:
        """Whether the stored choice is valid. A choice read from a damaged file is invalid."""
        chosen = self.among[:1]
        if not chosen or chosen[0].refused:
            return False
        return all(timed.is_whole for timed in self.among) and all(served.is_whole for served in self.served)

    def costs(self) -> Mapping[tuple[int, int], float]:
        """Return the measured seconds of a model run by (rows, length), by which workers plan batches."""
        return {(rows, length): seconds for rows, length, seconds in self.among[0].points}

    def line(self) -> str:
        """Return the chosen settings and the figures of all measured settings in one line, for the log."""
        parts = []
        for candidate in self.among:
            if candidate.refused:
                parts.append(f"{candidate.name}: {' '.join(candidate.refused.split())}")
            else:
                per_s, alone_ms = 1 / candidate.row_s(), candidate.alone_s() * 1e3
                parts.append(f"{candidate.name}: {per_s:.0f} rows/s, alone {alone_ms:.2f} ms")
        parts += [f"served by {served.describe()}" for served in self.served]
        placed = "" if self.placement == "auto" else f" by {self.placement}"
        if self.shards > 1:
            placed = f" by {self.shards} shards"
        remark = ", provisional: measured without real rows" if self.provisional else ""
        if self.served and self.served[0].by_cpu:
            remark += ", by CPU time: other work kept cores busy"
        batches = f"batches of about {self.best_rows}"
        return f"{self.among[0].name}{placed}, {batches}{remark} [{'; '.join(parts)}]"


def choose_served(choice: Choice, served: Sequence[Served], *, provisional: bool) -> Choice:
    """Return the choice updated with throughputs under concurrent callers: the fastest settings win.

    Without a usable result, the choice is unchanged. served: measured throughputs, best first. provisional:
    no real rows were used.
    """
    if not any(result.rates and not result.refused for result in served):
        return msgspec.structs.replace(choice, provisional=provisional)
    best = served[0]
    same = [
        timed
        for timed in choice.among
        if (timed.engine, timed.precision, timed.onednn) == (best.engine, best.precision, best.onednn)
    ]
    among = (*same, *(timed for timed in choice.among if timed not in same))
    return msgspec.structs.replace(choice, among=among, served=tuple(served), provisional=provisional)


def choose(candidates: Sequence[Timed]) -> Choice:
    """Choose the engine and precision with the fastest runs.

    Raises ConfigError, with all reasons, if no engine works. The score is the geometric mean of the time per
    row under load and alone. A candidate that is a little faster in large batches must not make a lone caller
    wait twice as long.
    """
    able = [candidate for candidate in candidates if not candidate.refused and candidate.points]
    if not able:
        reasons = "; ".join(
            f"{candidate.name}: {candidate.refused or 'no run was timed'}" for candidate in candidates
        )
        raise ConfigError(f"no engine here can run the model: {reasons or 'none is installed'}")
    best = min(able, key=Timed.mean_s)
    rest = [candidate for candidate in candidates if candidate is not best]
    return Choice((best, *rest))


def _mean(values: Sequence[float]) -> float:
    """Return the geometric mean of times, so that short and long lengths have the same weight."""
    return math.exp(sum(map(math.log, values)) / len(values))


log = logging.getLogger(__name__)

CHOICES_FILE = "choices.json"
MAX_CHOICES = 32  # the oldest goes first
_DISTRIBUTIONS = ("paddlepaddle", "paddlepaddle-gpu", "onnxruntime", "onnxruntime-gpu", "openvino", "torch")


class ChoiceFile(msgspec.Struct):
    """Content of the file `choices.json`: stored choices of a model, for several machines and versions."""

    choices: dict[str, Choice] = {}  # by key
    machines: dict[str, str] = {}  # facts of each key, for people who read the file


def get_choice_key(model: ServingModel, besides: Sequence[str]) -> tuple[str, str]:
    """Return the key under which a choice is stored, and the text of facts from which the key is hashed.

    besides: further facts besides the model's files and the machine.
    """
    files = [model.program, *([model.params] if model.params else [])]
    facts = "; ".join(
        [
            describe_machine(),
            *list_engine_versions(),
            *besides,
            *(f"{file.name} {hash_sample(file)}" for file in files),
        ]
    )
    return hashlib.sha256(facts.encode()).hexdigest()[:24], facts


def describe_machine() -> str:
    """Return the CPU's name and the number of cores that this process may use, as one text."""
    name = platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name}, {usable_cores()} cores"


def list_engine_versions() -> list[str]:
    """Return the installed packages of engines with their versions, such as "openvino 2025.1"."""
    names_and_versions = []
    added = sorted({plugin.distribution for plugin in find(ENGINES).values()} - {PROJECT, *_DISTRIBUTIONS})
    for name in (*_DISTRIBUTIONS, *added):
        with contextlib.suppress(PackageNotFoundError):
            if installed := version(name):  # None of one whose files are gone
                names_and_versions.append(f"{name} {installed}")
    return names_and_versions


def read_choice(model: ServingModel, key: str) -> Choice | None:
    """Return the choice stored under this key, in the model's folder or the cache folder; None if absent."""
    for path in _places(model, key):
        try:
            choice = _load(path).choices.get(key)
        except ConfigError as exc:
            log.warning("%s: measured anew", exc.message)
            continue
        if choice is not None:
            return choice
    return None


def write_choice(model: ServingModel, key: str, facts: str, choice: Choice) -> Choice:
    """Store a choice, and return the choice to use: if another process has stored one earlier, that one.

    key, facts: see `get_choice_key`.
    """
    places = list(_places(model, key))
    for path in places:
        with contextlib.suppress(ConfigError):
            if (earlier := _load(path).choices.get(key)) is not None:
                return earlier
    for path in places:
        stored = ChoiceFile()
        with contextlib.suppress(ConfigError):
            stored = _load(path)
        stored.choices[key], stored.machines[key] = choice, facts
        for old in list(stored.choices)[:-MAX_CHOICES]:
            del stored.choices[old]
            stored.machines.pop(old, None)
        if _is_written(path, stored):
            return choice
    log.warning("the choice can't be kept in %s: each start measures again", " or ".join(map(str, places)))
    return choice


def _is_written(path: Path, stored: ChoiceFile) -> bool:
    """Replace a file of choices atomically. Return whether the folder could be written."""
    # Not by the number of the process: in containers that share the folder all have the same.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(stored)))
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        return False
    return True


def _places(model: ServingModel, key: str) -> Iterator[Path]:
    """Yield the paths where the choices of a model may be stored, the preferred path first."""
    yield model.directory / CHOICES_FILE
    yield cache_folder("choices") / f"{key}.json"


def _load(path: Path) -> ChoiceFile:
    """Read a file of choices; an absent file is empty. Raises ConfigError for a damaged file."""
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=ChoiceFile)
    except OSError:
        return ChoiceFile()
    except msgspec.MsgspecError as exc:
        raise ConfigError(f"{path} is no file of choices ({exc})") from exc
    if not all(choice.is_whole for choice in stored.choices.values()):
        raise ConfigError(f"{path} is no file of choices (one has no times)")
    return stored

"""Results of a comparison: loads, pairs of loads, and table rows with the ratios of the pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import msgspec

TRIAL = "trial"  # key of the subject without admission, limits, metrics and recovery


class Turn(msgspec.Struct, frozen=True):
    """Results of one load. CPU in ms per request and memory in MB are sums over all processes.

    Latencies are None for a loop, which gets no requests. short_p99_ms: of the short texts of a mix.
    alone_p99_ms: of the same texts without the long ones. others: cores that other programs kept busy. idle:
    cores without work.
    """

    per_s: float
    cpu_ms: float
    rss_mb: float
    others: float
    idle: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    errors: int = 0
    short_p99_ms: float | None = None
    alone_p99_ms: float | None = None

    @property
    def busy(self) -> float:
        """Number of cores that the processes of the subject keep busy."""
        return self.per_s * self.cpu_ms / 1e3


class Pair(msgspec.Struct, frozen=True):
    """Two turns, one right after the other."""

    ours: Turn
    theirs: Turn

    @property
    def others(self) -> float:
        """Number of cores that other programs kept busy, in the worse of the two turns."""
        return max(self.ours.others, self.theirs.others)


class Row(msgspec.Struct, frozen=True):
    """A subject compared with our service for one model, one kind of texts and one number of connections.

    seconds: duration of a turn. batch, wait_ms: the fastest setting of a peer; 0 without settings. machine:
    CPU model and cores; empty in files of older versions.
    """

    model: str
    workload: str
    connections: int
    key: str
    name: str
    seconds: float
    start_s: float
    ours_start_s: float
    pairs: tuple[Pair, ...]
    batch: int = 0
    wait_ms: float = 0
    machine: str = ""

    @property
    def scenario(self) -> tuple[str, str, int]:
        return self.model, self.workload, self.connections

    @property
    def is_ours(self) -> bool:
        return self.key.startswith("ours")

    @property
    def is_limit(self) -> bool:
        """Whether the subject is no complete server: a loop without requests, or the trial."""
        return self.key == TRIAL or all(pair.theirs.p50_ms is None for pair in self.pairs)

    def ratios(self, figure: Callable[[Turn], float | None] = lambda turn: turn.per_s) -> list[float]:
        """Return the ratio of the subject to our service in each round in which both have the figure."""
        found = []
        for pair in self.pairs:
            theirs, ours = figure(pair.theirs), figure(pair.ours)
            if theirs is not None and ours:
                found.append(theirs / ours)
        return found

    def ratio(self) -> float:
        """Median ratio of requests per second; above 1 the subject is faster than our service."""
        return median(self.ratios())

    def theirs(self, figure: Callable[[Turn], float | None]) -> float | None:
        return _median([figure(pair.theirs) for pair in self.pairs])

    def errors(self) -> int:
        return sum(pair.theirs.errors for pair in self.pairs)


class Choice(msgspec.Struct, frozen=True):
    """Engine and settings that `auto` chose for a model, and the seconds that the choice took.

    A choice that is cached takes one or two seconds.
    """

    model: str
    key: str
    engine: str
    precision: str
    seconds: float


class Report(msgspec.Struct):
    """All results, of several runs of the command with --add."""

    machine: str = ""
    versions: list[str] = []
    rows: list[Row] = []
    choices: list[Choice] = []
    left_out: dict[str, str] = {}

    def add(self, row: Row) -> None:
        """Add a row. It replaces the row of the same subject and scenario."""
        same = (*row.scenario, row.key)
        self.rows = [old for old in self.rows if (*old.scenario, old.key) != same] + [row]

    def choose(self, choice: Choice) -> None:
        same = choice.model, choice.key
        self.choices = [old for old in self.choices if (old.model, old.key) != same] + [choice]

    def scenarios(self) -> list[tuple[str, str, int]]:
        return list(dict.fromkeys(row.scenario for row in self.rows))

    def get_rows(self, scenario: tuple[str, str, int]) -> list[Row]:
        """Return the rows of a scenario. The first row is our service, with all its turns there."""
        rows = [row for row in self.rows if row.scenario == scenario]
        own = tuple(Pair(pair.ours, pair.ours) for row in rows for pair in row.pairs)
        started = median(row.ours_start_s for row in rows)
        return [Row(*scenario, "ours", "Paddlewheel", rows[0].seconds, started, started, own), *rows]

    def others(self) -> tuple[float, float]:
        """Number of cores that other programs kept busy: the median and the maximum of all turns."""
        cores = [turn.others for row in self.rows for pair in row.pairs for turn in (pair.ours, pair.theirs)]
        return median(cores), max(cores)


def _median(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return median(there) if there else None

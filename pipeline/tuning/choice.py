"""A choice: the engine, the precision and the costs of runs that were measured for one model on one machine.

Choosing is pure: it looks at tables of times alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from pipeline.errors import ConfigError

USUAL_LENGTHS = (16, 64)  # by which candidates are compared: a headline and a short paragraph
Point = tuple[int, int, float]


class Timed(msgspec.Struct, frozen=True):
    """One way to run a model, and how long its runs took.

    file: the program that it runs, of the forms of the model that are there. points: (rows, length, seconds)
    of runs. took_s: all of it, loading included. refused: why it can't be taken; empty where it can.
    unsuited: it is refused for the feeds alone, which are made up: the Op's own may suit it. onednn: oneDNN
    was tried where config.yml leaves that open.
    """

    engine: str
    precision: str
    file: str = ""
    points: tuple[Point, ...] = ()
    took_s: float = 0.0
    refused: str = ""
    unsuited: bool = False
    onednn: bool = False

    @property
    def name(self) -> str:
        """For the log and tables: as "openvino bf16"."""
        return f"{self.engine} {self.precision}{' with oneDNN' if self.onednn else ''}"

    @property
    def is_whole(self) -> bool:
        """Whether it is refused, or has times to be compared by."""
        timed = all(rows > 0 and length > 0 and seconds > 0 for rows, length, seconds in self.points)
        return bool(self.refused) or (timed and any(rows == 1 for rows, _, _ in self.points))

    def alone_s(self) -> float:
        """Seconds of one row by itself: what a lone caller waits for."""
        return _mean([min(s for _, s in self._timings_at(length, 1)) for length in self._compared()])

    def row_s(self) -> float:
        """Seconds a row costs in the batch that suits it best: what counts under load."""
        return _mean([min(s / rows for rows, s in self._timings_at(length)) for length in self._compared()])

    def best_rows(self) -> int:
        """Rows of the batch in which a row costs the least, at the shortest length that is compared."""
        return min(self._timings_at(min(self._compared())), key=lambda run: run[1] / run[0])[0]

    def _compared(self) -> Sequence[int]:
        lengths = sorted({length for _, length, _ in self.points})
        return [length for length in lengths if length in USUAL_LENGTHS] or lengths[:1]

    def _timings_at(self, length: int, most_rows: int | None = None) -> list[tuple[int, float]]:
        return [
            (rows, s)
            for rows, at, s in self.points
            if at == length and (most_rows is None or rows <= most_rows)
        ]


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was chosen for a model: `among` has all that were tried, the chosen one first.

    key: of what it was chosen for, see `kept.get_choice_key`. left_open: which of `engine`, `precision` and
    `use_mkldnn` config.yml leaves to it.
    """

    among: tuple[Timed, ...]
    key: str = ""
    left_open: tuple[str, ...] = ()

    @property
    def engine(self) -> str:
        """As `local_service_conf.engine` names it."""
        return self.among[0].engine

    @property
    def precision(self) -> str:
        """As `local_service_conf.precision` names it."""
        return self.among[0].precision

    @property
    def onednn(self) -> bool:
        """Whether oneDNN was tried, proved and chosen."""
        return self.among[0].onednn

    @property
    def best_rows(self) -> int:
        """Rows of the batch in which a row costs the least."""
        return self.among[0].best_rows()

    @property
    def rows_per_s(self) -> float:
        """As it was timed, on one core where a run has one thread."""
        return 1 / self.among[0].row_s()

    @property
    def is_whole(self) -> bool:
        """Whether it can be used; what was read from a damaged file can not."""
        first = self.among[:1]
        return bool(first) and not first[0].refused and all(one.is_whole for one in self.among)

    def costs(self) -> Mapping[tuple[int, int], float]:
        """Seconds of a run, by rows and length."""
        return {(rows, length): seconds for rows, length, seconds in self.among[0].points}

    def line(self) -> str:
        """The choice and its table in one line, for the log."""
        told = []
        for one in self.among:
            if one.refused:
                told.append(f"{one.name}: {' '.join(one.refused.split())}")
            else:
                told.append(f"{one.name}: {1 / one.row_s():.0f} rows/s, alone {one.alone_s() * 1e3:.2f} ms")
        return f"{self.among[0].name}, batches of about {self.best_rows} [{'; '.join(told)}]"


def choose(candidates: Sequence[Timed]) -> Choice:
    """The fastest of those that can be taken. Raises ConfigError, with each one's reason, where none can.

    A candidate's figure is the geometric mean of what a row costs under load and alone: one that is a little
    faster in large batches is not taken where a lone caller would wait twice as long.
    """
    able = [one for one in candidates if not one.refused and one.points]
    if not able:
        reasons = "; ".join(f"{one.name}: {one.refused or 'no run was timed'}" for one in candidates)
        raise ConfigError(f"no engine here can run the model: {reasons or 'none is installed'}")
    best = min(able, key=lambda one: math.sqrt(one.row_s() * one.alone_s()))
    rest = [one for one in candidates if one is not best]
    return Choice((best, *rest))


def _mean(values: Sequence[float]) -> float:
    """The geometric mean, in which a short length counts as much as a long one."""
    return math.exp(sum(map(math.log, values)) / len(values))

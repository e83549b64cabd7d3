"""What was measured of settings, the frontier of throughput against p99, and the choice on it. All pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from pipeline.errors import ConfigError
from pipeline.tuning.settings import Settings

TOLERANCE = 0.05  # of throughput and of p99: what two measurements of the same settings differ by


class Round(msgspec.Struct, frozen=True):
    """One time that a number of connections asked in a closed loop.

    latencies_ms: of the requests that were answered. cpu_s: of the service, its workers included. failed:
    requests that were refused or lost; error: what the first of them was told.
    """

    connections: int
    seconds: float
    latencies_ms: tuple[float, ...]
    cpu_s: float = 0.0
    failed: int = 0
    error: str = ""


class Point(msgspec.Struct, frozen=True):
    """What settings give at a number of connections, over all its rounds.

    cpu_ms: of the service, a request. cores: that the service kept busy.
    """

    connections: int
    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    cores: float
    rounds: int


class Measured(msgspec.Struct, frozen=True):
    """Settings and the rounds that were measured of them. refused: why they can't be used; else empty."""

    settings: Settings
    rounds: tuple[Round, ...] = ()
    refused: str = ""

    def points(self) -> list[Point]:
        """One for each number of connections, in their order."""
        levels = sorted({one.connections for one in self.rounds})
        return [_point([one for one in self.rounds if one.connections == level]) for level in levels]


class Chosen(msgspec.Struct, frozen=True):
    """The choice: settings, and the point at which they were chosen. met: whether the p99 asked for holds."""

    settings: Settings
    point: Point
    met: bool = True


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest of the sorted values that `percent` of them do not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def knee(point: Point) -> float:
    """How good a point is where no p99 is asked for: 1% more throughput is worth up to 2% more p99."""
    return point.per_s**2 / max(point.p99_ms, 1e-6)


def frontier(measured: Iterable[Measured]) -> list[tuple[Settings, Point]]:
    """The points than which none has both more throughput and a lower p99, by throughput."""
    points = [(one.settings, point) for one in measured if not one.refused for point in one.points()]
    best: list[tuple[Settings, Point]] = []
    for settings, point in sorted(points, key=lambda each: (-each[1].per_s, each[1].p99_ms)):
        if not best or point.p99_ms < best[-1][1].p99_ms:
            best.append((settings, point))
    return best[::-1]


def choose(measured: Iterable[Measured], p99_ms: float | None) -> Chosen:
    """The greatest throughput whose p99 holds, or the knee where none is asked for.

    Where no point holds the p99, the one with the lowest, which is `met` not. Raises ConfigError with each
    one's reason where nothing was measured.
    """
    measured = list(measured)
    points = [(one.settings, point) for one in measured if not one.refused for point in one.points()]
    if not points:
        reasons = "\n".join(f"  {one.settings.name}: {one.refused or 'no answer'}" for one in measured)
        raise ConfigError(f"no candidate can run the model here:\n{reasons}")
    if p99_ms is None:
        return Chosen(*max(points, key=lambda each: knee(each[1])))
    held = [each for each in points if each[1].p99_ms <= p99_ms]
    if held:
        return Chosen(*max(held, key=lambda each: each[1].per_s))
    return Chosen(*min(points, key=lambda each: each[1].p99_ms), met=False)


def survivors(measured: Sequence[Measured], p99_ms: float | None, most: int) -> list[Measured]:
    """The best of them, best first, without those that are dominated: others are better at every load."""
    able = [one for one in measured if not one.refused and one.rounds]
    kept = [one for one in able if not any(_dominates(other, one) for other in able if other is not one)]
    return sorted(kept, key=lambda one: _rank(choose([one], p99_ms), p99_ms), reverse=True)[:most]


def _rank(best: Chosen, p99_ms: float | None) -> tuple[bool, float]:
    if p99_ms is None:
        return True, knee(best.point)
    return best.met, best.point.per_s if best.met else -best.point.p99_ms


def _dominates(better: Measured, worse: Measured) -> bool:
    """Whether each point of `worse` is beaten by one of `better`, in both figures and by more than noise."""
    factor = 1 + TOLERANCE
    return all(
        any(own.per_s >= point.per_s * factor and own.p99_ms * factor <= point.p99_ms for own in mine)
        for mine in [better.points()]
        for point in worse.points()
    )


def _point(rounds: Sequence[Round]) -> Point:
    latencies = sorted(ms for one in rounds for ms in one.latencies_ms)
    seconds = sum(one.seconds for one in rounds)
    cpu_s = sum(one.cpu_s for one in rounds)
    return Point(
        rounds[0].connections,
        len(latencies) / seconds,
        percentile(latencies, 50),
        percentile(latencies, 99),
        cpu_s * 1e3 / len(latencies),
        cpu_s / seconds,
        len(rounds),
    )

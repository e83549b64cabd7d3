"""The report of a run: tables for people, JSON for machines, and which promises were broken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.chaos.outcome import HEALTH, Kind, Tally

LATEST_S = 15.0  # half of the default deadline: the longest that any fault may delay an answer
GROWTH = 1.25  # of a process, above what it had under load and before the faults
# Growth on top in MB: buffers of the largest flood; oneDNN's memory for each shape of a run.
_FRONT_GROWTH_MB, _WORKER_GROWTH_MB = 32.0, 256.0
# Bodies of hostile clients leave free places between the objects of live requests: at most one body of 60 MB.
# A leak would keep a body for each attack; `--growth` over ten minutes finds a slower one.
_HOSTILE_GROWTH_MB = 64.0
MAX_LOST_SHARE = 1e-4  # of all requests, may be on connections of dead shards that are closed
MAX_LOST_FEW = 1  # beside that, in a short run
_SERVER_FAULTS = ("500", "INTERNAL", "UNKNOWN")


def grown_processes(
    before_mb: Mapping[str, float],
    after_mb: Mapping[str, float],
    *,
    attacked: bool,
    growth: float | None = None,
) -> list[str]:
    """Return the processes whose memory grew beyond what a run of seconds allows, or beyond `growth`."""

    def limit_mb(name: str) -> float:
        if growth is not None:
            return before_mb[name] * growth
        on_top_mb = _FRONT_GROWTH_MB + _HOSTILE_GROWTH_MB * attacked if name == "front" else _WORKER_GROWTH_MB
        return before_mb[name] * GROWTH + on_top_mb

    return [name for name in before_mb if after_mb.get(name, 0.0) > limit_mb(name)]


@dataclass
class Report:
    """faults: how often each was done. alone_s: what a request takes while there is no other.

    before_mb, after_mb: resident memory by process, under load.
    growth: most MB after by MB before; None for what a short run may show.
    hostile: statuses of the answers to hostile clients, by attack.
    health_limit_s: bound for the 99th percentile of `/health/live`; None for no bound.
    lost_connections: closed because their shard died within an answer; that many requests may fail.
    """

    tally: Tally
    faults: Mapping[str, int]
    seconds: float
    alone_s: float
    before_mb: Mapping[str, float]
    after_mb: Mapping[str, float]
    broken: list[str] = field(default_factory=list)
    growth: float | None = None
    hostile: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    health_limit_s: float | None = None
    lost_connections: int = 0

    def promises_broken(self) -> list[str]:
        """A sentence for each; none when all held."""
        broken = list(self.broken)
        for kind, allowed in (Kind.MISMATCHED, 0), (Kind.FAILED, self.lost_connections):
            if (count := self.tally.total(kind)) > allowed:
                broken.append(f"{count} requests {kind.value}, {allowed} on connections of dead shards")
        if self.lost_connections > MAX_LOST_SHARE * sum(map(self.tally.total, Kind)) + MAX_LOST_FEW:
            broken.append(f"{self.lost_connections} connections were closed within an answer")
        if not self.tally.total(Kind.ANSWERED):
            broken.append("no request was answered")
        broken += [
            f"{endpoint}: a request waited {waited_s:.1f} s"
            for endpoint, waited_s in self.tally.max_wait_s.items()
            if waited_s > LATEST_S and endpoint != "malformed"
        ]
        before, after = self.before_mb, self.after_mb
        broken += [
            f"{name} grew from {before[name]:.0f} to {after[name]:.0f} MB"
            for name in grown_processes(before, after, attacked=bool(self.hostile), growth=self.growth)
        ]
        broken += [
            f"{counts[status]} requests of {attack} were answered {status}"
            for attack, counts in self.hostile.items()
            for status in _SERVER_FAULTS
            if counts.get(status)
        ]
        health_s = _quantiles(self.tally.health_s)[1]
        if self.health_limit_s is not None and health_s > self.health_limit_s:
            broken.append(f"p99 of {HEALTH} is {health_s * 1e3:.0f} ms, above {self.health_limit_s * 1e3:g}")
        return broken

    def as_json(self) -> dict[str, Any]:
        tally = self.tally
        return {
            "seconds": round(self.seconds, 1),
            "faults": dict(self.faults),
            "doors": {
                endpoint: {
                    **{kind.value: counts[kind] for kind in Kind},
                    "max_wait_s": tally.max_wait_s[endpoint],
                }
                for endpoint, counts in tally.by_endpoint.items()
            },
            "refused": dict(tally.refusals),
            "wrong": dict(tally.faults),
            "hostile": {attack: dict(counts) for attack, counts in self.hostile.items()},
            "ms": {name: [1e3 * q for q in _quantiles(seconds)] for name, seconds in self._seconds().items()},
            "deaths": self._deaths(),
            "lost_connections": self.lost_connections,
            "before_mb": dict(self.before_mb),
            "after_mb": dict(self.after_mb),
            "broken": self.promises_broken(),
        }

    def print(self, console: Console) -> None:
        console.print(self._requests())
        console.print(self._memory())
        done = ", ".join(f"{name} {count}" for name, count in self.faults.items()) or "none"
        refused = ", ".join(f"{reason} {count}" for reason, count in self.tally.refusals.most_common())
        console.print(self._waits())
        if self.tally.deaths:
            console.print(self._told_deaths(), highlight=False)
        console.print(f"faults: {done}\nrefused: {refused or 'none'}", highlight=False)
        for attack, counts in self.hostile.items():
            answers = ", ".join(f"{status} {count}" for status, count in sorted(counts.items()))
            console.print(f"{attack}: {answers or 'no answer'}", highlight=False)
        if self.lost_connections:
            console.print(f"connections of dead shards, closed within an answer: {self.lost_connections}")
        for reason, count in self.tally.faults.most_common(10):
            console.print(f"{count} x {reason}", style="red", markup=False)
        broken = self.promises_broken()
        for sentence in broken:
            console.print(f"BROKEN: {sentence}", style="red", markup=False)
        if not broken:
            console.print("all promises held", style="green")

    def _requests(self) -> Table:
        table = Table(title=f"{self.seconds:.0f} s under load and faults", title_justify="left")
        table.add_column("endpoint")
        for heading in ("requests", *(kind.value for kind in Kind), "max wait s"):
            table.add_column(heading, justify="right")
        for endpoint, counts in self.tally.by_endpoint.items():
            numbers = [sum(counts.values()), *(counts[kind] for kind in Kind)]
            table.add_row(
                endpoint, *(f"{number:,}" for number in numbers), f"{self.tally.max_wait_s[endpoint]:.2f}"
            )
        totals = [self.tally.total(kind) for kind in Kind]
        longest = max(self.tally.max_wait_s.values(), default=0.0)
        table.add_section()
        table.add_row("all", *(f"{number:,}" for number in (sum(totals), *totals)), f"{longest:.2f}")
        return table

    def _waits(self) -> Table:
        table = Table("ms until an answer")
        for heading in ("answers", "p50", "p99", "max"):
            table.add_column(heading, justify="right")
        for name, seconds in self._seconds().items():
            p50, p99, most = (f"{quantile * 1e3:.0f}" for quantile in _quantiles(seconds))
            table.add_row(name, f"{len(seconds):,}", p50, p99, most)
        return table

    def _seconds(self) -> dict[str, Sequence[float]]:
        deaths = self.tally.deaths
        return {
            HEALTH: self.tally.health_s,
            "usually": self.tally.usual_s,
            "of those under way, after a worker's death": [s for death in deaths for s in death.bereft_s],
            "the same, less its requests' time alone": [
                s - death.retried * self.alone_s for death in deaths for s in death.bereft_s
            ],
        }

    def _deaths(self) -> dict[str, Any]:
        """Whether a death cost its bound at most: twice a usual wait, and a run alone for each request."""
        _, usual, _, beyond = (_quantiles(seconds)[1] * 1e3 for seconds in self._seconds().values())
        return {
            "retried": [death.retried for death in self.tally.deaths],
            "alone_ms": self.alone_s * 1e3,
            "p99_less_alone_ms": beyond,
            "bound_ms": 2 * usual,
            "held": beyond < 2 * usual,
        }

    def _told_deaths(self) -> str:
        deaths = self._deaths()
        retried, held = deaths["retried"], "held" if deaths["held"] else "missed"
        return (
            f"killed workers: {len(retried)}, of whose requests {mean(retried):.0f} were tried again "
            f"({min(retried)} to {max(retried)}), {deaths['alone_ms']:.1f} ms each alone; p99 less that "
            f"{deaths['p99_less_alone_ms']:.0f} ms, twice the usual p99 {deaths['bound_ms']:.0f}: {held}"
        )

    def _memory(self) -> Table:
        table = Table("resident memory, MB", title_justify="left")
        table.add_column("before", justify="right")
        table.add_column("after", justify="right")
        for name, before in self.before_mb.items():
            table.add_row(name, f"{before:.0f}", f"{self.after_mb.get(name, 0.0):.0f}")
        return table


def _quantiles(seconds: Sequence[float]) -> tuple[float, float, float]:
    """p50, p99 and the largest."""
    ordered = sorted(seconds) or [0.0]
    return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1]

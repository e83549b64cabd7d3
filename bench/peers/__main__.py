"""Compares our service with other servers and with loops without a server, in turns on the same cores.

All subjects get the same models and texts. The first run creates models with random weights and an
environment for each peer, below build/peers. A peer that can't be installed or started is reported and
skipped. Only ratios within a round count, because the host's speed drifts. Each peer runs with the fastest of
its settings at each number of connections, our service with its defaults.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress, TaskID

from bench.load import CannotMeasure
from bench.peers.comparison import Comparison
from bench.peers.environments import FOLDER
from bench.peers.figures import Pair, Report, Row
from bench.peers.neighbours import neighbours
from bench.peers.ours import OurService, our_service
from bench.peers.pages import write, write_docs
from bench.peers.report import print_tables
from bench.peers.scenarios import MODELS, WORKLOADS, Model, Scenario, get_model, scenarios
from bench.peers.subjects import LEFT_OUT, NO_SETTING, OURS, SUBJECTS, Peer, Setting, Subject, select_subjects
from bench.peers.turns import pair
from bench.texts import headlines
from pipeline.tuning.choice import describe_machine, list_engine_versions

QUIET = 0.1  # cores that other programs keep busy: above this, a pair may be measured again
SLOWER = {"12x768": 3}  # factor of a turn's length: one text takes ten milliseconds or more
TRIAL_S = 2.0  # length of a turn that compares settings of a peer
EXAMPLES = """examples:
  python -m bench.peers --models 2x128 --subjects mosec trial --connections 20 64     a few minutes
  python -m bench.peers                                        everything: two hours
  python -m bench.peers --add --subjects ray --rounds 5        one subject anew, the others as they were
  python -m bench.peers --print --docs                         plot and tables of what was measured, in docs/
"""


class Run:
    """One run of the command: its options, and the report to which it adds rows."""

    def __init__(self, options: argparse.Namespace, report: Report, console: Console) -> None:
        self._options = options
        self._report = report
        self._console = console

    def measure(self) -> None:
        """Measure all scenarios. Raises CannotMeasure if our service can't be measured."""
        options = self._options
        asked = scenarios(options.models, options.workloads, options.connections)
        with Progress(console=self._console, transient=True) as progress:
            task = progress.add_task("", total=sum(map(self._turns, asked)))
            for key, some in groupby(asked, key=lambda scenario: scenario.model):
                progress.update(task, description=f"{key}: model and our service")
                model = get_model(key)
                if not options.add:
                    model.forget_choices()
                with our_service(OURS, model, headlines()[0]) as own:
                    self._report.choose(own.choice)
                    for scenario in some:
                        self._scenario(own, model, scenario, progress, task)

    def _turns(self, scenario: Scenario) -> int:
        return len(self._subjects(scenario)) * self._options.rounds * len(scenario.connections)

    def _subjects(self, scenario: Scenario) -> list[Subject]:
        return select_subjects(scenario.model, self._options.subjects)

    def _scenario(
        self, own: OurService, model: Model, scenario: Scenario, progress: Progress, task: TaskID
    ) -> None:
        workload = WORKLOADS[scenario.workload]
        with neighbours(workload.neighbours) as beside:
            comparison = Comparison(own, model, workload.texts(), beside, self._options.python39)
            for subject in self._subjects(scenario):
                progress.update(task, description=f"{scenario.model}, {scenario.workload}: {subject.name}")
                self._subject(comparison, subject, scenario)
                progress.advance(task, self._options.rounds * len(scenario.connections))
                if self._report.rows:
                    write(self._report, self._options.json)

    def _subject(self, comparison: Comparison, subject: Subject, scenario: Scenario) -> None:
        title = f"{subject.name} with {scenario.model}, {scenario.workload}"
        self._report.left_out.pop(title, None)
        try:
            for row in self._rows(comparison, subject, scenario):
                self._report.add(row)
        except CannotMeasure as exc:
            self._report.left_out[title] = str(exc).splitlines()[0].rstrip(": ")
            self._console.print(f"{title} is left out: {exc}", markup=False)

    def _rows(self, comparison: Comparison, subject: Subject, scenario: Scenario) -> list[Row]:
        if not isinstance(subject, Peer):
            return self._measure(comparison, subject, scenario, None)
        rows = []
        best = self._find_best_settings(comparison, subject, scenario)
        for setting in dict.fromkeys(best.values()):
            counts = tuple(count for count in scenario.connections if best[count] == setting)
            rows += self._measure(comparison, subject, scenario._replace(connections=counts), setting)
        return rows

    def _find_best_settings(
        self, comparison: Comparison, peer: Peer, scenario: Scenario
    ) -> dict[int, Setting]:
        """Return the setting with the highest throughput for each number of connections, by a short trial."""
        if len(peer.settings) == 1:
            return dict.fromkeys(scenario.connections, peer.settings[0])
        seconds = TRIAL_S * SLOWER.get(scenario.model, 1)
        fastest: dict[int, tuple[float, Setting]] = {}
        for setting in peer.settings:
            with comparison.with_subject(peer, setting) as (_, theirs, _):
                for count in scenario.connections:
                    per_s = theirs.measured.turn(count, seconds).per_s
                    theirs.measured.wait_until_idle()
                    if count not in fastest or per_s > fastest[count][0]:
                        fastest[count] = per_s, setting
        return {count: setting for count, (_, setting) in fastest.items()}

    def _measure(
        self, comparison: Comparison, subject: Subject, scenario: Scenario, setting: Setting | None
    ) -> list[Row]:
        """Return a row for each number of connections.

        Each round covers all of them, so that drift affects all alike.
        """
        seconds = self._options.seconds * SLOWER.get(scenario.model, 1)
        pairs: dict[int, list[Pair]] = {count: [] for count in scenario.connections}
        with comparison.with_subject(subject, setting) as (ours, theirs, choice):
            for number in range(self._options.rounds):
                for count, found in pairs.items():
                    take = partial(
                        pair, ours.measured, theirs.measured, count, seconds, ours_first=number % 2 == 0
                    )
                    found.append(quietest(take, self._options.tries))
            if choice is not None:
                self._report.choose(choice)
            return [
                Row(
                    scenario.model, scenario.workload, count, subject.key, subject.name, seconds,
                    theirs.start_s, ours.start_s, tuple(found), *(setting or NO_SETTING),
                    machine=self._report.machine,
                )
                for count, found in pairs.items()
            ]  # fmt: skip


def quietest(take: Callable[[], Pair], tries: int) -> Pair:
    """Return the first pair measured without much other work on the cores.

    After `tries` pairs, the pair with the least other work is returned.
    """
    found = [take()]
    while found[-1].others > QUIET and len(found) < tries:
        found.append(take())
    return min(found, key=lambda pair: pair.others)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    report = Report(left_out=dict(LEFT_OUT))
    if (options.add or options.print) and options.json.is_file():
        report = msgspec.json.decode(options.json.read_bytes(), type=Report)
    try:
        if not options.print:
            report.machine, report.versions = describe_machine(), list_engine_versions()
            Run(options, report, console).measure()
        if not report.rows:
            raise CannotMeasure(f"{options.json} holds no figures")
        report.rows.sort(key=_place)
        print_tables(console, report)
        if options.docs:
            write_docs(report)
    except CannotMeasure as exc:
        console.print(f"not measured: {exc}", style="red", markup=False)
        return 1
    return 0


def _place(row: Row) -> tuple[int, ...]:
    """Return the sort key of a row in the report."""
    keys = [subject.key for subject in SUBJECTS]
    return (
        list(MODELS).index(row.model),
        list(WORKLOADS).index(row.workload),
        row.connections,
        keys.index(row.key),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    for option, known in (
        ("--models", MODELS),
        ("--workloads", tuple(WORKLOADS)),
        ("--subjects", tuple(subject.key for subject in SUBJECTS)),
    ):
        help_text = f"of {', '.join(known)} (default: all)"
        parser.add_argument(option, nargs="+", choices=known, default=known, metavar="NAME", help=help_text)
    parser.add_argument("--connections", type=int, nargs="+", help="default: 1 20 64, and 256 for 2x128")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument(
        "--seconds",
        type=float,
        default=2,
        help="of a turn, 3 times as many for 12x768 (default: %(default)s)",
    )
    parser.add_argument(
        "--tries", type=int, default=1, metavar="N",
        help="measure a pair so many times where other work takes the cores (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--json", type=Path, default=FOLDER / "report.json",
        help="file for all figures, with .md and .svg beside it (default: build/peers/report.json)",
    )  # fmt: skip
    parser.add_argument(
        "--add", action="store_true", help="keep what that file has, but for what is measured"
    )
    parser.add_argument("--print", action="store_true", help="measure nothing: show what that file has")
    parser.add_argument("--docs", action="store_true", help="write plot and tables into docs/, too")
    parser.add_argument(
        "--python39", default="python3.9", metavar="PATH", help="for Paddle Serving (default: %(default)s)"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

"""The savings of a precision: the size of the files and, for information, the time of a run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table

from convert.programs.program_feeds import Feeds
from convert.programs.runners import Runner

_RUNS = 30


@dataclass(frozen=True)
class Form:
    """One form of the model, with its size and speed."""

    name: str
    size: int  # bytes on disk
    run_ms: float  # median of the runs


def timed_form(name: str, files: Sequence[Path], run: Runner, batches: Sequence[Feeds]) -> Form:
    """Measure 30 runs of the first batches, after one run of each."""
    chosen = [batches[number % len(batches)] for number in range(_RUNS)]
    for batch in batches[:_RUNS]:
        run(batch)
    times = []
    for batch in chosen:
        start = time.perf_counter()
        run(batch)
        times.append(time.perf_counter() - start)
    return Form(name, sum(path.stat().st_size for path in files), statistics.median(times) * 1e3)


def figures_table(forms: Sequence[Form]) -> Table:
    """Return a table of the forms, the original first."""
    table = Table(title="Size and time of a run", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("model", no_wrap=True)
    for column in ("MB", "of fp32", "ms a run", "of fp32"):
        table.add_column(column, justify="right", no_wrap=True)
    first = forms[0]
    for form in forms:
        table.add_row(
            form.name,
            f"{form.size / 1e6:.2f}",
            f"{form.size / first.size:.0%}",
            f"{form.run_ms:.2f}",
            f"{form.run_ms / first.run_ms:.0%}",
        )
    return table

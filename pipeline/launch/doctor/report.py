"""The report of `paddlewheel doctor`: runs all checks, and prints a table or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipeline.launch.doctor import Finding, Status
from pipeline.launch.doctor.checks import (
    check_config,
    check_gpu,
    check_machine,
    check_running,
    check_software,
)
from pipeline.launch.doctor.prediction import check_paddle, check_predictions, try_prediction

STYLES = {Status.OK: "green", Status.NOTE: "yellow", Status.MISS: "bold red"}
PIPE_WIDTH = 120  # columns of a table that is not printed to a terminal


def examine(config_file: Path | None = None) -> list[Finding]:
    """Run all checks of `paddlewheel doctor`; return the findings in the order of the report.

    Takes seconds, because a child process imports Paddle. Without `config_file`, checks the config.yml of the
    working directory if it exists.
    """
    with _show_progress() as say:
        say("Looking at the machine and its packages")
        findings = [*check_software(), *check_machine(), *check_running()]
        config, about_config = check_config(config_file)
        say("Importing Paddle and trying a prediction (some seconds)")
        trial = try_prediction()
        say("Looking for GPUs")
        about_gpu = check_gpu(trial.paddle if trial.with_paddle else None, config)
    return [*findings, check_paddle(trial), *about_gpu, *about_config, *check_predictions(trial)]


@contextmanager
def _show_progress() -> Iterator[Callable[[str], None]]:
    try:
        from rich.console import Console
    except ImportError:  # a missing rich is a finding, not a crash of the doctor
        yield lambda doing: None
        return
    with Console(stderr=True).status("") as status:
        yield status.update


def all_needed_is_there(findings: Sequence[Finding]) -> bool:
    """Return whether no finding has the status MISS, so that this machine can serve."""
    return all(finding.status is not Status.MISS for finding in findings)


def write_report(findings: Sequence[Finding]) -> None:
    """Print the findings to standard output as a table, then a line that sums them up.

    Without the package rich the findings are plain lines.
    """
    try:
        _write_table(findings)
    except ImportError:
        for finding in findings:
            remedy = f" -> {finding.remedy}" if finding.remedy else ""
            sys.stdout.write(f"{finding.status.value:4} {finding.check}: {finding.result}{remedy}\n")
    misses = [finding.check for finding in findings if finding.status is Status.MISS]
    summary = (
        f"This machine can't serve yet: {', '.join(misses)}." if misses else "Everything needed is there."
    )
    sys.stdout.write(f"{summary}\n")


def _write_table(findings: Sequence[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_WIDTH)
    table = Table()
    for heading in ("Check", "", "Found", "Remedy"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        status = Text(finding.status.value, style=STYLES[finding.status])
        table.add_row(Text(finding.check), status, Text(finding.result), Text(finding.remedy))
    console.print(table)


def as_json(findings: Sequence[Finding]) -> str:
    """Return the findings as JSON: {"ok": bool, "findings": [{"check", "status", "found", "remedy"}]}.

    `ok` tells whether this machine can serve; `status` is "ok", "note" or "miss".
    """
    rows = [
        {"check": f.check, "status": f.status.value, "found": f.result, "remedy": f.remedy} for f in findings
    ]
    document = {"ok": all_needed_is_there(findings), "findings": rows}
    return json.dumps(document, ensure_ascii=False, indent=2)

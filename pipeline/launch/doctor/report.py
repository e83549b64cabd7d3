"""Runs all checks with their progress shown, and writes the report: a table or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipeline.launch.doctor.finding import Finding, Status
from pipeline.launch.doctor.gpu import check_gpu
from pipeline.launch.doctor.machine import check_machine
from pipeline.launch.doctor.ports import check_config
from pipeline.launch.doctor.prediction import check_paddle, check_predictions, try_prediction
from pipeline.launch.doctor.running import check_running
from pipeline.launch.doctor.software import check_software

STYLES = {Status.OK: "green", Status.NOTE: "yellow", Status.MISS: "bold red"}
PIPE_WIDTH = 120  # of a table that goes to a file or another program


def examine(config_file: Path | None = None) -> list[Finding]:
    """Every finding, in the order of the report. Takes seconds: Paddle is imported in a child process.

    Without `config_file` the config.yml of this folder is looked at, if there is one.
    """
    with _progress() as say:
        say("Looking at the machine and its packages")
        findings = [*check_software(), *check_machine(), *check_running()]
        config, about_config = check_config(config_file)
        say("Importing Paddle and trying a prediction (some seconds)")
        trial = try_prediction()
        say("Looking for GPUs")
        about_gpu = check_gpu(trial.paddle if trial.with_paddle else None, config)
    return [*findings, check_paddle(trial), *about_gpu, *about_config, *check_predictions(trial)]


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    try:
        from rich.console import Console
    except ImportError:  # the doctor has to say so, not to end of it
        yield lambda doing: None
        return
    with Console(stderr=True).status("") as status:
        yield status.update


def all_needed_is_there(findings: Sequence[Finding]) -> bool:
    return all(finding.status is not Status.MISS for finding in findings)


def write_report(findings: Sequence[Finding]) -> None:
    """To standard output: a table, or plain lines where rich is missing, and a sentence at the end."""
    try:
        _write_table(findings)
    except ImportError:
        for finding in findings:
            remedy = f" -> {finding.remedy}" if finding.remedy else ""
            sys.stdout.write(f"{finding.status.value:4} {finding.check}: {finding.found}{remedy}\n")
    misses = [finding.check for finding in findings if finding.status is Status.MISS]
    told = f"This machine can't serve yet: {', '.join(misses)}." if misses else "Everything needed is there."
    sys.stdout.write(f"{told}\n")


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
        table.add_row(Text(finding.check), status, Text(finding.found), Text(finding.remedy))
    console.print(table)


def as_json(findings: Sequence[Finding]) -> str:
    """{"ok": true, "findings": [{"check", "status": ok, note or miss, "found", "remedy"}]}"""
    rows = [
        {"check": f.check, "status": f.status.value, "found": f.found, "remedy": f.remedy} for f in findings
    ]
    document = {"ok": all_needed_is_there(findings), "findings": rows}
    return json.dumps(document, ensure_ascii=False, indent=2)

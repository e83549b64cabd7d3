"""Runs all checks with their progress shown, and writes the report: a table or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.doctor.finding import Finding, Status
from pipeline.doctor.gpu import check_gpu
from pipeline.doctor.machine import check_machine
from pipeline.doctor.ports import check_config
from pipeline.doctor.prediction import check_paddle, check_predictions, try_paddle
from pipeline.doctor.software import check_software

STYLES = {Status.OK: "green", Status.NOTE: "yellow", Status.MISS: "bold red"}
PIPE_WIDTH = 120  # of a table that goes to a file or another program


def examine(config_file: Path | None = None) -> list[Finding]:
    """Every finding, in the order of the report. Takes seconds: Paddle is imported in a child process.

    Without `config_file` the config.yml of this folder is looked at, if there is one.
    """
    with Console(stderr=True).status("Looking at the machine") as progress:
        findings = [*check_software(), *check_machine()]
        config, about_config = check_config(config_file)
        progress.update("Importing Paddle and trying a prediction (some seconds)")
        trial = try_paddle()
        progress.update("Looking for GPUs")
        about_gpu = check_gpu(trial.paddle, config)
    return [*findings, check_paddle(trial), *about_gpu, *about_config, *check_predictions(trial)]


def all_needed_is_there(findings: Sequence[Finding]) -> bool:
    return all(finding.status is not Status.MISS for finding in findings)


def write_table(findings: Sequence[Finding]) -> None:
    """To standard output, with a sentence at its end."""
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
    misses = [finding.check for finding in findings if finding.status is Status.MISS]
    if misses:
        console.print(Text(f"This machine can't serve yet: {', '.join(misses)}.", style="bold red"))
    else:
        console.print(Text("Everything needed is there.", style="green"))


def as_json(findings: Sequence[Finding]) -> str:
    """{"ok": true, "findings": [{"check", "status": ok, note or miss, "found", "remedy"}]}"""
    rows = [
        {"check": f.check, "status": f.status.value, "found": f.found, "remedy": f.remedy} for f in findings
    ]
    document = {"ok": all_needed_is_there(findings), "findings": rows}
    return json.dumps(document, ensure_ascii=False, indent=2)

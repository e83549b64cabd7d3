"""Writes results: a JSON file, and the tables of docs/models.md in both languages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.marked import with_part
from bench.models.findings import Finding, Findings
from bench.models.wording import LANGUAGES, Words, words_in
from bench.running import ROOT

DOCS = ROOT / "docs"
_BEGIN, _END = "<!-- python -m bench.models --docs -->", "<!-- so far -->"


def read_findings(json: Path) -> Findings:
    """Return the results in a file; empty without the file."""
    return msgspec.json.decode(json.read_bytes(), type=Findings) if json.is_file() else Findings()


def write(findings: Findings, json: Path) -> None:
    json.parent.mkdir(parents=True, exist_ok=True)
    json.write_bytes(msgspec.json.format(msgspec.json.encode(findings), indent=1) + b"\n")


def write_docs(findings: Findings, docs: Path = DOCS) -> None:
    """Write the JSON file, and the marked tables of both pages.

    Raises CannotMeasure if a page has no marks.
    """
    write(findings, docs / "models.json")
    for language, ending in LANGUAGES.items():
        page = docs / f"models{ending}.md"
        page.write_text(with_tables(page.read_text("utf-8"), findings, language), "utf-8")


def with_tables(page: str, findings: Findings, language: str) -> str:
    """Return the page with the tables of the results between its marks."""
    return with_part(page, _BEGIN, _END, markdown(findings, language))


def markdown(findings: Findings, language: str) -> str:
    """Return the versions, the models that are served, and the models that are refused or answer wrongly."""
    words = words_in(language)
    served = [finding for finding in findings.models if finding.endpoints]
    families = len({finding.family for finding in findings.models})
    right = sum(finding.right for finding in findings.models)
    summary = words.summary.format(len(findings.models), families, len(served), right, findings.machine)
    versions = ", ".join(f"{name} {number}" for name, number in findings.versions.items())
    refused = [finding for finding in findings.models if not finding.endpoints]
    return "\n\n".join(
        [
            f"{summary} {versions}.",
            f"### {words.served}",
            _table(words.columns, served, lambda finding: _served_row(finding, words)),
            f"### {words.refused}",
            _table(words.refused_columns, refused, lambda finding: _refused_row(finding, words)),
        ]
    )


def _table(headings: tuple[str, ...], findings: list[Finding], row: Callable[[Finding], list[str]]) -> str:
    lines = [list(headings), ["---"] * len(headings), *map(row, findings)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _served_row(finding: Finding, words: Words) -> list[str]:
    route = ", ".join(words.steps.get(step, step) for step in finding.route)
    answered = sum(isinstance(found, float) for found in finding.endpoints.values())
    largest = "" if finding.largest is None else f"{finding.largest:.0e}" if finding.largest else "0"
    return [
        words.families.get(finding.family, finding.family),
        words.names.get(finding.name, finding.name),
        route,
        f"{finding.convert_s:.0f}",
        f"{answered}/{len(finding.endpoints)}",
        largest,
    ]


def _refused_row(finding: Finding, words: Words) -> list[str]:
    return [
        words.families.get(finding.family, finding.family),
        words.names.get(finding.name, finding.name),
        finding.refusal.replace("|", "\\|"),
        words.yes if finding.right else words.no,
    ]

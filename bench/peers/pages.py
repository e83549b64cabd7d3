"""Writes a comparison: a JSON file with tables and a plot beside it, and the pages of docs/."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bench.marked import with_part
from bench.peers.figures import Report
from bench.peers.plot import draw
from bench.peers.report import markdown
from bench.running import ROOT

DOCS = ROOT / "docs"
LANGUAGES = {"en": "", "zh": "_zh"}  # suffixes of file names
_BEGIN, _END = "<!-- python -m bench.peers --docs -->", "<!-- so far -->"


def write(report: Report, json: Path) -> None:
    """Write the JSON file, and Markdown tables and the plot beside it."""
    json.parent.mkdir(parents=True, exist_ok=True)
    json.write_bytes(msgspec.json.encode(report) + b"\n")
    for language, ending in LANGUAGES.items():
        named = json.with_stem(f"{json.stem}{ending}")
        named.with_suffix(".md").write_text(f"{markdown(report, language)}\n", encoding="utf-8")
        named.with_suffix(".svg").write_text(draw(report, language), encoding="utf-8")


def write_docs(report: Report, docs: Path = DOCS) -> None:
    """Write plots, JSON, and the marked tables of both pages. Raises CannotMeasure if a page has no marks."""
    (docs / "peers.json").write_bytes(msgspec.json.encode(report) + b"\n")
    for language, ending in LANGUAGES.items():
        (docs / f"peers{ending}.svg").write_text(draw(report, language), encoding="utf-8")
        page = docs / f"benchmarks{ending}.md"
        page.write_text(with_tables(page.read_text(encoding="utf-8"), report, language), encoding="utf-8")


def with_tables(page: str, report: Report, language: str) -> str:
    """Return the page with the report's tables between its marks."""
    return with_part(page, _BEGIN, _END, markdown(report, language))

"""The tables of a comparison: all figures for the terminal, and Markdown in English and Chinese."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec
from rich.console import Console
from rich.table import Table

from bench.peers.figures import Report, Row, Turn
from bench.peers.plot import select_scenarios
from bench.peers.wording import Words, get_title, words_in


def print_tables(console: Console, report: Report) -> None:
    """Print a table for each scenario: medians of the rounds, and ratios with their spread."""
    words = words_in("en")
    for scenario in report.scenarios():
        model, workload, connections = scenario
        rows = report.get_rows(scenario)
        title = f"{get_title(model, workload, words)}, {connections} connections, {_machine(report, rows)}"
        table = Table("", title=title, title_justify="left")
        for heading in (words.per_s, "to ours", *words.costs, *([words.short_texts] if _timed(rows) else [])):
            table.add_column(heading, justify="right")
        for row in rows:
            name = _name(row, words)
            table.add_row(name, _per_s(row), _spread(row.ratios()), *_costs(row, timed=_timed(rows)))
        console.print(table)
    console.print(_facts(report, words), markup=False)


def markdown(report: Report, language: str) -> str:
    """Return a Markdown table for each model and kind of texts."""
    words = words_in(language)
    tables = [_markdown_table(report, scenario, words) for scenario in select_scenarios(report)]
    return "\n\n".join([*tables, _facts(report, words)])


def _markdown_table(report: Report, scenario: tuple[str, str, int], words: Words) -> str:
    model, workload, connections = scenario
    counts = sorted(count for key, kind, count in report.scenarios() if (key, kind) == (model, workload))
    ratios = {
        count: {row.key: _ratio(row) for row in report.get_rows((model, workload, count))} for count in counts
    }
    rows = report.get_rows(scenario)
    timed = _timed(rows)
    headings = ["", *(f"@{count}" for count in counts), words.per_s, *words.costs]
    lines = [headings + ([words.short_texts] if timed else [])]
    lines.append(["---"] * len(lines[0]))
    for row in rows:
        beside = [ratios[count].get(row.key, "") for count in counts]
        lines.append([_name(row, words), *beside, _per_s(row), *_costs(row, timed=timed)])
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    title = f"{get_title(model, workload, words)}, {_machine(report, rows)}"
    return f"**{title}{words.stop}** {words.note.format(connections)}\n\n{table}"


def _machine(report: Report, rows: Sequence[Row]) -> str:
    """Return CPU model and cores of the machines on which the rows were measured."""
    return "; ".join(dict.fromkeys(row.machine or report.machine for row in rows))


def _name(row: Row, words: Words) -> str:
    """Return the name of a subject, with the setting of a peer."""
    name = words.subjects.get(row.key, row.name)
    return words.setting.format(name, row.batch, row.wait_ms) if row.batch > 1 else name


def _per_s(row: Row) -> str:
    return _figure(row.theirs(lambda turn: turn.per_s), ",.0f")


def _ratio(row: Row) -> str:
    """Return the cells with ratio, busy cores and CPU ms of a request.

    The ratio is bold if our service is slower.
    """
    ratio = f"{row.ratio():.2f}"
    if row.ratio() > 1 and not row.is_limit and not row.is_ours:
        ratio = f"**{ratio}**"
    busy, cpu_ms = row.theirs(lambda turn: turn.busy), row.theirs(lambda turn: turn.cpu_ms)
    return f"{ratio} ({_figure(busy, '.2f')}, {_figure(cpu_ms, '.2f')})"


def _spread(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _costs(row: Row, *, timed: bool) -> list[str]:
    """Return the last cells of a row.

    timed: include the latencies of a mix's short texts, if they were timed.
    """
    cells = [
        _figure(row.theirs(lambda turn: turn.p50_ms), ".1f"),
        _figure(row.theirs(lambda turn: turn.p99_ms), ".1f"),
        _figure(row.theirs(lambda turn: turn.cpu_ms), ".3f"),
        _figure(row.theirs(lambda turn: turn.busy), ".2f"),
        _figure(row.theirs(lambda turn: turn.idle), ".2f"),
        _figure(row.theirs(lambda turn: turn.rss_mb), ",.0f"),
        f"{row.start_s:.1f}",
        str(row.errors()),
    ]
    return cells + ([_short_texts(row)] if timed else [])


def _timed(rows: Sequence[Row]) -> bool:
    return any(row.theirs(_short) is not None for row in rows)


def _short(turn: Turn) -> float | None:
    return turn.short_p99_ms


def _short_texts(row: Row) -> str:
    """Return the p99 of short texts among long ones, and alone."""
    among, alone = row.theirs(_short), row.theirs(lambda turn: turn.alone_p99_ms)
    return "" if among is None or alone is None else f"{among:.1f}, {alone:.1f}"


def _figure(value: float | None, form: str) -> str:
    """Format a figure; empty without one."""
    return "" if value is None else format(value, form)


def _facts(report: Report, words: Words) -> str:
    """Return the paragraph about the machine, other work on it, choices, and subjects that were skipped."""
    rounds, seconds = min(len(row.pairs) for row in report.rows), [row.seconds for row in report.rows]
    turns = words.between.join(f"{each:g}" for each in sorted({min(seconds), max(seconds)}))
    lines = [
        words.machine.format(report.machine, rounds, turns, *report.others()),
        *(words.choice.format(*msgspec.structs.astuple(each)) for each in report.choices),
        *(words.left_out.format(name, reason) for name, reason in report.left_out.items()),
    ]
    return "\n".join(f"- {line}" for line in lines)

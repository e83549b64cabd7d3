"""`paddlewheel evaluate`: answers against the labels of a file, as figures, a picture and one last line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from pipeline.errors import ConfigError
from pipeline.offline.answers import ENTITIES, LABEL, Task, Things, Unlike, detect_task, told_by
from pipeline.offline.confusion_plot import draw
from pipeline.offline.measures import ClassFigures, by_class, macro_f1, overall, percentile
from pipeline.offline.rows import JSONL, Row, RowFile
from pipeline.offline.scored_file import ANSWER, ERROR

NO_ANSWER = "(no answer)"
_PERCENTILES = (50, 90, 99)


@dataclass
class Evaluation:
    """What came of it. right: rows whose answer is that of the file as a whole."""

    kind: str
    rows: int = 0
    right: int = 0
    failed: int = 0
    classes: Sequence[ClassFigures] = ()
    confusion: Counter[tuple[str, str]] = field(default_factory=Counter)
    latencies_ms: Sequence[float] = ()

    @property
    def accuracy(self) -> float:
        return self.right / self.rows if self.rows else 0.0

    @property
    def latency(self) -> dict[str, float]:
        """Percentiles in milliseconds; empty where nothing was asked."""
        ordered = sorted(self.latencies_ms)
        return {f"p{p}_ms": round(percentile(ordered, p), 3) for p in _PERCENTILES} if ordered else {}

    def document(self) -> dict[str, Any]:
        whole = overall(self.classes)
        return {
            "task": self.kind,
            "rows": self.rows,
            "failed": self.failed,
            "accuracy": self.accuracy,
            "micro": _summarise_class(whole),
            "macro_f1": macro_f1(self.classes),
            "classes": {one.name: _summarise_class(one) for one in self.classes},
            "confusion": [[*pair, count] for pair, count in sorted(self.confusion.items())],
            "latency": self.latency,
        }


def _summarise_class(one: ClassFigures) -> dict[str, float]:
    return {"support": one.support, "precision": one.precision, "recall": one.recall, "f1": one.f1}


def evaluate(
    scored: Path, gold: str, *, answers: str = ANSWER, prefix: str = "", latencies_ms: Sequence[float] = ()
) -> Evaluation:
    """Compare a scored file with its own column `gold`.

    answers: the field of the answers. prefix: what labels of the file begin with and answers don't.
    Raises ConfigError, with the row, for what can't be compared.
    """
    rows = RowFile(scored)
    task: Task | None = None
    pairs: list[tuple[Things, Things]] = []
    failed = 0
    for row in rows:
        columns = _unflattened(row, answers) if rows.format != JSONL else dict(row.columns)
        try:
            if row.fault:
                raise Unlike(row.fault)
            if gold not in columns:
                raise Unlike(
                    f"has no column {gold!r}, only {', '.join(columns)}; say which has labels: --gold"
                )
            if answers not in columns:
                if not columns.get(ERROR):
                    raise Unlike(f"has no {answers!r}; is the file scored?")
                failed += 1
            task, pair = _compared(task, columns, gold, answers, prefix)
        except Unlike as exc:
            raise ConfigError(f"{scored}, {row.where}: {exc.message}") from exc
        pairs.append(pair)
    if task is None:
        raise ConfigError(f"{scored} has no rows")
    made = Evaluation(task.kind, len(pairs), sum(meant == told for meant, told in pairs), failed)
    made.classes = by_class(pairs)
    made.latencies_ms = latencies_ms
    if task.kind == LABEL:
        made.confusion = Counter(_only(pair) for pair in pairs)
    return made


def _compared(
    task: Task | None, columns: dict[str, Any], gold: str, answers: str, prefix: str
) -> tuple[Task | None, tuple[Things, Things]]:
    """What is meant and what is told in a row. The first row shows the task."""
    meant, answer = columns[gold], columns.get(answers)
    task = task or detect_task(answer, meant)
    told = frozenset() if answer is None else task.things(told_by(task, answer))
    return task, (_stripped(task.things(meant), prefix), told)


def _stripped(things: Things, prefix: str) -> Things:
    return frozenset((thing, name.removeprefix(prefix)) for thing, name in things) if prefix else things


def _only(pair: tuple[Things, Things]) -> tuple[str, str]:
    (meant,), told = pair
    return meant[1], next(iter(told))[1] if told else NO_ANSWER


def _unflattened(row: Row, answers: str) -> dict[str, Any]:
    """A row of a table: its columns `answer.label` and others as the answer."""
    lead = f"{answers}."
    own = {name: value for name, value in row.columns.items() if not name.startswith(lead)}
    told = {
        name.removeprefix(lead): value
        for name, value in row.columns.items()
        if name.startswith(lead) and value not in (None, "")
    }
    return {**own, answers: told} if told else own


def write_report(made: Evaluation, title: str, path: Path) -> list[Path]:
    """Write PATH.json, and PATH.svg where there is a confusion matrix. Raises ConfigError."""
    written = [path.with_name(f"{path.name}.json")]
    try:
        written[0].write_bytes(msgspec.json.format(msgspec.json.encode(made.document()), indent=1))
        if made.confusion:
            written.append(path.with_name(f"{path.name}.svg"))
            written[1].write_text(draw(title, made.confusion), "utf-8")
    except OSError as exc:
        raise ConfigError(f"{exc.filename or path} can't be written: {exc.strerror}") from exc
    return written


def show(made: Evaluation, console: Console) -> None:
    """Print the figures, and the accuracy in the last line."""
    console.print(_table(made.classes))
    whole = overall(made.classes)
    told = f"{made.rows:,} rows"
    if made.failed:
        told += f", {made.failed:,} of them without an answer, which count as wrong"
    console.print(told)
    if made.latency:
        console.print(
            ", ".join(f"{name.removesuffix('_ms')} {ms:.1f} ms" for name, ms in made.latency.items())
        )
    if made.kind != LABEL:
        name = "entity f1" if made.kind == ENTITIES else "micro f1"
        console.print(f"{name}: {whole.f1:.4f}")
    console.print(f"macro f1: {macro_f1(made.classes):.4f}")
    console.print(f"acc: {made.accuracy:.4f}")


def _table(classes: Iterable[ClassFigures]) -> Table:
    table = Table()
    table.add_column("class")
    for name in ("precision", "recall", "f1", "rows"):
        table.add_column(name, justify="right")
    for one in classes:
        figures = (f"{share:.4f}" for share in (one.precision, one.recall, one.f1))
        table.add_row(one.name, *figures, f"{one.support:,}")
    return table

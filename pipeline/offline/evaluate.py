"""`paddlewheel evaluate`: compares a model's predictions with the labels in a file, and reports metrics.

The report has accuracy, precision, recall and F1 per class, and a picture of the confusion matrix. For texts
it has the character error rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from pipeline.errors import ConfigError, ServingError
from pipeline.offline.character_errors import CharacterErrors, sum_errors
from pipeline.offline.rows import JSONL, Row, RowFile
from pipeline.offline.scored_file import ANSWER, ERROR
from pipeline.tuning.tune import percentile

LABEL, LABELS, ENTITIES, TEXT = "label", "labels", "entities", "text"
OUTSIDE = "O"
_PLACE = ("start", "end")
_KINDS = ("label", "type", "entity", "entity_group")  # names that a file of entities may have for the class

Things = frozenset[tuple[Any, str]]


class Incomparable(ServingError):
    """Raised for a prediction or label that can't be compared.

    It becomes a ConfigError that names the row.
    """


class Task(NamedTuple):
    """The kind of compared labels (a label, several labels, entities or a text), and their parser."""

    kind: str  # LABEL, LABELS, ENTITIES or TEXT
    things: Callable[[Any], Things]  # parses a value to (thing, class) pairs, see `measures.by_class`


def detect_task(answer: Any, gold: Any) -> Task:
    """Return the kind of labels, detected from the first prediction and the first true label (`gold`)."""
    label = parsed(gold)
    if isinstance(label, list) and label and all(isinstance(entity, dict) for entity in label):
        return Task(ENTITIES, parse_entities)
    entities = answer.get(ENTITIES) if isinstance(answer, dict) else None
    if entities is not None:
        return Task(ENTITIES, parse_entities)
    if isinstance(answer, dict) and isinstance(answer.get(LABEL), list):
        return Task(ENTITIES, parse_tags)
    if isinstance(label, list):
        return Task(LABELS, parse_labels)
    if isinstance(answer, dict) and TEXT in answer and LABEL not in answer:
        return Task(TEXT, parse_label)
    return Task(LABEL, parse_label)


def select_prediction(task: Task, answer: Any) -> Any:
    """Return the labels in a model's answer. Raise Incomparable if the answer has none."""
    if not isinstance(answer, dict):
        return answer
    names = {LABEL: (LABEL,), LABELS: (LABELS, LABEL), ENTITIES: (ENTITIES, LABEL), TEXT: (TEXT,)}[task.kind]
    for name in names:
        if name in answer:
            return answer[name]
    raise Incomparable(f"the answer has no {' or '.join(map(repr, names))}, only {', '.join(answer)}")


def parsed(value: Any) -> Any:
    """Parse a text that is a JSON list, such as a CSV cell. Return other values unchanged."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            return msgspec.json.decode(value)
        except msgspec.DecodeError:
            return value
    return value


def parse_label(value: Any) -> Things:
    """Parse a single label, a text or a class number, to a set with the element (None, class).

    Raise Incomparable.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Incomparable(f"{value!r} is no label: a text, or the number of a class")
    return frozenset([(None, str(value))])


def parse_labels(value: Any) -> Things:
    """Parse a list of labels to a set of (None, class). Raise Incomparable."""
    labels = parsed(value)
    if not isinstance(labels, list) or not all(isinstance(label, str | int) for label in labels):
        raise Incomparable(f"{value!r} is no list of labels")
    return frozenset((None, str(label)) for label in labels if label != "")


def parse_entities(value: Any) -> Things:
    """Parse entities to a set of ((start, end), class). Raise Incomparable.

    Entities are objects with `start`, `end` and `label`, or a tag for each token (see `parse_tags`).
    """
    entities = parsed(value)
    if isinstance(entities, list) and entities and all(isinstance(entity, str) for entity in entities):
        objects = [parsed_object(entity) for entity in entities]
        if any(entity is None for entity in objects):
            return parse_tags(entities)
        entities = objects
    if not isinstance(entities, list):
        raise Incomparable(f"{value!r} is no list of entities")
    return frozenset(_entity(entity) for entity in entities)


def parsed_object(text: str) -> Mapping[str, Any] | None:
    """Parse a JSON object in a text. Return None for any other text."""
    if not text.startswith("{"):
        return None
    try:
        decoded = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    return decoded if isinstance(decoded, dict) else None


def _entity(value: Any) -> tuple[Any, str]:
    kind = next((value[name] for name in _KINDS if name in value), None) if isinstance(value, dict) else None
    if not isinstance(kind, str) or not all(isinstance(value.get(name), int) for name in _PLACE):
        raise Incomparable(f"{value!r} is no entity: an object with start, end and label")
    return (value["start"], value["end"]), kind


def parse_tags(value: Any) -> Things:
    """Parse tags of tokens (BIO, BIOES or BIOUL) to entities, ((start, end), class), counted in tokens."""
    tags = parsed(value)
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise Incomparable(f"{value!r} is no list of tags")
    entities, start, kind = [], 0, ""
    for at, tag in enumerate([*tags, OUTSIDE]):
        place, _, name = tag.partition("-") if tag != OUTSIDE else ("", "", "")
        if kind and (not name or name != kind or place in "BSU"):
            entities.append(((start, at), kind))
            kind = ""
        if name and not kind:
            start, kind = at, name
        if kind and place in ("E", "L", "S", "U"):
            entities.append(((start, at + 1), kind))
            kind = ""
    return frozenset(entities)


MAX_CLASSES = 60  # of a readable picture; the rarest classes are joined
OTHERS = "(others)"
_CELL, _LABEL, _TOP, _FOOT = 34, 150, 150, 30
_INK, _FAINT, _RIGHT, _WRONG = "#1f2933", "#66727f", (42, 111, 219), (209, 52, 60)
_LONGEST = 18  # characters of a label in the margin

Confusion = Mapping[tuple[str, str], int]
"""Number of rows by (labelled class, predicted class)."""


def draw(title: str, confusion: Confusion) -> str:
    """Return the confusion matrix as an SVG picture.

    Colors show shares of a row, so that rare classes are visible as well.
    """
    classes, counts = _shown(confusion)
    side = _CELL * len(classes)
    width, height = _LABEL + side + 40, _TOP + side + _FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="11" fill="{_INK}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="15">{escape(title)}</text>',
        f'<text x="12" y="42" fill="{_FAINT}">rows: what is meant; columns: what is answered</text>',
        *_margins(classes),
        *_cells(classes, counts),
    ]
    return "\n".join([*parts, "</svg>", ""])


def _shown(confusion: Confusion) -> tuple[list[str], Confusion]:
    """Return the classes and counts to draw. Beyond MAX_CLASSES, rare classes are merged into OTHERS."""
    support: dict[str, int] = {}
    for (expected, predicted), count in confusion.items():
        support[expected] = support.get(expected, 0) + count
        support.setdefault(predicted, 0)
    if len(support) <= MAX_CLASSES:
        return sorted(support), confusion
    frequent = set(sorted(support, key=lambda name: -support[name])[: MAX_CLASSES - 1])
    counts: dict[tuple[str, str], int] = {}
    for pair, count in confusion.items():
        expected, predicted = (name if name in frequent else OTHERS for name in pair)
        counts[expected, predicted] = counts.get((expected, predicted), 0) + count
    return [*sorted(frequent), OTHERS], counts


def _margins(classes: Sequence[str]) -> Iterator[str]:
    for at, name in enumerate(classes):
        short = escape(name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…")
        middle = at * _CELL + _CELL / 2
        y, x = _TOP + middle + 4, _LABEL + middle + 4
        yield f'<text x="{_LABEL - 8}" y="{y:.0f}" text-anchor="end">{short}</text>'
        yield f'<text transform="translate({x:.0f} {_TOP - 8}) rotate(-90)">{short}</text>'


def _cells(classes: Sequence[str], counts: Confusion) -> Iterator[str]:
    for row, expected in enumerate(classes):
        support = sum(counts.get((expected, predicted), 0) for predicted in classes)
        for column, predicted in enumerate(classes):
            count = counts.get((expected, predicted), 0)
            share = count / support if support else 0.0
            red, green, blue = _RIGHT if expected == predicted else _WRONG
            x, y = _LABEL + column * _CELL, _TOP + row * _CELL
            yield (
                f'<rect x="{x}" y="{y}" width="{_CELL - 1}" height="{_CELL - 1}" '
                f'fill="rgb({red},{green},{blue})" fill-opacity="{0.05 + 0.9 * share:.2f}">'
                f"<title>{escape(expected)} answered as {escape(predicted)}: "
                f"{count} of {support}</title></rect>"
            )
            if count:
                ink = "#ffffff" if share > 0.5 else _INK
                yield (
                    f'<text x="{x + _CELL / 2:.0f}" y="{y + _CELL / 2 + 4:.0f}" text-anchor="middle" '
                    f'fill="{ink}">{count}</text>'
                )


class ClassFigures(NamedTuple):
    """Counts of one class, in the labels and in the predictions, with precision, recall and F1."""

    name: str
    support: int  # occurrences in the labels
    predicted: int  # occurrences in the answers
    right: int  # occurrences in both

    @property
    def precision(self) -> float:
        return self.right / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        return self.right / self.support if self.support else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 0 without a correct prediction."""
        return 2 * self.right / (self.support + self.predicted) if self.support + self.predicted else 0.0


def by_class(
    pairs: Iterable[tuple[Collection[tuple[Hashable, str]], Collection[tuple[Hashable, str]]]],
) -> list[ClassFigures]:
    """Return the counts of each class, from a pair (labels, predictions) for each row.

    Labels and predictions are sets of (thing, class). The thing is the position of an entity in the text, or
    None if the classes belong to the whole row.
    """
    support, predicted, right = Counter[str](), Counter[str](), Counter[str]()
    for row_labels, row_predictions in pairs:
        support.update(name for _, name in row_labels)
        predicted.update(name for _, name in row_predictions)
        right.update(name for _, name in set(row_labels) & set(row_predictions))
    return [
        ClassFigures(name, support[name], predicted[name], right[name])
        for name in sorted(support | predicted)
    ]


def overall(figures: Sequence[ClassFigures]) -> ClassFigures:
    """Return the counts summed over all classes, for micro averages."""
    sums = (sum(column) for column in zip(*(row[1:] for row in figures), strict=True))
    return ClassFigures("all", *sums) if figures else ClassFigures("all", 0, 0, 0)


def macro_f1(figures: Sequence[ClassFigures]) -> float:
    """Return the unweighted mean of the classes' F1 scores."""
    return sum(row.f1 for row in figures) / len(figures) if figures else 0.0


NO_ANSWER = "(no answer)"
_PERCENTILES = (50, 90, 99)


@dataclass
class Evaluation:
    """The metrics of predictions in a scored file against the labels in that file."""

    kind: str  # kind of the task: label, labels, entities or text
    rows: int = 0
    right: int = 0  # rows whose answer equals the label exactly
    failed: int = 0  # rows without an answer
    classes: Sequence[ClassFigures] = ()  # empty for texts
    characters: CharacterErrors | None = None  # of texts
    confusion: Counter[tuple[str, str]] = field(default_factory=Counter)
    latencies_ms: Sequence[float] = ()

    @property
    def accuracy(self) -> float:
        return self.right / self.rows if self.rows else 0.0

    @property
    def latency(self) -> dict[str, float]:
        """Percentiles of the request latency in milliseconds, by name; empty if no requests were sent."""
        ordered = sorted(self.latencies_ms)
        return {f"p{p}_ms": round(percentile(ordered, p), 3) for p in _PERCENTILES} if ordered else {}

    def document(self) -> dict[str, Any]:
        """Return all metrics as JSON values, for the report file."""
        figures = {"task": self.kind, "rows": self.rows, "failed": self.failed, "accuracy": self.accuracy}
        if self.characters is not None:
            rate = {"cer": self.characters.rate}
            return figures | rate | self.characters._asdict() | {"latency": self.latency}
        micro = overall(self.classes)
        return figures | {
            "micro": _summarise_class(micro),
            "macro_f1": macro_f1(self.classes),
            "classes": {figures.name: _summarise_class(figures) for figures in self.classes},
            "confusion": [[*pair, count] for pair, count in sorted(self.confusion.items())],
            "latency": self.latency,
        }


def _summarise_class(figures: ClassFigures) -> dict[str, float]:
    return {
        "support": figures.support,
        "precision": figures.precision,
        "recall": figures.recall,
        "f1": figures.f1,
    }


def evaluate(
    scored: Path, gold: str, *, answers: str = ANSWER, prefix: str = "", latencies_ms: Sequence[float] = ()
) -> Evaluation:
    """Compare the predictions in a file written by `score` with the labels in the file's column `gold`.

    answers: name of the column with the predictions. prefix: text that is removed from the start of the
    labels. Raise ConfigError, with the row, for a row that can't be compared.
    """
    rows = RowFile(scored)
    first_answer = _find_first_answer(rows, answers)
    task: Task | None = None
    pairs: list[tuple[Things, Things]] = []
    failed = 0
    for row in rows:
        columns = _read_columns(row, rows, answers)
        try:
            if row.fault:
                raise Incomparable(row.fault)
            if gold not in columns:
                raise Incomparable(
                    f"has no column {gold!r}, only {', '.join(columns)}; say which has labels: --gold"
                )
            if answers not in columns:
                if not columns.get(ERROR):
                    raise Incomparable(f"has no {answers!r}; is the file scored?")
                failed += 1
            task = task or detect_task(first_answer, columns[gold])
            pair = _compared(task, columns, gold, answers, prefix)
        except Incomparable as exc:
            raise ConfigError(f"{scored}, {row.where}: {exc.message}") from exc
        pairs.append(pair)
    if task is None:
        raise ConfigError(f"{scored} has no rows")
    evaluation = Evaluation(
        task.kind, len(pairs), sum(expected == predicted for expected, predicted in pairs), failed
    )
    evaluation.latencies_ms = latencies_ms
    if task.kind == TEXT:
        evaluation.characters = sum_errors(_texts(pair) for pair in pairs)
    else:
        evaluation.classes = by_class(pairs)
    if task.kind == LABEL:
        evaluation.confusion = Counter(_only(pair) for pair in pairs)
    return evaluation


def _find_first_answer(rows: RowFile, answers: str) -> Any:
    """Return the first answer in a scored file, or None. Rows before it have only errors."""
    for row in rows:
        answer = _read_columns(row, rows, answers).get(answers)
        if answer is not None:
            return answer
    return None


def _read_columns(row: Row, rows: RowFile, answers: str) -> dict[str, Any]:
    return _unflattened(row, answers) if rows.format != JSONL else dict(row.columns)


def _compared(
    task: Task, columns: dict[str, Any], gold: str, answers: str, prefix: str
) -> tuple[Things, Things]:
    """Return the pair (labels, predictions) of a row, parsed for comparison."""
    label, answer = columns[gold], columns.get(answers)
    predicted = frozenset() if answer is None else task.things(select_prediction(task, answer))
    return _stripped(task.things(label), prefix), predicted


def _stripped(things: Things, prefix: str) -> Things:
    return frozenset((thing, name.removeprefix(prefix)) for thing, name in things) if prefix else things


def _texts(pair: tuple[Things, Things]) -> tuple[str, str]:
    """Return the expected and the predicted text of a row.

    A row without an answer has an empty prediction.
    """
    (expected,), predicted = pair
    return expected[1], next(iter(predicted))[1] if predicted else ""


def _only(pair: tuple[Things, Things]) -> tuple[str, str]:
    (expected,), predicted = pair
    return expected[1], next(iter(predicted))[1] if predicted else NO_ANSWER


def _unflattened(row: Row, answers: str) -> dict[str, Any]:
    """Return the columns of a CSV or Parquet row, with columns like `answer.label` merged into one answer."""
    lead = f"{answers}."
    columns = {name: value for name, value in row.columns.items() if not name.startswith(lead)}
    answer = {
        name.removeprefix(lead): value
        for name, value in row.columns.items()
        if name.startswith(lead) and value not in (None, "")
    }
    return {**columns, answers: answer} if answer else columns


def write_report(evaluation: Evaluation, title: str, path: Path) -> list[Path]:
    """Write the metrics to PATH.json, and the confusion matrix, if there is one, to PATH.svg.

    Return the written paths. Raise ConfigError.
    """
    written = [path.with_name(f"{path.name}.json")]
    try:
        written[0].write_bytes(msgspec.json.format(msgspec.json.encode(evaluation.document()), indent=1))
        if evaluation.confusion:
            written.append(path.with_name(f"{path.name}.svg"))
            written[1].write_text(draw(title, evaluation.confusion), "utf-8")
    except OSError as exc:
        raise ConfigError(f"{exc.filename or path} can't be written: {exc.strerror}") from exc
    return written


def show(evaluation: Evaluation, console: Console) -> None:
    """Print a table of the metrics to the console, with the accuracy in the last line."""
    if evaluation.characters is None:
        console.print(_build_class_table(evaluation.classes))
    summary = f"{evaluation.rows:,} rows"
    if evaluation.failed:
        summary += f", {evaluation.failed:,} of them without an answer, which count as wrong"
    console.print(summary)
    if evaluation.latency:
        console.print(
            ", ".join(f"{name.removesuffix('_ms')} {ms:.1f} ms" for name, ms in evaluation.latency.items())
        )
    _show_averages(evaluation, console)
    console.print(f"acc: {evaluation.accuracy:.4f}")


def _show_averages(evaluation: Evaluation, console: Console) -> None:
    errors = evaluation.characters
    if errors is not None:
        console.print(
            f"{errors.characters:,} characters: {errors.substitutions:,} substituted, "
            f"{errors.deletions:,} deleted, {errors.insertions:,} inserted"
        )
        console.print(f"cer: {errors.rate:.4f}")
        return
    if evaluation.kind != LABEL:
        name = "entity f1" if evaluation.kind == ENTITIES else "micro f1"
        console.print(f"{name}: {overall(evaluation.classes).f1:.4f}")
    console.print(f"macro f1: {macro_f1(evaluation.classes):.4f}")


def _build_class_table(classes: Iterable[ClassFigures]) -> Table:
    table = Table()
    table.add_column("class")
    for name in ("precision", "recall", "f1", "rows"):
        table.add_column(name, justify="right")
    for figures in classes:
        shares = (f"{share:.4f}" for share in (figures.precision, figures.recall, figures.f1))
        table.add_row(figures.name, *shares, f"{figures.support:,}")
    return table

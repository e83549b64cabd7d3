"""Trains the model of persons, places and organisations that this folder serves: half a minute on two cores.

It starts from the demo's encoder and learns from sentences.txt, whose entities are replaced by others again
and again, and from headlines without any. What it has not seen it is measured on.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import nn
from rich.console import Console

from convert.cli import ShownSteps
from convert.demo.bert_classifier import load_model
from convert.demo.convert_demo import WEIGHTS_FILE
from convert.demo.fitting import Schedule, fit, seed_training
from convert.demo.headlines import hanzi, is_held_out, read_headlines, split_headlines, vocabulary
from convert.demo.trained_layer import write_trained
from convert.demo.training import demo_tokenizer, pad
from convert.steps.progress import Steps

HERE = Path(__file__).resolve().parent
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG")
ENTITY = re.compile(r"\[([^\[\]/]+)/(PER|LOC|ORG)\]")
STEPS, BATCH = 700, 16
REPLACED = 0.7  # of the entities
INVENTED = 0.5  # of the persons and organisations that take another's place
WITHOUT = 0.25  # of the rows, headlines without an entity
JOINED = 0.2  # of the rows, two sentences together
COMMON_HANZI = 3755  # level 1 of GB2312, its first
IGNORED = -100  # the target of a token that has none

Part = tuple[str, str]  # a piece of a sentence and its class; empty: it is no entity


class Row(NamedTuple):
    """A sentence as a model reads it: ids, and the number of each one's label."""

    ids: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]


class TokenClassifier(nn.Layer):  # type: ignore[misc]
    """Scores of each token's label by the demo's encoder: float32 [N, L, labels]."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(encoder.pooler.weight.shape[0], len(LABELS))

    def forward(self, input_ids: Any, token_type_ids: Any, attention_mask: Any) -> Any:
        return self.classifier(self.dropout(self.encoder.encode(input_ids, token_type_ids, attention_mask)))


def read_sentences(path: Path = HERE / "sentences.txt") -> list[list[Part]]:
    """The sentences in parts. A line has its entities in brackets: [王小明/PER]去[北京/LOC]."""
    sentences = []
    for line in path.read_text("utf-8").splitlines():
        pieces = ENTITY.split(line)  # text, entity, class, text, ...
        parts = [(text, "") for text in pieces[::3]]
        entities = list(zip(pieces[1::3], pieces[2::3], strict=True))
        mixed = [part for pair in zip(parts, [*entities, ("", "")], strict=True) for part in pair]
        sentences.append([part for part in mixed if part[0]])
    return sentences


def read_names(path: Path = HERE / "names.txt") -> dict[str, list[str]]:
    """Words by their kind, with which a line begins."""
    names: dict[str, list[str]] = defaultdict(list)
    for line in path.read_text("utf-8").splitlines():
        kind, *words = line.split()
        names[kind] += words
    return names


def plain(parts: Sequence[Part]) -> str:
    return "".join(text for text, _ in parts)


class Rows:
    """Makes rows of sentences, as they are or with other entities in them."""

    def __init__(self, sentences: Sequence[Sequence[Part]], rng: np.random.Generator) -> None:
        self._sentences = sentences
        self._rng = rng
        self._tokenizer = demo_tokenizer(vocabulary())
        self._names = read_names()
        written = {kind: sorted({t for s in sentences for t, k in s if k == kind}) for kind in ("PER", "ORG")}
        self._persons, self._organisations = written["PER"], written["ORG"]
        self._without = self._headlines()
        self._places = [*self._names["PLACE"], *sorted({t for s in sentences for t, k in s if k == "LOC"})]

    def row(self, parts: Sequence[Part]) -> Row:
        """A token has its part's label: B- where the part begins in it."""
        text, starts, kinds = plain(parts), [], []
        for part, kind in parts:
            starts += [True, *[False] * (len(part) - 1)]
            kinds += [kind] * len(part)
        encoded = self._tokenizer.encode(text)
        labels = [IGNORED] * len(encoded.ids)
        for at, (first, last) in enumerate(encoded.offsets):
            if last > first:
                kind = kinds[first]
                labels[at] = LABELS.index(f"{'B' if starts[first] else 'I'}-{kind}") if kind else 0
        return Row(np.array(encoded.ids, np.int64), np.array(labels, np.int64))

    def batches(self, count: int) -> Iterator[tuple[dict[str, Any], Any]]:
        """So many batches of rows with other entities."""
        for _ in range(count):
            rows = [self.row(self._varied()) for _ in range(BATCH)]
            targets = np.full((BATCH, max(len(row.ids) for row in rows)), IGNORED, np.int64)
            for at, row in enumerate(rows):
                targets[at, : len(row.labels)] = row.labels
            yield pad([row.ids for row in rows]), targets

    def _headlines(self) -> list[list[Part]]:
        """Those of the demo that have none of the names here: what is around entities is written in more ways
        than a few hundred sentences tell."""
        known = {*self._names["PLACE"], *self._names["SEAT"], *self._persons, *self._organisations}
        texts = [headline.text for headline in split_headlines(read_headlines()).train]
        return [[(text, "")] for text in texts if not any(name in text for name in known)]

    def _varied(self) -> list[Part]:
        if self._rng.random() < WITHOUT:
            return list(self._chosen(self._without))
        sentence = [*self._chosen(self._sentences)]
        if self._rng.random() < JOINED:
            sentence += [(self._chosen(("，", "。", " ", "；")), ""), *self._chosen(self._sentences)]
        return [(self._another(text, kind), kind) for text, kind in sentence]

    def _another(self, text: str, kind: str) -> str:
        """What stands in the place of a part."""
        if not kind or self._rng.random() > REPLACED:
            return text
        invented = self._rng.random() < INVENTED
        if kind == "PER":
            return self._person() if invented else str(self._chosen(self._persons))
        if kind == "ORG":
            seat = self._chosen(self._names["PLACE"]) + self._chosen(self._names["SEAT"])
            return str(seat if invented else self._chosen(self._organisations))
        place = self._chosen(self._places)
        return str(place + self._chosen(self._names["OF_PLACE"]) if self._rng.random() < 0.3 else place)

    def _person(self) -> str:
        usual = self._rng.random() < 0.7
        signs = self._names["GIVEN"] if usual else hanzi()[:COMMON_HANZI]
        given = "".join(self._chosen(signs) for _ in range(self._rng.integers(1, 3)))
        return str(self._chosen(self._names["SURNAME"]) + given)

    def _chosen(self, many: Sequence[Any]) -> Any:
        return many[self._rng.integers(len(many))]


def loss(scores: Any, targets: Any) -> Any:
    return nn.functional.cross_entropy(scores, targets, ignore_index=IGNORED)


def entities(labels: Sequence[int]) -> set[tuple[int, int, str]]:
    """First token, the one behind the last, and class."""
    found, first, kind = set(), 0, ""
    for at, number in enumerate([*labels, 0]):
        place, _, own = LABELS[max(number, 0)].partition("-")
        if kind and (place != "I" or own != kind):
            found.add((first, at, kind))
            kind = ""
        if own and not kind:
            first, kind = at, own
    return found


def f1_of(model: TokenClassifier, rows: Sequence[Row]) -> float:
    """Of the entities, each row run by itself."""
    right = told = known = 0
    for row in rows:
        scores = model(*map(paddle.to_tensor, pad([row.ids]).values())).numpy()[0]
        expected = entities(row.labels.tolist())
        answered = entities(np.where(row.labels == IGNORED, 0, scores.argmax(-1)).tolist())
        right, told, known = right + len(expected & answered), told + len(answered), known + len(expected)
    return 2 * right / max(1, told + known)


def train(out: Path, steps: Steps) -> float:
    """Write the serving model; returns the F1 of entities in sentences that were held out."""
    sentences = read_sentences()
    held_out = [parts for parts in sentences if is_held_out(plain(parts))]
    seed_training(seed=0)
    rows = Rows([parts for parts in sentences if not is_held_out(plain(parts))], np.random.default_rng(0))
    model = TokenClassifier(load_model(WEIGHTS_FILE, vocabulary()))
    steps.step(f"Training {STEPS} steps", STEPS)
    fit(model, rows.batches(STEPS), loss, STEPS, Schedule(learning_rate=1e-3), steps)
    tests = [rows.row(parts) for parts in held_out]
    with paddle.no_grad():
        f1 = f1_of(model, tests)
    padded = [pad([row.ids]) for row in tests]
    write_trained(model, out, "services/sequence_labelling", labels=LABELS, rows=padded, steps=steps)
    return f1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python3 train.py")
    parser.add_argument("--out", type=Path, default=HERE / "model", help="the serving model (%(default)s)")
    options = parser.parse_args()
    console = Console()
    with ShownSteps(console) as steps:
        f1 = train(options.out, steps)
    console.print(f"F1 of entities in sentences held out: {f1:.3f}; {options.out} holds the serving model")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

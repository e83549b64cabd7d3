"""Training of the demo's model on the CPU, on some 1,400 headlines and their mixtures, with a fixed seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import paddle
from paddle import nn
from tokenizers import BertWordPieceTokenizer

from convert.demo.bert_classifier import BertClassifier, BertSize
from convert.demo.fitting import Schedule, fit, seed_training
from convert.demo.headlines import LABELS, Headline, Split
from convert.demo.initialisation import initialise
from convert.demo.teacher import NgramTeacher
from convert.demo.vocabulary import SPECIALS
from convert.programs.program_feeds import Array, Feeds
from convert.steps.progress import Steps

UNKNOWN = SPECIALS.index("[UNK]")


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters, chosen by cross-validation in the train headlines, never on the held-out headlines."""

    seed: int = 0
    epochs: int = 20
    batch: int = 32
    schedule: Schedule = field(default_factory=Schedule)
    dropout: float = 0.1
    token_dropout: float = 0.15  # mean share of tokens replaced by [UNK]
    mixing: float = 0.5  # share of rows made of a part of one headline and a part of another
    teaching: float = 0.8  # weight of the teacher's answer in a row's target; the rest is its own label


def train(split: Split, vocabulary: Sequence[str], steps: Steps, recipe: Recipe | None = None) -> Any:
    """Train a BertClassifier on `split.train` alone; return it in evaluation mode."""
    recipe = recipe or Recipe()
    seed_training(recipe.seed)
    rng = np.random.default_rng(recipe.seed)
    tokenizer = demo_tokenizer(vocabulary)
    rows, classes = encode(tokenizer, split.train), class_ids(split.train)
    model = BertClassifier(BertSize(len(vocabulary), len(LABELS), dropout=recipe.dropout))
    steps.step("Fitting the teacher")
    teacher = NgramTeacher(rows, classes, len(LABELS))
    initialise(model, rows, rng)
    total = recipe.epochs * (len(rows) // recipe.batch)
    steps.step(f"Training {recipe.epochs} epochs", total)
    epochs = (batches(rows, classes, teacher, recipe, rng) for _ in range(recipe.epochs))
    loss = partial(nn.functional.cross_entropy, soft_label=True)
    fit(model, chain.from_iterable(epochs), loss, total, recipe.schedule, steps)
    share_unknown(model, rows)
    return model


def demo_tokenizer(vocabulary: Sequence[str]) -> Any:
    """BERT's tokenizer over a vocabulary whose order gives the ids; lower-cases."""
    return BertWordPieceTokenizer({token: i for i, token in enumerate(vocabulary)}, lowercase=True)


def encode(tokenizer: Any, headlines: Sequence[Headline]) -> list[Array]:
    """Token ids of each headline, [CLS] and [SEP] included."""
    encodings = tokenizer.encode_batch([headline.text for headline in headlines])
    return [np.array(encoding.ids, np.int64) for encoding in encodings]


def class_ids(headlines: Sequence[Headline]) -> Array:
    """The index of each headline's label in LABELS."""
    return np.array([LABELS.index(headline.label) for headline in headlines])


def pad(rows: Sequence[Array]) -> Feeds:
    """Rows as one batch: input_ids, token_type_ids and attention_mask, int64 [N, longest]."""
    longest = max(len(row) for row in rows)
    input_ids = np.zeros((len(rows), longest), np.int64)
    mask = np.zeros_like(input_ids)
    for i, row in enumerate(rows):
        input_ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return {"input_ids": input_ids, "token_type_ids": np.zeros_like(input_ids), "attention_mask": mask}


def batches(
    rows: Sequence[Array],
    classes: Array,
    teacher: NgramTeacher,
    recipe: Recipe,
    rng: np.random.Generator,
) -> Iterator[tuple[Feeds, Array]]:
    """Yield one epoch of augmented batches and their soft targets, float32 [N, classes]."""
    order = rng.permutation(len(rows))
    for start in range(0, len(rows) - recipe.batch + 1, recipe.batch):
        chosen = order[start : start + recipe.batch]
        labels = np.eye(len(LABELS), dtype=np.float32)[classes[chosen]]
        mixed, labels = mix([rows[i] for i in chosen], labels, recipe.mixing, rng)
        targets = (1 - recipe.teaching) * labels + recipe.teaching * teacher.probabilities(mixed)
        feeds = pad(mixed)
        ids = feeds["input_ids"]
        rates = rng.random((len(ids), 1)) * 2 * recipe.token_dropout
        feeds["input_ids"] = np.where((rng.random(ids.shape) < rates) & (ids >= len(SPECIALS)), UNKNOWN, ids)
        yield feeds, targets.astype(np.float32)


def mix(
    rows: Sequence[Array], targets: Array, share: float, rng: np.random.Generator
) -> tuple[list[Array], Array]:
    """Replace a share of the rows by parts of two rows; mix their targets by the lengths of the parts."""
    mixed, shared = list(rows), targets.copy()
    for i, j in enumerate(rng.permutation(len(rows))):
        if rng.random() < share:
            part_share = rng.random()
            part, other = _part(rows[i], part_share, rng), _part(rows[j], 1 - part_share, rng)
            parts = [part, other] if rng.random() < 0.5 else [other, part]
            mixed[i] = np.concatenate([rows[i][:1], *parts, rows[i][-1:]])
            shared[i] = (len(part) * targets[i] + len(other) * targets[j]) / (len(part) + len(other))
    return mixed, shared


def _part(row: Array, share: float, rng: np.random.Generator) -> Array:
    """Return a run of at least one token of a row, without [CLS] and [SEP]."""
    body = row[1:-1]
    length = max(1, round(share * len(body)))
    start = rng.integers(0, len(body) - length + 1)
    return body[start : start + length]


def measure_accuracy(model: Any, rows: Sequence[Array], classes: Array) -> float:
    """Share of rows whose largest logit is their class."""
    with paddle.no_grad():
        logits = model(*map(paddle.to_tensor, pad(rows).values())).numpy()
    return float((logits.argmax(axis=1) == classes).mean())


def share_unknown(model: BertClassifier, rows: Sequence[Array]) -> None:
    """Give characters outside the train headlines the vector of [UNK], which token dropout has trained."""
    weight = model.embeddings.word.weight
    word = weight.numpy().copy()
    trained = np.zeros(len(word), bool)
    trained[np.concatenate(rows)] = True
    trained[: len(SPECIALS)] = True
    word[~trained] = word[UNKNOWN]
    weight.set_value(word)

"""Training of the demo's model on the CPU: masked loops over some 1,400 headlines, with a fixed seed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle import nn
from tokenizers import BertWordPieceTokenizer

from convert.demo_headlines import LABELS, Headline, Split
from convert.demo_model import BertClassifier, BertSize
from convert.demo_vocab import SPECIALS
from convert.progress import Steps
from convert.sample_feeds import Array, Feeds

UNKNOWN = SPECIALS.index("[UNK]")
MAX_THREADS = 4


@dataclass(frozen=True)
class Recipe:
    """How to train. Chosen by cross-validation inside the train headlines, never on the held-out ones."""

    seed: int = 0
    epochs: int = 30
    batch: int = 32
    learning_rate: float = 1e-3
    warm_up: float = 0.1
    weight_decay: float = 0.05
    dropout: float = 0.1
    label_smoothing: float = 0.1
    token_dropout: float = 0.3  # mean share of tokens replaced by [UNK]
    splicing: float = 0.5  # share of rows continued by another row, with the label shared by length
    embedding_std: float = 0.02


@dataclass(frozen=True)
class Trained:
    """A model in evaluation mode, its accuracy on the held-out headlines and the seconds it took."""

    model: Any
    held_out_accuracy: float
    seconds: float


def train(split: Split, vocabulary: Sequence[str], steps: Steps, recipe: Recipe | None = None) -> Trained:
    """Train on `split.train`, then look at `split.held_out` once."""
    recipe = recipe or Recipe()
    start = time.monotonic()
    paddle.seed(recipe.seed)
    paddle.base.core.set_num_threads(min(MAX_THREADS, len(os.sched_getaffinity(0))))
    rng = np.random.default_rng(recipe.seed)
    tokenizer = demo_tokenizer(vocabulary)
    rows, classes = encode(tokenizer, split.train), class_ids(split.train)
    model = BertClassifier(BertSize(len(vocabulary), len(LABELS), dropout=recipe.dropout))
    initialise(model, recipe, rng)
    per_epoch = len(rows) // recipe.batch
    total = recipe.epochs * per_epoch
    schedule, optimizer = _optimizer(model, recipe, total)
    steps.step(f"Training {recipe.epochs} epochs", total)
    model.train()
    for _ in range(recipe.epochs):
        for feeds, targets in batches(rows, classes, recipe, rng):
            logits = model(*map(paddle.to_tensor, feeds.values()))
            loss = nn.functional.cross_entropy(logits, paddle.to_tensor(targets), soft_label=True)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            schedule.step()
            steps.advance()
    _share_unknown(model, rows)
    model.eval()
    accuracy = accuracy_of(model, encode(tokenizer, split.held_out), class_ids(split.held_out))
    return Trained(model, accuracy, time.monotonic() - start)


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
    rows: Sequence[Array], classes: Array, recipe: Recipe, rng: np.random.Generator
) -> Iterator[tuple[Feeds, Array]]:
    """One epoch of augmented batches and their soft labels, float32 [N, classes]."""
    order = rng.permutation(len(rows))
    for start in range(0, len(rows) - recipe.batch + 1, recipe.batch):
        chosen = order[start : start + recipe.batch]
        targets = np.eye(len(LABELS), dtype=np.float32)[classes[chosen]]
        spliced, targets = splice([rows[i] for i in chosen], targets, recipe.splicing, rng)
        feeds = pad(spliced)
        ids = feeds["input_ids"]
        rates = rng.random((len(ids), 1)) * 2 * recipe.token_dropout
        feeds["input_ids"] = np.where((rng.random(ids.shape) < rates) & (ids >= len(SPECIALS)), UNKNOWN, ids)
        smooth = recipe.label_smoothing
        yield feeds, (targets * (1 - smooth) + smooth / len(LABELS)).astype(np.float32)


def splice(
    rows: Sequence[Array], targets: Array, share: float, rng: np.random.Generator
) -> tuple[list[Array], Array]:
    """Continue a share of the rows by another of the batch; labels mix by the number of tokens."""
    spliced, mixed = list(rows), targets.copy()
    for i, j in enumerate(rng.permutation(len(rows))):
        if rng.random() < share:
            spliced[i] = np.concatenate([rows[i][:-1], rows[j][1:]])
            own, other = len(rows[i]) - 2, len(rows[j]) - 2
            mixed[i] = (own * targets[i] + other * targets[j]) / (own + other)
    return spliced, mixed


def accuracy_of(model: Any, rows: Sequence[Array], classes: Array) -> float:
    """Share of rows whose largest logit is their class."""
    with paddle.no_grad():
        logits = model(*map(paddle.to_tensor, pad(rows).values())).numpy()
    return float((logits.argmax(axis=1) == classes).mean())


def initialise(model: BertClassifier, recipe: Recipe, rng: np.random.Generator) -> None:
    """Begin near a bag of characters: positions small and smooth (sinusoids), token types at zero."""
    embeddings = model.embeddings
    words, hidden = embeddings.word.weight.shape
    word = rng.normal(0.0, recipe.embedding_std, (words, hidden)).astype(np.float32)
    embeddings.word.weight.set_value(word)
    positions = np.arange(embeddings.position.weight.shape[0])[:, None]
    angles = positions / 10000 ** (np.arange(0, hidden, 2) / hidden)
    sinusoids = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(positions), hidden)
    embeddings.position.weight.set_value((0.42 * recipe.embedding_std * sinusoids).astype(np.float32))
    embeddings.token_type.weight.set_value(np.zeros(embeddings.token_type.weight.shape, np.float32))


def _optimizer(model: BertClassifier, recipe: Recipe, total: int) -> tuple[Any, Any]:
    rate, warm = recipe.learning_rate, int(total * recipe.warm_up)
    decay = paddle.optimizer.lr.CosineAnnealingDecay(rate, max(1, total - warm), rate * 0.02)
    schedule = paddle.optimizer.lr.LinearWarmup(decay, warm, 0.0, rate)
    optimizer = paddle.optimizer.AdamW(
        schedule,
        parameters=model.parameters(),
        weight_decay=recipe.weight_decay,
        grad_clip=nn.ClipGradByGlobalNorm(1.0),
    )
    return schedule, optimizer


def _share_unknown(model: BertClassifier, rows: Sequence[Array]) -> None:
    """Give characters that no train headline has the vector of [UNK], which token dropout has trained."""
    weight = model.embeddings.word.weight
    word = weight.numpy().copy()
    seen = np.zeros(len(word), bool)
    seen[np.concatenate(rows)] = True
    seen[: len(SPECIALS)] = True
    word[~seen] = word[UNKNOWN]
    weight.set_value(word)

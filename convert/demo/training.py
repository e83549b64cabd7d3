"""Trains the demo's model on the CPU, on about 1,400 headlines and mixtures of them, with a fixed seed.

1,400 headlines are too few to learn that rare characters tell more than common ones, or that neighbours form
words. Word vectors start with lengths by inverse document frequency. Positions have dimensions of their own.
Two heads of the first layer start out looking at the character before and the character after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import paddle
from paddle import nn
from tokenizers import BertWordPieceTokenizer

from convert.demo.bert_classifier import BertClassifier, BertSize
from convert.demo.fitting import Schedule, fit, seed_training
from convert.demo.headlines import LABELS, SPECIALS, Headline, Split
from convert.programs.program_feeds import Array, Feeds
from convert.steps.progress import Steps

Gram = tuple[int, ...]

INVERSE_PENALTY = 10.0
STEPS = 150


class NgramTeacher:
    """A linear TF-IDF classifier of token 1-grams and 2-grams, whose probabilities are training targets."""

    def __init__(self, rows: Sequence[Array], classes: Array, class_count: int) -> None:
        """Fit the classifier on rows of token ids and their classes.

        rows: ids from [CLS] to [SEP]; both of these are ignored.
        """
        documents: Counter[Gram] = Counter()
        for row in rows:
            documents.update(set(_grams(row)))
        self._index = {gram: i for i, gram in enumerate(documents)}
        counts = np.fromiter(documents.values(), np.float64, len(documents))
        self._idf = 1 + np.log((1 + len(rows)) / (1 + counts))
        features = _Features([self._sparse(row) for row in rows], len(documents))
        self._weights = _fit_weights(features, np.eye(class_count, dtype=np.float32)[classes])

    def probabilities(self, rows: Sequence[Array]) -> Array:
        """Return class probabilities of rows of token ids, float32 [N, classes]."""
        sparse = (self._sparse(row) for row in rows)
        return _softmax(np.stack([values @ self._weights[ids] for ids, values in sparse]))

    def _sparse(self, row: Array) -> tuple[Array, Array]:
        """Return the indices and values of a row's n-grams that occur in training rows.

        The values are scaled to norm 1.
        """
        counts = Counter(self._index[gram] for gram in _grams(row) if gram in self._index)
        ids = np.fromiter(counts.keys(), np.int64, len(counts))
        values = (1 + np.log(np.fromiter(counts.values(), np.float64, len(counts)))) * self._idf[ids]
        return ids, (values / max(1e-12, float(np.linalg.norm(values)))).astype(np.float32)


class _Features:
    """A sparse matrix of n-gram values by row. Each row and each column has at least one value."""

    def __init__(self, rows: Sequence[tuple[Array, Array]], columns: int) -> None:
        lengths = [len(ids) for ids, _ in rows]
        self.columns = columns
        self._ids = np.concatenate([ids for ids, _ in rows])
        self._values = np.concatenate([values for _, values in rows])[:, None]
        self._starts = np.cumsum([0, *lengths[:-1]])
        by_column = np.argsort(self._ids, kind="stable")
        self._rows_by_column = np.repeat(np.arange(len(rows)), lengths)[by_column]
        self._values_by_column = self._values[by_column]
        self._starts_of_columns = np.searchsorted(self._ids[by_column], np.arange(columns))

    def times(self, weights: Array) -> Array:
        """Multiply the matrix with an array [columns, n]; return [rows, n]."""
        return np.add.reduceat(weights[self._ids] * self._values, self._starts)

    def transposed_times(self, errors: Array) -> Array:
        """Multiply the transposed matrix with an array [rows, n]; return [columns, n]."""
        return np.add.reduceat(errors[self._rows_by_column] * self._values_by_column, self._starts_of_columns)


def _grams(row: Array) -> list[Gram]:
    tokens = row[1:-1].tolist()
    return [(token,) for token in tokens] + list(pairwise(tokens))


def _fit_weights(features: _Features, targets: Array) -> Array:
    """Fit the weights [n-grams, classes] of a penalised softmax regression, by Nesterov's gradient steps.

    There is no bias: the classes are equally frequent.
    """
    # The largest row sum of the rows' products bounds the largest eigenvalue, and half of that the curvature
    # of a softmax.
    unit = np.ones((len(targets), 1), np.float32)
    largest = float(features.times(features.transposed_times(unit)).max())
    step = np.float32(1.0 / (1.0 / INVERSE_PENALTY + 0.5 * largest))
    weights = ahead = np.zeros((features.columns, targets.shape[1]), np.float32)
    for number in range(STEPS):
        errors = targets - _softmax(features.times(ahead))
        following = ahead + step * (features.transposed_times(errors) - ahead / INVERSE_PENALTY)
        ahead = following + np.float32(number / (number + 3)) * (following - weights)
        weights = following
    return weights


def _softmax(logits: Array) -> Array:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: Array = shifted / shifted.sum(axis=1, keepdims=True)
    return probabilities


POSITION_DIMENSIONS = 32
WORD_STD, POSITION_AMPLITUDE = 0.05, 0.06
SPECIAL_WEIGHT = 0.3
# A head gives about nine tenths of its attention to one neighbour.
NEIGHBOUR_GAIN = 1.7
# From two to a few hundred characters a turn: faster than in BERT, to tell neighbours apart.
FREQUENCIES = np.pi * 0.75 ** np.arange(POSITION_DIMENSIONS // 2)


def initialise(model: Any, rows: Sequence[Array], rng: np.random.Generator) -> None:
    """Initialise a BertClassifier's embeddings, and the first layer's heads that attend to neighbours.

    rows: token ids of the training headlines.
    """
    embeddings, attention = model.embeddings, model.encoder.layers[0].self_attn
    words = embeddings.word.weight.shape[0]
    word_dimensions = embeddings.word.weight.shape[1] - POSITION_DIMENSIONS
    word = np.zeros(embeddings.word.weight.shape, np.float32)
    word[:, :word_dimensions] = rng.normal(0.0, WORD_STD, (words, word_dimensions))
    word *= document_weights(words, rows)[:, None]
    embeddings.word.weight.set_value(word)
    embeddings.position.weight.set_value(positions(*embeddings.position.weight.shape))
    embeddings.token_type.weight.set_value(np.zeros(embeddings.token_type.weight.shape, np.float32))
    for head, offset in enumerate((-1, 1)):
        look_at_neighbour(attention, head, offset)


def document_weights(words: int, rows: Sequence[Array]) -> Array:
    """Return the inverse document frequency of each token id, float32 [words].

    It is scaled to 1 for ids that occur in a single row.
    """
    documents = np.zeros(words)
    for row in rows:
        documents[np.unique(row)] += 1
    weights = 1 + np.log((1 + len(rows)) / (1 + documents))
    weights /= 1 + np.log((1 + len(rows)) / 2)
    weights[: len(SPECIALS)] = SPECIAL_WEIGHT
    return weights.astype(np.float32)


def positions(count: int, hidden: int) -> Array:
    """Return position embeddings, float32 [count, hidden]: sinusoids in the last dimensions, else zeros."""
    table = np.zeros((count, hidden), np.float32)
    angles = np.arange(count)[:, None] * FREQUENCIES
    first = hidden - POSITION_DIMENSIONS
    table[:, first::2] = POSITION_AMPLITUDE * np.sin(angles)
    table[:, first + 1 :: 2] = POSITION_AMPLITUDE * np.cos(angles)
    return table


def look_at_neighbour(attention: Any, head: int, offset: int) -> None:
    """Set an attention head's query and key so that it attends to the position at `offset`.

    The query is the position embedding rotated by `offset` positions, which matches that neighbour's key.
    """
    query, key = attention.q_proj.weight.numpy().copy(), attention.k_proj.weight.numpy().copy()
    columns = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
    query[:, columns] = key[:, columns] = 0.0
    first = query.shape[0] - POSITION_DIMENSIONS
    for i, frequency in enumerate(FREQUENCIES):
        sine, cosine = first + 2 * i, first + 2 * i + 1
        out = columns.start + 2 * i
        turn = offset * frequency
        # sin(t + o) = sin t cos o + cos t sin o;  cos(t + o) = cos t cos o - sin t sin o
        query[sine, out], query[cosine, out] = np.cos(turn), np.sin(turn)
        query[cosine, out + 1], query[sine, out + 1] = np.cos(turn), -np.sin(turn)
        key[sine, out] = key[cosine, out + 1] = 1.0
    attention.q_proj.weight.set_value(query * _gain(query, columns))
    attention.k_proj.weight.set_value(key * _gain(key, columns))


def _gain(weight: Array, columns: slice) -> Array:
    gain = np.ones(weight.shape[1], np.float32)
    gain[columns] = NEIGHBOUR_GAIN
    return gain


UNKNOWN = SPECIALS.index("[UNK]")


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of the demo's training, chosen by cross-validation without the held-out headlines."""

    seed: int = 0
    epochs: int = 20
    batch: int = 32
    schedule: Schedule = field(default_factory=Schedule)
    dropout: float = 0.1
    token_dropout: float = 0.15  # mean share of tokens replaced by [UNK]
    mixing: float = 0.5  # share of rows made of a part of one headline and a part of another
    teaching: float = 0.8  # weight of the teacher's answer in a row's target; the rest is its own label


def train(split: Split, vocabulary: Sequence[str], steps: Steps, recipe: Recipe | None = None) -> Any:
    """Train a BertClassifier on `split.train` only, and return it in evaluation mode.

    vocabulary: the tokens in the order of their ids. steps: receives the progress.
    """
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
    """Return BERT's lower-casing tokenizer over a vocabulary whose order gives the ids."""
    return BertWordPieceTokenizer({token: i for i, token in enumerate(vocabulary)}, lowercase=True)


def encode(tokenizer: Any, headlines: Sequence[Headline]) -> list[Array]:
    """Return the token ids of each headline, [CLS] and [SEP] included, as int64 arrays."""
    encodings = tokenizer.encode_batch([headline.text for headline in headlines])
    return [np.array(encoding.ids, np.int64) for encoding in encodings]


def class_ids(headlines: Sequence[Headline]) -> Array:
    """Return the index of each headline's label in LABELS."""
    return np.array([LABELS.index(headline.label) for headline in headlines])


def pad(rows: Sequence[Array]) -> Feeds:
    """Pad rows of token ids to a batch of input_ids, token_type_ids, attention_mask; int64 [N, longest]."""
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
    """Yield one epoch of batches for training: augmented inputs and soft targets, float32 [N, classes]."""
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
    """Replace a share of the training rows, each by a piece of one row joined to a piece of another row.

    Targets are mixed in proportion to the lengths of the pieces.
    """
    mixed, shared = list(rows), targets.copy()
    for i, j in enumerate(rng.permutation(len(rows))):
        if rng.random() < share:
            part_share = rng.random()
            part, other = _cut_run(rows[i], part_share, rng), _cut_run(rows[j], 1 - part_share, rng)
            parts = [part, other] if rng.random() < 0.5 else [other, part]
            mixed[i] = np.concatenate([rows[i][:1], *parts, rows[i][-1:]])
            shared[i] = (len(part) * targets[i] + len(other) * targets[j]) / (len(part) + len(other))
    return mixed, shared


def _cut_run(row: Array, share: float, rng: np.random.Generator) -> Array:
    """Return consecutive tokens of a row, at least one and about `share` of it, without [CLS] and [SEP]."""
    body = row[1:-1]
    length = max(1, round(share * len(body)))
    start = rng.integers(0, len(body) - length + 1)
    return body[start : start + length]


def measure_accuracy(model: Any, rows: Sequence[Array], classes: Array) -> float:
    """Return the share of rows for which the class with the largest logit is the right class."""
    with paddle.no_grad():
        logits = model(*map(paddle.to_tensor, pad(rows).values())).numpy()
    return float((logits.argmax(axis=1) == classes).mean())


def share_unknown(model: BertClassifier, rows: Sequence[Array]) -> None:
    """Set the embeddings of tokens outside the training rows to the embedding of [UNK].

    Token dropout in training has trained that embedding.
    """
    weight = model.embeddings.word.weight
    word = weight.numpy().copy()
    trained = np.zeros(len(word), bool)
    trained[np.concatenate(rows)] = True
    trained[: len(SPECIALS)] = True
    word[~trained] = word[UNKNOWN]
    weight.set_value(word)

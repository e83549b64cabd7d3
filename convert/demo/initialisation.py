"""The initial weights of the demo's training, computed in place of pre-training on a large corpus.

1,400 headlines are too few to learn that rare characters tell more than common ones, or that neighbours
form words. Word vectors start with lengths by inverse document frequency. Positions have dimensions of their
own. Two heads of the first layer start out looking at the character before and the character after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from convert.demo.vocabulary import SPECIALS
from convert.programs.program_feeds import Array

POSITION_DIMENSIONS = 32
WORD_STD, POSITION_AMPLITUDE = 0.05, 0.06
SPECIAL_WEIGHT = 0.3
# A head gives about nine tenths of its attention to one neighbour.
NEIGHBOUR_GAIN = 1.7
# From two to a few hundred characters a turn: faster than in BERT, to tell neighbours apart.
FREQUENCIES = np.pi * 0.75 ** np.arange(POSITION_DIMENSIONS // 2)


def initialise(model: Any, rows: Sequence[Array], rng: np.random.Generator) -> None:
    """Set embeddings and the first layer's neighbour heads of a BertClassifier; `rows` are the train ids."""
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
    """Return the inverse document frequency of each id, 1 for an id of a single row; float32 [words]."""
    documents = np.zeros(words)
    for row in rows:
        documents[np.unique(row)] += 1
    weights = 1 + np.log((1 + len(rows)) / (1 + documents))
    weights /= 1 + np.log((1 + len(rows)) / 2)
    weights[: len(SPECIALS)] = SPECIAL_WEIGHT
    return weights.astype(np.float32)


def positions(count: int, hidden: int) -> Array:
    """Return sinusoids in the last dimensions and zeros in the word dimensions; float32 [count, hidden]."""
    table = np.zeros((count, hidden), np.float32)
    angles = np.arange(count)[:, None] * FREQUENCIES
    first = hidden - POSITION_DIMENSIONS
    table[:, first::2] = POSITION_AMPLITUDE * np.sin(angles)
    table[:, first + 1 :: 2] = POSITION_AMPLITUDE * np.cos(angles)
    return table


def look_at_neighbour(attention: Any, head: int, offset: int) -> None:
    """Make a head's query its position turned by `offset`, so that it matches that neighbour's key."""
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

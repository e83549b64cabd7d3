"""Sentence vectors: the vectors of a text's tokens pooled, then the layers of Sentence Transformers."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.errors import ConfigError

Array = np.ndarray[Any, np.dtype[Any]]
_TINY = np.float32(1e-12)  # the least length that a vector is divided by
_ERF = np.vectorize(math.erf, otypes=[np.float32])


class Layer(NamedTuple):
    """A Dense layer with its activation; without a weight, a layer that gives vectors the length 1."""

    weight: Array | None = None  # [numbers of a result, numbers of a vector]
    bias: Array | None = None
    residual: Array | None = None  # weight of the vectors that are added to the results
    activation: str = "identity"


def pool_tokens(fetch: Array, tokens: int, poolings: Sequence[str], skip: int = 0) -> Array:
    """Return one text's vector: float32, the results of the poolings after each other.

    fetch: a vector for each token, or the text's own vector where no pooling is named. tokens: how many the
    text has, without padding. skip: how many tokens at its start belong to a prompt and are not pooled.
    """
    if not poolings:
        return np.asarray(fetch, np.float32)
    first = min(skip, tokens - 1)
    vectors = np.asarray(fetch[first:tokens], np.float32)
    return np.concatenate([_pool(vectors, pooling, first) for pooling in poolings])


def _pool(vectors: Array, pooling: str, first: int) -> Array:
    """Return the vector of one pooling. first: the place of the first token in its text."""
    if pooling == "cls":
        return np.asarray(vectors[0])
    if pooling == "lasttoken":
        return np.asarray(vectors[-1])
    if pooling == "max":
        return np.asarray(vectors.max(axis=0))
    if pooling == "mean_sqrt_len":
        return np.asarray(vectors.sum(axis=0) / np.sqrt(np.float32(len(vectors))))
    if pooling == "weightedmean":
        weights = np.arange(first + 1, first + len(vectors) + 1, dtype=np.float32)
        return np.asarray(weights @ vectors / weights.sum())
    return np.asarray(vectors.mean(axis=0, dtype=np.float32))


def apply_layers(vectors: Array, layers: Sequence[Layer]) -> Array:
    """Return what the layers make of sentence vectors, float32 [texts, size]."""
    for layer in layers:
        if layer.weight is None:
            vectors = normalized(vectors)
            continue
        results = vectors @ layer.weight.T
        if layer.bias is not None:
            results = results + layer.bias
        results = _activate(results, layer.activation)
        vectors = results if layer.residual is None else results + vectors @ layer.residual.T
    return vectors


def _activate(numbers: Array, activation: str) -> Array:
    if activation == "tanh":
        return np.asarray(np.tanh(numbers))
    if activation == "relu":
        return np.maximum(numbers, np.float32(0))
    if activation == "gelu":
        return np.asarray(numbers * (1 + _ERF(numbers / np.float32(math.sqrt(2)))) / 2)
    if activation in ("sigmoid", "silu"):
        share = (1 + np.tanh(numbers / 2)) / 2  # the sigmoid, without overflow
        return np.asarray(share if activation == "sigmoid" else numbers * share)
    return numbers


def normalized(vectors: Array) -> Array:
    """Return the vectors with the length 1."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, _TINY))


def load_layers(entries: Sequence[Mapping[str, Any]], file: Path, size: int) -> list[Layer]:
    """Return the layers of `sentence.layers` in serving.yml, with their weights.

    file: an .npz file with the arrays `N.weight`, `N.bias` and `N.residual` of layer N, from 0. size: numbers
    of a vector before the layers; below 0 where unknown. Raises ConfigError for weights that do not fit.
    """
    if not entries:
        return []
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = {name: np.asarray(archive[name], np.float32) for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as exc:
        raise ConfigError(f"{file} can't be read ({exc}): convert the model again") from exc
    layers = []
    for number, entry in enumerate(entries):
        if entry["kind"] == "normalize":
            layers.append(Layer())
            continue
        parts = {key: arrays.get(f"{number}.{key}") for key in ("weight", "bias", "residual")}
        layer = Layer(**parts, activation=entry["activation"])
        shape = (entry["size"], size if size > 0 else _columns(layer.weight))
        _check_shapes(layer, shape, f"{file}: layer {number}")
        layers.append(layer)
        size = entry["size"]
    return layers


def _columns(weight: Array | None) -> int:
    return weight.shape[1] if weight is not None and weight.ndim == 2 else 0


def _check_shapes(layer: Layer, shape: tuple[int, int], where: str) -> None:
    expected = {"weight": shape, "bias": shape[:1], "residual": shape}
    for name, dims in expected.items():
        array = getattr(layer, name)
        if array is None and name != "weight":
            continue
        if array is None or array.shape != dims:
            has = "is absent" if array is None else f"is {list(array.shape)}"
            raise ConfigError(f"{where}: {name} {has}, expected {list(dims)}: convert the model again")

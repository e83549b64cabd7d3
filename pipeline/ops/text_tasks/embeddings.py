"""The text tasks of embeddings, and of the similarity of two texts by their embeddings."""

from __future__ import annotations

import copy
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pipeline.errors import ConfigError, InvalidInput
from pipeline.models.sentence_files import LAYERS_FILE, EmbeddingOutput, read_sentence
from pipeline.ops.text_tasks import parameters
from pipeline.ops.text_tasks.parameters import Parameter
from pipeline.ops.text_tasks.text_task import (
    TRUNCATE,
    TRUNCATED,
    Array,
    TextRequest,
    TextTask,
    find_prompt,
    prompt_tokens,
    where,
    with_prompt,
)
from pipeline.ops.text_tasks.text_windows import Cut, pooled
from pipeline.ops.tokenizer import Row

_TINY = np.float32(1e-12)  # the least length that a vector is divided by
_ERF = np.vectorize(math.erf, otypes=[np.float32])


class Layer(NamedTuple):
    """A layer after the pooling: a Dense layer with its activation, or, without a weight, a normalization.

    The normalization scales vectors to length 1.
    """

    weight: Array | None = None  # [numbers of a result, numbers of a vector]
    bias: Array | None = None
    residual: Array | None = None  # weight of the vectors that are added to the results
    activation: str = "identity"


def pool_tokens(fetch: Array, tokens: int, poolings: Sequence[str], skip: int = 0) -> Array:
    """Pool the token vectors of one text into its vector, float32.

    Results of several poolings are concatenated. fetch: a vector for each token, or the text's own vector if
    `poolings` is empty. tokens: number of the text's tokens, without padding. skip: number of prompt tokens
    at the start of the text, which are not pooled.
    """
    if not poolings:
        return np.asarray(fetch, np.float32)
    first = min(skip, tokens - 1)
    vectors = np.asarray(fetch[first:tokens], np.float32)
    return np.concatenate([_pool(vectors, pooling, first) for pooling in poolings])


def _pool(vectors: Array, pooling: str, first: int) -> Array:
    """Return a text's vector by one kind of pooling, such as "mean".

    `first` is the position of the first of these tokens in the text.
    """
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
    """Return sentence vectors passed through the layers after the pooling: float32 [texts, size]."""
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
    """Scale vectors to length 1."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, _TINY))


def load_layers(entries: Sequence[Mapping[str, Any]], file: Path, size: int) -> list[Layer]:
    """Load the layers that follow the pooling, as `sentence.layers` in serving.yml lists them.

    file: an .npz file with the arrays `N.weight`, `N.bias` and `N.residual` of layer N, from 0. size: size of
    a vector before the layers; negative if unknown. Raises ConfigError for weights that do not fit.
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


DIMENSIONS = Parameter("dimensions", parameters.size, "How many numbers of each vector are kept.")
PROMPT = Parameter("prompt_name", parameters.name_sent, "Which of the model's prompts goes before the texts.")
RESULT = Parameter(
    "result",
    parameters.name_sent,
    "Absent: a vector for each text. token_vectors: a vector for each token. tokens, plain_tokens: the "
    "tokens with and without special tokens.",
)
TOKEN_VECTORS, TOKENS, PLAIN_TOKENS = "token_vectors", "tokens", "plain_tokens"
NORMALIZE = Parameter("normalize", parameters.flag, "Whether vectors have the length 1.")


class EmbeddingTask(TextTask):
    """Computes an embedding vector for each text; on request, token vectors or the tokens themselves."""

    parameters: ClassVar[tuple[Parameter, ...]] = (DIMENSIONS, NORMALIZE, PROMPT, RESULT, TRUNCATE)
    pairs: ClassVar[bool] = False

    def declared(self) -> dict[str, str]:
        return {"embedding": "FP32 [-1, -1]", "tokens": "INT64 [-1]", TRUNCATED: "BOOL [-1]"}

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.sentence = read_sentence(self.model.additions, self.model.directory)
        if self.sentence.max_tokens and not self.input.max_tokens:
            self.max_tokens = min(self.max_tokens, self.sentence.max_tokens)

    def describe_text(self) -> dict[str, Any]:
        return {**super().describe_text(), "pooling": "+".join(self.poolings) or "none"}

    def load(self) -> None:
        super().load()
        self._poolings = self.poolings
        size = self.fetch.shape[-1] * len(self._poolings) if self.fetch.shape else -1
        self._layers = load_layers(self.layers, self.model.directory / LAYERS_FILE, size)

    @property
    def poolings(self) -> tuple[str, ...]:
        """Names of the poolings that turn token vectors into a text's vector.

        Empty if the model itself pools. Raises ConfigError for a pooling that does not fit the output tensor.
        """
        pooling, alias = self.output.pooling, self.fetch.alias
        of_tokens = len(self.fetch.shape) != 2
        if of_tokens and pooling != "none":
            return (self.sentence.poolings or ("mean",)) if pooling == "auto" else (pooling,)
        if of_tokens or pooling not in ("auto", "none"):
            vectors = "a vector for each token" if of_tokens else "one vector for each text"
            raise ConfigError(
                f"{self.model.directory}: outputs.{alias}.pooling is {pooling}, but {alias} gives {vectors}"
            )
        return ()

    @property
    def layers(self) -> list[dict[str, Any]]:
        """The layers after the pooling; empty if the model itself pools and applies the layers."""
        return [layer.model_dump() for layer in self.sentence.layers] if self.poolings else []

    def rows(self, inputs: Mapping[str, Any], options: dict[str, Any]) -> TextRequest:
        ids = token_ids(inputs.get(self.name))
        self._check_result(options.get(RESULT.name), bool(ids))
        if ids:
            return self.rows_of_ids(ids, options)
        prompt = self._prompt(options)
        texts = [self._with_prompt(prompt, many) for many in self.get_texts(inputs)]
        request = TextRequest(options, *self.maker.build_rows(texts))
        (request.texts,) = texts
        return self._skip_prompt(request, prompt)

    def _check_result(self, result: str | None, has_ids: bool) -> None:
        """Raise InvalidInput for an unknown `result` parameter, or a result that the model can't give."""
        if result not in (None, TOKEN_VECTORS, TOKENS, PLAIN_TOKENS):
            raise InvalidInput(
                f"'result' is {str(result)[:40]!r}; it is {TOKEN_VECTORS}, {TOKENS} or {PLAIN_TOKENS}"
            )
        if result == TOKEN_VECTORS and not self._poolings:
            raise InvalidInput("the model gives one vector for each text, and none for its tokens")
        if result in (TOKENS, PLAIN_TOKENS) and has_ids:
            raise InvalidInput("the request has token ids already: send texts")

    def _with_prompt(self, prompt: str, texts: Sequence[str]) -> list[str]:
        return with_prompt(prompt, texts, lowercase=self.sentence.lowercase)

    def _skip_prompt(self, request: TextRequest, prompt: str) -> TextRequest:
        """Exclude the prompt's tokens from the pooling, if the model's settings say so."""
        if prompt and not self.sentence.include_prompt:
            (tokens,) = self.tokenizer.tokens(self._with_prompt(prompt, [""]))
            request.skips = prompt_tokens(len(tokens.ids), request.rows, request.cuts)
        return request

    def _prompt(self, options: Mapping[str, Any]) -> str:
        """Return the prompt (a prefix) of a request's texts."""
        return find_prompt(self.sentence.prompts, options.get("prompt_name", self.sentence.default_prompt))

    def rows_of_ids(self, many: list[list[int]], options: dict[str, Any]) -> TextRequest:
        """Build model rows from token ids that a client sends in place of texts.

        The ids include special tokens.
        """
        vocabulary = self.tokenizer.vocabulary_size
        rows = []
        for number, ids in enumerate(many):
            place = where(self.name, number, len(many))
            if strange := [token for token in ids if not 0 <= token < vocabulary]:
                raise InvalidInput(f"{place} has the token {strange[0]}; the model has {vocabulary}")
            if len(ids) > self.max_tokens and self.input.too_long != "truncate":
                raise InvalidInput(f"{place} has {len(ids)} tokens, the model reads {self.max_tokens}")
            read = ids[: self.max_tokens]
            rows.append(Row(read, [0] * len(read), 0))
        cuts = [
            Cut([(0, len(row.ids))], len(row.ids) < len(ids)) for row, ids in zip(rows, many, strict=True)
        ]
        return TextRequest(options, rows, cuts)

    def build_answer(self, request: TextRequest, scores: list[Array]) -> dict[str, Any]:
        result = request.parameters.get(RESULT.name)
        if result in (TOKENS, PLAIN_TOKENS):
            return _describe_tokens(
                [self.tokenizer.encode(text, special=result == TOKENS) for text in request.texts]
            )
        tokens = [len(row.ids) for row in request.rows]
        counts = np.add.reduceat(tokens, np.cumsum([0, *request.windows[:-1]]))
        if result == TOKEN_VECTORS:
            if max(request.windows) > 1:
                raise InvalidInput(
                    f"a text has over {self.max_tokens} tokens: shorten it, or send 'truncate'"
                )
            of_rows = [fetch[0, :count] for fetch, count in zip(scores, tokens, strict=True)]
            vectors = np.concatenate(of_rows, dtype=np.float32)
        else:
            vectors = self.vectors(request, scores)
        return {"embedding": vectors, "tokens": counts, TRUNCATED: truncations(request)}

    def vectors(self, request: TextRequest, fetches: list[Array]) -> Array:
        """Return the embedding vectors of a request's texts: float32 [texts, dimensions]."""
        rows = zip(fetches, request.rows, request.skips or [0] * len(request.rows), strict=True)
        of_rows = np.stack(
            [pool_tokens(fetch[0], len(row.ids), self._poolings, skip) for fetch, row, skip in rows]
        )
        of_texts = pooled(apply_layers(of_rows, self._layers), request.windows, "mean")
        output: EmbeddingOutput = self.output
        size = request.parameters.get("dimensions", output.dimensions)
        if size is not None and size > of_texts.shape[1]:
            raise InvalidInput(f"'dimensions' is {size}; the model's vectors have {of_texts.shape[1]}")
        return shortened(of_texts, size, request.parameters.get("normalize", output.normalize))


class SimilarityTask(EmbeddingTask):
    """Computes the cosine similarity of two texts by their embeddings.

    The model encodes each text separately.
    """

    parameters: ClassVar[tuple[Parameter, ...]] = (DIMENSIONS, NORMALIZE, PROMPT, TRUNCATE)
    pairs: ClassVar[bool] = True
    one_for_all: ClassVar[bool] = True

    def declared(self) -> dict[str, str]:
        return {"score": "FP32 [-1]", TRUNCATED: "BOOL [-1]"}

    def declared_all(self) -> dict[str, str]:
        return self.declared()

    def rows(self, inputs: Mapping[str, Any], options: dict[str, Any]) -> TextRequest:
        task = copy.copy(self)
        first, second = task.get_texts(inputs)
        task.input = task.input.model_copy(update={"pair": ""})
        prompt = self._prompt(options)
        texts = self._with_prompt(prompt, [*first, *second])
        request = TextTask.rows(task, {self.name: texts}, {**options, "normalize": True})
        request = self._skip_prompt(request, prompt)
        request.texts = first
        return request

    def answer(self, request: TextRequest, fetches: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
        vectors = self.vectors(request, [fetch[self.fetch.alias] for fetch in fetches])
        first, second = np.split(vectors, [len(request.texts)])
        first_cut, second_cut = np.split(truncations(request), [len(request.texts)])
        return {"score": (first * second).sum(axis=1), TRUNCATED: first_cut | second_cut}


def _describe_tokens(encodings: Sequence[Any]) -> dict[str, Any]:
    """Return token ids, token names and offsets of all texts, each in one array, and the tokens per text."""
    names = np.array([name for encoding in encodings for name in encoding.tokens], object)
    places = [place for encoding in encodings for place in encoding.offsets]
    return {
        "token_ids": np.array([number for encoding in encodings for number in encoding.ids], np.int64),
        "token_names": names,
        "special": np.array([bit for encoding in encodings for bit in encoding.special_tokens_mask], bool),
        "places": np.array(places, np.int64).reshape(-1, 2),
        "tokens": np.array([len(encoding.ids) for encoding in encodings]),
    }


def truncations(request: TextRequest) -> Array:
    """Return, for each text of a request, whether the end of the text was cut off: bool [texts]."""
    return np.array([part.truncated for part in request.cuts])


def token_ids(value: Any) -> list[list[int]]:
    """Return the lists of token ids that a client sends in place of texts; empty for texts."""
    return value if isinstance(value, list) and value and isinstance(value[0], list) else []


def shortened(vectors: Array, dimensions: int | None, normalize: bool) -> Array:
    """Truncate vectors to their first `dimensions` numbers, and scale them to length 1 if `normalize`."""
    first = vectors[:, :dimensions]
    return normalized(first) if normalize else first

"""Texts to vectors, and how alike two texts are by their vectors."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipeline.errors import ConfigError, InvalidInput
from pipeline.models.embedding_description import EmbeddingOutput, read_sentence
from pipeline.models.serving_model import ServingModel
from pipeline.models.signature import Variable
from pipeline.ops.text_tasks import parameters
from pipeline.ops.text_tasks.parameters import Parameter
from pipeline.ops.text_tasks.text_rows import where
from pipeline.ops.text_tasks.text_task import TRUNCATE, TRUNCATED, Array, Asked, TextTask
from pipeline.ops.text_tasks.text_windows import Cut, pooled
from pipeline.ops.tokenizing.text_tokenizer import Row

DIMENSIONS = Parameter("dimensions", parameters.size, "How many numbers of each vector are kept.")
PROMPT = Parameter("prompt_name", parameters.name, "Which of the model's prompts goes before the texts.")
NORMALIZE = Parameter("normalize", parameters.flag, "Whether vectors have the length 1.")
POOLING_FILE = Path("1_Pooling", "config.json")  # of Sentence Transformers
_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


class EmbeddingTask(TextTask):
    """A vector for each text."""

    parameters: ClassVar[tuple[Parameter, ...]] = (DIMENSIONS, NORMALIZE, PROMPT, TRUNCATE)
    pairs: ClassVar[bool] = False

    def declared(self) -> dict[str, str]:
        return {"embedding": "FP32 [-1, -1]", "tokens": "INT64 [-1]", TRUNCATED: "BOOL [-1]"}

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._sentence = read_sentence(self.model.additions, self.model.directory)
        if self._sentence.max_tokens and not self.given.max_tokens:
            self.max_tokens = min(self.max_tokens, self._sentence.max_tokens)

    def load(self) -> None:
        super().load()
        self._pooling = select_pooling(self.output, self.fetch, self.model)

    def rows(self, inputs: Mapping[str, Any], wanted: dict[str, Any]) -> Asked:
        ids = token_ids(inputs.get(self.name))
        if ids:
            return self.rows_of_ids(ids, wanted)
        prompt = self._prompt(wanted)
        texts = [[prompt + text for text in many] for many in self.get_texts(inputs)]
        return Asked(wanted, *self.maker.of(texts))

    def _prompt(self, wanted: Mapping[str, Any]) -> str:
        """Return what goes before each text. Raises InvalidInput for a name that the model doesn't have."""
        prompts = self._sentence.prompts
        name = wanted.get("prompt_name", self._sentence.default_prompt)
        if name and name not in prompts:
            names = ", ".join(prompts)
            raise InvalidInput(
                f"'prompt_name' is {name[:40]!r}; the model has {names}"
                if prompts
                else f"'prompt_name' is {name[:40]!r}; the model has no prompts: put yours before the text"
            )
        return prompts.get(name, "")

    def rows_of_ids(self, many: list[list[int]], wanted: dict[str, Any]) -> Asked:
        """The rows of texts that a client has tokenized, special tokens included."""
        vocabulary = self.tokenizer.vocabulary_size
        rows = []
        for number, ids in enumerate(many):
            told = where(self.name, number, len(many))
            if strange := [one for one in ids if not 0 <= one < vocabulary]:
                raise InvalidInput(f"{told} has the token {strange[0]}; the model has {vocabulary}")
            if len(ids) > self.max_tokens and self.given.too_long != "truncate":
                raise InvalidInput(f"{told} has {len(ids)} tokens, the model reads {self.max_tokens}")
            kept = ids[: self.max_tokens]
            rows.append(Row(kept, [0] * len(kept), 0))
        cuts = [
            Cut([(0, len(row.ids))], len(row.ids) < len(ids)) for row, ids in zip(rows, many, strict=True)
        ]
        return Asked(wanted, rows, cuts)

    def build_answer(self, asked: Asked, scores: list[Array]) -> dict[str, Any]:
        tokens = [len(row.ids) for row in asked.rows]
        counts = np.add.reduceat(tokens, np.cumsum([0, *asked.windows[:-1]]))
        return {"embedding": self.vectors(asked, scores), "tokens": counts, TRUNCATED: truncations(asked)}

    def vectors(self, asked: Asked, fetches: list[Array]) -> Array:
        """Of each text, float32 [texts, dimensions]."""
        rows = zip(fetches, asked.rows, strict=True)
        of_rows = np.stack([pool_vector(fetch[0], len(row.ids), self._pooling) for fetch, row in rows])
        of_texts = pooled(of_rows, asked.windows, "mean")
        output: EmbeddingOutput = self.output
        size = asked.parameters.get("dimensions", output.dimensions)
        if size is not None and size > of_texts.shape[1]:
            raise InvalidInput(f"'dimensions' is {size}; the model's vectors have {of_texts.shape[1]}")
        return shortened(of_texts, size, asked.parameters.get("normalize", output.normalize))


class SimilarityTask(EmbeddingTask):
    """The cosine of the vectors of two texts, which the model reads one by one."""

    pairs: ClassVar[bool] = True
    one_for_all: ClassVar[bool] = True

    def declared(self) -> dict[str, str]:
        return {"score": "FP32 [-1]", TRUNCATED: "BOOL [-1]"}

    def declared_all(self) -> dict[str, str]:
        return self.declared()

    def rows(self, inputs: Mapping[str, Any], wanted: dict[str, Any]) -> Asked:
        task = copy.copy(self)
        first, second = task.get_texts(inputs)
        task.given = task.given.model_copy(update={"pair": ""})
        prompt = self._prompt(wanted)
        texts = [prompt + text for text in (*first, *second)]
        asked = TextTask.rows(task, {self.name: texts}, {**wanted, "normalize": True})
        asked.texts = first
        return asked

    def answer(self, asked: Asked, fetches: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
        vectors = self.vectors(asked, [fetch[self.fetch.alias] for fetch in fetches])
        first, second = np.split(vectors, [len(asked.texts)])
        one, other = np.split(truncations(asked), [len(asked.texts)])
        return {"score": (first * second).sum(axis=1), TRUNCATED: one | other}


def truncations(asked: Asked) -> Array:
    """Of each text whether its end was left out."""
    return np.array([part.truncated for part in asked.cuts])


def token_ids(given: Any) -> list[list[int]]:
    """The lists of token ids that a client has sent in place of texts; none for texts."""
    return given if isinstance(given, list) and given and isinstance(given[0], list) else []


def pool_vector(fetch: Array, tokens: int, pooling: str) -> Array:
    """One text's vector of what the model gives for it: float32. tokens: how many it has, without padding."""
    if pooling == "none":
        return np.asarray(fetch, np.float32)
    own = np.asarray(fetch[:tokens], np.float32)
    if pooling == "cls":
        return np.asarray(own[0])
    if pooling == "lasttoken":
        return np.asarray(own[-1])
    if pooling == "max":
        return np.asarray(own.max(axis=0))
    if pooling == "mean_sqrt_len":
        return np.asarray(own.sum(axis=0) / np.sqrt(np.float32(tokens)))
    if pooling == "weightedmean":
        weights = np.arange(1, len(own) + 1, dtype=np.float32)
        return np.asarray(weights @ own / weights.sum())
    return np.asarray(own.mean(axis=0, dtype=np.float32))


def shortened(vectors: Array, dimensions: int | None, normalize: bool) -> Array:
    """The first numbers of each vector, then made as long as 1."""
    kept = vectors[:, :dimensions]
    if not normalize:
        return kept
    lengths = np.linalg.norm(kept, axis=1, keepdims=True)
    return np.asarray(kept / np.maximum(lengths, np.float32(1e-12)))


def select_pooling(output: EmbeddingOutput, fetch: Variable, model: ServingModel) -> str:
    """What makes vectors of texts of those of tokens. Raises ConfigError where the fetch has no such."""
    folder = model.directory
    of_tokens = len(fetch.shape) != 2
    if not of_tokens or output.pooling == "none":
        if of_tokens or output.pooling not in ("auto", "none"):
            told = "a vector for each token" if of_tokens else "one vector for each text"
            raise ConfigError(
                f"{folder}: outputs.{fetch.alias}.pooling is {output.pooling}, but {fetch.alias} gives {told}"
            )
        return "none"
    if output.pooling != "auto":
        return output.pooling
    if (noted := read_sentence(model.additions, folder).pooling) is not None:
        return noted
    for place in (folder, folder.parent):
        try:
            told = json.loads((place / POOLING_FILE).read_text("utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as exc:
            raise ConfigError(f"{place / POOLING_FILE} can't be read: {exc}") from exc
        meant = [name for name, value in told.items() if name.startswith("pooling_mode_") and value is True]
        if len(meant) != 1 or meant[0] not in _POOLINGS:
            raise ConfigError(
                f"{place / POOLING_FILE} has {', '.join(meant) or 'no pooling_mode'}; known are "
                f"{', '.join(_POOLINGS)}: say outputs.{fetch.alias}.pooling in serving.yml"
            )
        return _POOLINGS[meant[0]]
    return "mean"

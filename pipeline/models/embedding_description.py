"""What serving.yml says of models that compare texts: embeddings, similarity, relevance."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from pipeline.config.value_types import PositiveInt, Section
from pipeline.errors import ConfigError

SENTENCE_KEY = "sentence"
Pooling = Literal["mean", "cls", "max", "mean_sqrt_len", "weightedmean", "lasttoken"]
AnyPooling = Literal["auto", "mean", "cls", "max", "mean_sqrt_len", "weightedmean", "lasttoken", "none"]
MOST_DIMENSIONS = 1 << 16  # that a request may ask for


class EmbeddingOutput(Section):
    """A vector for each text, of the vectors of its tokens or of the text as a whole."""

    kind: Literal["embedding"] = "embedding"
    pooling: AnyPooling = Field(
        default="auto",
        description="What makes one vector of those of the tokens: their mean, the first (cls) or the last "
        "(lasttoken), the greatest of each number (max), their sum over the root of their number "
        "(mean_sqrt_len), or their mean with weights 1, 2, 3, ... (weightedmean); auto: as `sentence` in "
        "serving.yml or 1_Pooling/config.json beside the model says, else mean; none where the fetch has "
        "one for each text.",
    )
    normalize: bool = Field(
        default=True, description="Whether vectors have the length 1; requests may say another."
    )
    dimensions: PositiveInt | None = Field(
        default=None,
        description="How many numbers of a vector are kept, for models trained so; requests may say another; "
        "absent: all.",
    )


class SentenceSettings(Section):
    """`sentence` of serving.yml: what the conversion has found beside a sentence encoder."""

    pooling: Pooling | None = Field(default=None, description="What makes one vector of those of the tokens.")
    max_tokens: PositiveInt | None = Field(default=None, description="Tokens of a text that are read.")
    prompts: dict[str, str] = Field(default={}, description="Texts that go before a request's, by name.")
    default_prompt: str = Field(default="", description="The prompt of requests that name none.")


def read_sentence(additions: Mapping[str, Any], folder: Path) -> SentenceSettings:
    """Return the settings in a model's serving.yml. Raises ConfigError for a flaw."""
    try:
        return SentenceSettings.model_validate(additions.get(SENTENCE_KEY) or {})
    except ValidationError as exc:
        error = exc.errors()[0]
        where = ".".join(map(str, (SENTENCE_KEY, *error["loc"])))
        raise ConfigError(f"{folder}/serving.yml: {where}: {error['msg']}") from exc


class SimilarityOutput(EmbeddingOutput):
    """The cosine of the vectors of two texts."""

    kind: Literal["similarity"] = "similarity"  # type: ignore[assignment]


class RelevanceOutput(Section):
    """A score of a pair that a model has read together: how well the second text answers the first."""

    kind: Literal["relevance"] = "relevance"
    activation: Literal["auto", "sigmoid", "softmax", "none"] = Field(
        default="auto",
        description="What makes a score from 0 to 1 of the fetch; auto: sigmoid of one class, softmax of "
        "two, whose last means relevant.",
    )

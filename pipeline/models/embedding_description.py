"""What serving.yml says of models that compare texts: embeddings, similarity, relevance."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.config.value_types import PositiveInt, Section

MOST_DIMENSIONS = 1 << 16  # that a request may ask for


class EmbeddingOutput(Section):
    """A vector for each text, of the vectors of its tokens or of the text as a whole."""

    kind: Literal["embedding"] = "embedding"
    pooling: Literal["auto", "mean", "cls", "none"] = Field(
        default="auto",
        description="What makes one vector of those of the tokens: their mean, or the first (cls); auto: as "
        "1_Pooling/config.json beside the model says, else mean; none where the fetch has one for each text.",
    )
    normalize: bool = Field(
        default=True, description="Whether vectors have the length 1; requests may say another."
    )
    dimensions: PositiveInt | None = Field(
        default=None,
        description="How many numbers of a vector are kept, for models trained so; requests may say another; "
        "absent: all.",
    )


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

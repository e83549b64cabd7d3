"""Description of models that compare texts, in serving.yml: embeddings, similarity, relevance."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.value_types import PositiveInt, Section

SENTENCE_KEY = "sentence"
Pooling = Literal["mean", "cls", "max", "mean_sqrt_len", "weightedmean", "lasttoken"]
AnyPooling = Literal["auto", "mean", "cls", "max", "mean_sqrt_len", "weightedmean", "lasttoken", "none"]
MAX_DIMENSIONS = 1 << 16  # that a request may ask for


class EmbeddingOutput(Section):
    """A vector per text, pooled from token vectors or computed by the model."""

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


class DenseLayer(Section):
    """A linear layer after the pooling, with its activation."""

    kind: Literal["dense"] = "dense"
    size: PositiveInt = Field(description="How many numbers the layer's vectors have.")
    activation: Literal["identity", "tanh", "relu", "gelu", "sigmoid", "silu"] = Field(
        default="identity", description="Function of each number of the layer's vectors."
    )


class NormalizeLayer(Section):
    """A layer that scales vectors to length 1."""

    kind: Literal["normalize"] = "normalize"


SentenceLayer = Annotated[DenseLayer | NormalizeLayer, Field(discriminator="kind")]


class SentenceSettings(Section):
    """Settings of a sentence encoder: `sentence` of serving.yml, as a conversion writes it."""

    pooling: Pooling | list[Pooling] | None = Field(
        default=None,
        description="What makes one vector of those of the tokens; the vectors of several are concatenated.",
    )
    layers: list[SentenceLayer] = Field(
        default=[], description="Layers after the pooling, whose weights stand in sentence_layers.npz."
    )
    max_tokens: PositiveInt | None = Field(default=None, description="Tokens of a text that are read.")
    lowercase: bool = Field(default=False, description="Whether texts are read in lower case.")
    prompts: dict[str, str] = Field(default={}, description="Texts that go before a request's, by name.")
    default_prompt: str = Field(default="", description="The prompt of requests that name none.")
    include_prompt: bool = Field(default=True, description="Whether the tokens of a prompt are pooled, too.")

    @property
    def poolings(self) -> tuple[Pooling, ...]:
        """The poolings, in the order of their vectors."""
        if self.pooling is None:
            return ()
        return tuple(self.pooling) if isinstance(self.pooling, list) else (self.pooling,)

    def vector_size(self, pooled: int) -> int:
        """Return the size of a vector after the layers, from its size `pooled` before them."""
        sizes = [layer.size for layer in self.layers if isinstance(layer, DenseLayer)]
        return sizes[-1] if sizes else pooled


class SimilarityOutput(EmbeddingOutput):
    """The cosine similarity of two texts' vectors."""

    kind: Literal["similarity"] = "similarity"  # type: ignore[assignment]


class RelevanceOutput(Section):
    """A score of a pair of texts: how relevant the second text is to the first."""

    kind: Literal["relevance"] = "relevance"
    activation: Literal["auto", "sigmoid", "softmax", "none"] = Field(
        default="auto",
        description="What makes a score from 0 to 1 of the fetch; auto: sigmoid of one class, softmax of "
        "two, whose last means relevant.",
    )

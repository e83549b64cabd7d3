"""What serving.yml says of texts: how they are tokenized, what becomes of long ones, entities, zero-shot."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.value_types import PositiveInt, Section

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Pooling = Annotated[
    Literal["mean", "max"],
    Field(description="How the scores of a long text's windows become those of the text."),
]
SLOT = "{}"  # of a template, for a label
MOST_LABELS, LONGEST_LABEL, LONGEST_TEMPLATE = 1000, 200, 1000


class TextInput(Section):
    """A text: tokenized for the feeds of a language model, or given to a feed of strings as it is."""

    kind: Literal["text"] = "text"
    feed: str = Field(default="", description="Alias of a feed of strings; absent: texts are tokenized.")
    pair: str = Field(default="", description="Name of the second text of a pair; absent: single texts.")
    tokenizer: str = Field(
        default="",
        description="File beside the model; absent: tokenizer.json, vocab.txt (WordPiece), "
        "sentencepiece.bpe.model (XLM-R) or spiece.model (ALBERT).",
    )
    lowercase: bool | None = Field(
        default=None,
        description="Of vocab.txt and spiece.model; absent: as tokenizer_config.json says, else true.",
    )
    ids: str = Field(default="input_ids", description="Alias of the feed of token ids.")
    types: str = Field(default="token_type_ids", description="Alias of the feed of segments, if it is there.")
    mask: str = Field(default="attention_mask", description="Alias of the feed of the mask, if it is there.")
    max_tokens: PositiveInt | None = Field(
        default=None,
        description="Most tokens of a text; absent: as max_lengths says, else 512.",
    )
    too_long: Literal["refuse", "truncate", "windows"] = Field(
        default="refuse",
        description="What becomes of a text with more tokens; windows: it is read in parts that overlap.",
    )
    stride: PositiveInt | None = Field(
        default=None,
        description="Tokens from the start of a window to that of the next; absent: three quarters of one.",
    )
    max_windows: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=64, description="Most windows of a text; a longer one is refused."
    )


class EntitiesOutput(Section):
    """Scores of classes for each token: the entities in the text, with their places."""

    kind: Literal["entities"] = "entities"
    scheme: Literal["auto", "bio", "bioes", "bioul", "none"] = Field(
        default="auto",
        description="What the labels say of a token's place in an entity; auto: as their names tell "
        "(B-PER, PER-B); none: neighbours with one label are one entity.",
    )
    outside: str = Field(default="O", description="The label of tokens that belong to no entity.")
    threshold: Share = Field(default=0.0, description="Least score of an entity; requests may say another.")
    labels: list[str] | None = Field(default=None, description="Names of the classes; absent: the model's.")


class ZeroShotOutput(Section):
    """Scores of an NLI model: which of the caller's own labels a text is about."""

    kind: Literal["zero-shot"] = "zero-shot"
    entailment: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="The class that means entailment; absent: as the model's labels name it."
    )
    candidates: list[str] | None = Field(
        default=None, description="The labels that a request chooses from, where it has none of its own."
    )
    template: str = Field(
        default="This example is {}.",
        description="The hypothesis, with {} for a label; requests may say another.",
    )
    multi_label: bool = Field(
        default=False,
        description="Whether each label is judged by itself; else the scores of all sum up to 1.",
    )
    top_k: PositiveInt | None = Field(default=None, description="Most labels that are told; absent: all.")
    threshold: Share = Field(default=0.0, description="Least score of a label that is told.")
    pooling: Pooling = "mean"
    labels: list[str] | None = Field(default=None, description="Names of the classes; absent: the model's.")

"""A model's description for its clients: the sections `inputs` and `outputs` of its serving.yml.

Example:

    inputs:
      image: {kind: image, preset: torchvision}
    outputs:
      logits: {kind: classes, top_k: 5}

An input stands under the name by which clients send it. An output stands under the alias of its fetch. A feed
that no input names is a tensor under its own alias. Without `outputs` every fetch is answered as it is, and
scores of as many classes as there are labels become labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError

from pipeline.config.report import describe_mistakes
from pipeline.config.value_types import PositiveInt, Section
from pipeline.errors import ConfigError
from pipeline.models.label_names import find_entailment
from pipeline.models.sentence_files import (
    EmbeddingOutput,
    RelevanceOutput,
    SentenceSettings,
    SimilarityOutput,
    read_sentence,
)
from pipeline.models.signature import Variable

COLOURS = {"rgb": 3, "bgr": 3, "grey": 1}
_USUAL_SIDE = 224  # of a feed with open sides
_CROPPED_SHARE = 0.875  # of the shorter side: 224 of 256
_IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "torchvision": {"resampling": "bilinear", "library": "pillow", **_IMAGENET},
    "paddle": {"resampling": "bilinear", "library": "opencv", **_IMAGENET},
    "timm": {"resampling": "bicubic", "library": "pillow", **_IMAGENET},
    "plain": {"resampling": "bilinear", "library": "pillow", "mean": [0.0], "std": [1.0]},
}


def completed(preset: str, settings: Mapping[str, Any], feed: Variable, where: str) -> dict[str, Any]:
    """Return the settings of an image input, with defaults from its preset and the model's input `feed`.

    `where` is the place for error messages. Raises ConfigError for settings that don't fit the model's input.
    """
    if len(feed.shape) != 4 or feed.dtype in ("string", "bool"):
        raise ConfigError(
            f"{where}: an image is for a feed [N,C,H,W] or [N,H,W,C]; {feed.alias} takes {feed.dtype} "
            f"{list(feed.shape)}"
        )
    layout, colours = _layout(settings.get("layout"), settings.get("channels"), feed, where)
    sides = list(feed.shape[2:] if layout == "nchw" else feed.shape[1:3])
    filled = {**_PRESETS[preset], "layout": layout, "channels": colours}
    if preset == "plain":
        filled["resize"] = sides if -1 not in sides else None
    else:
        crop = _pair(settings.get("crop")) or [_USUAL_SIDE if side == -1 else side for side in sides]
        filled["crop"] = crop
        filled["resize"] = [_shorter_side(preset, min(crop))]
    filled |= {name: value for name, value in settings.items() if value is not None}
    filled["crop"] = _pair(filled.get("crop"))
    _check_channels(filled, feed, where)
    return filled


def _shorter_side(preset: str, crop: int) -> int:
    """Return the shorter side to which an image is resized before its center is cropped to side `crop`."""
    share = crop / _CROPPED_SHARE
    return math.floor(share) if preset == "timm" else round(share)


def _layout(layout: str | None, colours: str | None, feed: Variable, where: str) -> tuple[str, str]:
    first, last = feed.shape[1], feed.shape[3]
    if layout is None:
        channel_counts = (1, 3)
        if (first in channel_counts) is (last in channel_counts):
            raise ConfigError(
                f"{where}: {feed.alias} takes {list(feed.shape)}, which does not tell where the channels "
                "are; set layout to nchw or nhwc"
            )
        layout = "nchw" if first in channel_counts else "nhwc"
    count = first if layout == "nchw" else last
    return layout, colours or ("grey" if count == 1 else "rgb")


def _check_channels(filled: Mapping[str, Any], feed: Variable, where: str) -> None:
    number = COLOURS[filled["channels"]]
    count = feed.shape[1] if filled["layout"] == "nchw" else feed.shape[3]
    if count not in (-1, number):
        raise ConfigError(
            f"{where}: {filled['channels']} has {number} channels, {feed.alias} takes {list(feed.shape)}"
        )
    for name in ("mean", "std"):
        if len(filled[name]) not in (1, number):
            raise ConfigError(f"{where}.{name}: {len(filled[name])} numbers for {number} channels")
    if 0 in filled["std"]:
        raise ConfigError(f"{where}.std: nothing can be divided by 0")
    if filled["library"] == "opencv" and filled["resampling"] != "bilinear":
        raise ConfigError(f"{where}: library: opencv goes with resampling: bilinear alone")


def _pair(sides: Sequence[int] | None) -> list[int] | None:
    """Return [height, width] of a crop; a single number stands for both sides. None is returned as None."""
    return None if sides is None else [sides[0], sides[-1]]


Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Pooling = Annotated[
    Literal["mean", "max"],
    Field(description="How the scores of a long text's windows become those of the text."),
]
SLOT = "{}"  # of a template, for a label
MAX_LABELS, MAX_LABEL_LENGTH, MAX_TEMPLATE_LENGTH = 1000, 200, 1000


class TextInput(Section):
    """An input of texts, which are tokenized for a language model, or passed to a model input of strings."""

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
    """Entities in a text and their positions, from scores of classes for each token."""

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
    """Labels, provided by the client, that fit a text, from the scores of an NLI model."""

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


S = TypeVar("S", bound=Section)

# Keys of an image with defaults from its preset.
_OF_PRESET = {"resize", "crop", "resampling", "library", "channels", "layout", "mean", "std"}


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else value


Sides = Annotated[list[PositiveInt], BeforeValidator(_as_list), Field(min_length=1, max_length=2)]
PerChannel = Annotated[list[float], BeforeValidator(_as_list), Field(min_length=1, max_length=4)]


class ImageInput(Section):
    """An input of image files: decoded, turned upright, resized, cropped and normalised for a model input."""

    kind: Literal["image"] = "image"
    feed: str = Field(default="", description="Alias of the feed; absent: the only one.")
    preset: Literal["torchvision", "paddle", "timm", "plain"] = Field(
        default="torchvision",
        description="What the keys below are where they are absent: the evaluation transform of torchvision, "
        "PaddleClas or timm; plain: resized to the feed's sides, values from 0 to 1.",
    )
    resize: Sides | None = Field(
        default=None, description="The shorter side, or [height, width]; absent: by preset and crop."
    )
    crop: Sides | None = Field(
        default=None, description="[height, width] of the middle; absent: by preset, the sides of the feed."
    )
    resampling: Literal["nearest", "bilinear", "bicubic", "lanczos"] | None = Field(
        default=None, description="How pixels are made when resizing; absent: by preset."
    )
    library: Literal["pillow", "opencv"] | None = Field(
        default=None,
        description="Whose arithmetic resizes: pillow averages what it makes smaller, opencv (bilinear) does "
        "not; absent: by preset.",
    )
    channels: Literal["rgb", "bgr", "grey"] | None = Field(
        default=None, description="Order of the colours; absent: rgb, or grey for a feed with one channel."
    )
    layout: Literal["nchw", "nhwc"] | None = Field(
        default=None, description="Whether the channels come before the pixels; absent: as the feed's shape."
    )
    divisor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=255.0, description="Each value, 0 to 255, is divided by it; not for feeds of whole numbers."
    )
    mean: PerChannel | None = Field(default=None, description="Then subtracted, by channel.")
    std: PerChannel | None = Field(default=None, description="Then divided by, by channel.")
    orientation: Literal["exif", "stored"] = Field(
        default="exif", description="exif: turned upright as the camera noted; stored: as the pixels lie."
    )
    max_pixels: PositiveInt = Field(
        default=50_000_000, description="Width times height of the largest image that is decoded."
    )


class Column(Section):
    """A column of a table input, with the settings for its cells."""

    name: str = Field(description="Under which clients send it.")
    type: Literal["number", "integer", "text"] = Field(default="number", description="What its cells hold.")
    feed: str = Field(default="", description="Alias of a feed of its own; absent: that of the table.")
    missing: Literal["refuse", "nan"] = Field(
        default="refuse", description="What a missing number is, null or an empty cell: a mistake, or NaN."
    )
    values: list[str] = Field(
        default=[], description="Texts that the model knows, others are refused; absent: any text."
    )
    example: str = Field(default="", description="A cell as CSV has it, for the examples at /docs.")


class TableInput(Section):
    """An input of table rows with named columns, as JSON objects or CSV, for one or several model inputs."""

    kind: Literal["table"] = "table"
    feed: str = Field(default="", description="Alias of the feed of all columns; absent: the only one.")
    columns: Annotated[list[Column], Field(min_length=1)] = Field(description="In the order of the feed.")


class TensorInput(Section):
    """A model input that clients send unchanged, under the input's alias."""

    kind: Literal["tensor"] = "tensor"


class ClassesOutput(Section):
    """The best label and its score, from scores of exclusive classes."""

    kind: Literal["classes"] = "classes"
    activation: Literal["auto", "softmax", "none"] = Field(
        default="auto",
        description="What makes probabilities of the fetch; auto: softmax, unless a row's sum is 1 already.",
    )
    chosen: str = Field(
        default="", description="Alias of a fetch with the name or number of the class that the model chose."
    )
    top_k: PositiveInt = Field(
        default=1, description="More than 1: also so many labels with their scores, the best first."
    )
    threshold: Share = Field(
        default=0.0,
        description="Of texts: least score of a label that is told; requests may say another.",
    )
    pooling: Pooling = "mean"
    labels: list[str] | None = Field(default=None, description="Names of the classes; absent: the model's.")
    raw: bool = Field(default=False, description="Whether the fetch is answered as well.")


class MultiLabelOutput(Section):
    """The labels over a threshold, from scores of independent classes."""

    kind: Literal["multilabel"] = "multilabel"
    activation: Literal["sigmoid", "none"] = Field(
        default="sigmoid", description="What makes probabilities of the fetch."
    )
    threshold: float = Field(default=0.5, description="Least score of a label that is meant.")
    top_k: PositiveInt | None = Field(default=None, description="Of texts: most labels; absent: any number.")
    pooling: Pooling = "mean"
    labels: list[str] | None = Field(default=None, description="Names of the classes; absent: the model's.")
    raw: bool = Field(default=False, description="Whether the fetch is answered as well.")


class TokensOutput(Section):
    """The best label of each token, from scores of classes."""

    kind: Literal["tokens"] = "tokens"
    labels: list[str] | None = Field(default=None, description="Names of the classes; absent: the model's.")
    raw: bool = Field(default=False, description="Whether the fetch is answered as well.")


class LabelOutput(Section):
    """The class that the model itself selects, by name or number."""

    kind: Literal["label"] = "label"
    labels: list[str] | None = Field(
        default=None, description="Names of classes that are numbers, from 0; absent: the model's, if any."
    )


class TensorOutput(Section):
    """A model output that clients receive unchanged."""

    kind: Literal["tensor"] = "tensor"


Input = ImageInput | TextInput | TableInput | TensorInput
Output = (
    ClassesOutput
    | MultiLabelOutput
    | TokensOutput
    | EntitiesOutput
    | ZeroShotOutput
    | EmbeddingOutput
    | SimilarityOutput
    | RelevanceOutput
    | LabelOutput
    | TensorOutput
)
Scored = ClassesOutput | MultiLabelOutput | TokensOutput | EntitiesOutput | ZeroShotOutput

INPUTS: Mapping[str, type[Input]] = {
    "image": ImageInput,
    "text": TextInput,
    "table": TableInput,
    "tensor": TensorInput,
}
OUTPUTS: Mapping[str, type[Output]] = {
    "classes": ClassesOutput,
    "multilabel": MultiLabelOutput,
    "tokens": TokensOutput,
    "entities": EntitiesOutput,
    "zero-shot": ZeroShotOutput,
    "embedding": EmbeddingOutput,
    "similarity": SimilarityOutput,
    "relevance": RelevanceOutput,
    "label": LabelOutput,
    "tensor": TensorOutput,
}
INPUTS_KEY: Final = "inputs"
OUTPUTS_KEY: Final = "outputs"
SECTIONS: Mapping[str, type[Section]] = {  # by their headings in the reference
    **{f"{INPUTS_KEY}.<name>, kind: {kind}": INPUTS[kind] for kind in ("image", "text", "table")},
    f"{INPUTS_KEY}.<name>.columns": Column,
    **{f"{OUTPUTS_KEY}.<fetch>, kind: {kind}": OUTPUTS[kind] for kind in OUTPUTS if kind != "tensor"},
}


@dataclass(frozen=True)
class Description:
    """Inputs and outputs that a model's clients see, with defaults for settings that serving.yml lacks.

    Inputs are keyed by the name that clients send, outputs by the alias of the model's output tensor.
    """

    inputs: Mapping[str, Input] = field(default_factory=dict)
    outputs: Mapping[str, Output] = field(default_factory=dict)

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of the described inputs, such as "image" or "text"."""
        return frozenset(section.kind for section in self.inputs.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the description as plain dicts, for clients and JSON."""
        return {
            key: {
                name: section.model_dump(mode="json", exclude_none=True)
                for name, section in described.items()
            }
            for key, described in ((INPUTS_KEY, self.inputs), (OUTPUTS_KEY, self.outputs))
        }


def describe(
    additions: Mapping[str, Any],
    feeds: Sequence[Variable],
    fetches: Sequence[Variable],
    labels: Sequence[str],
    path: Path,
) -> Description:
    """Return the description of a model, from the content `additions` of its serving.yml.

    path: path of serving.yml, for messages. labels: the model's class names. Raises ConfigError for a
    mistake.
    """
    inputs = _entries(additions.get(INPUTS_KEY), INPUTS, f"{path}: {INPUTS_KEY}")
    outputs = _entries(additions.get(OUTPUTS_KEY), OUTPUTS, f"{path}: {OUTPUTS_KEY}")
    filled = {
        name: _filled_input(name, section, feeds, f"{path}: {INPUTS_KEY}.{name}")
        for name, section in inputs.items()
    }
    named_feeds = [feed for name, section in filled.items() for feed in match_feeds(name, section, feeds)]
    _refuse_twice(named_feeds, f"{path}: {INPUTS_KEY}")
    rest = {v.alias: TensorInput() for v in feeds if v.alias not in named_feeds}
    if clash := rest.keys() & filled.keys():
        raise ConfigError(
            f"{path}: {INPUTS_KEY}.{min(clash)}: the model has another feed of this name, which no input "
            "names: call the input otherwise"
        )
    names = [
        sent_name for name, section in {**filled, **rest}.items() for sent_name in _names_sent(name, section)
    ]
    _refuse_twice(names, f"{path}: {INPUTS_KEY}")
    if additions.get(OUTPUTS_KEY) is None:
        return Description({**filled, **rest}, default_outputs(fetches, labels))
    for alias, output in outputs.items():
        _check_output(alias, output, fetches, labels, f"{path}: {OUTPUTS_KEY}.{alias}")
        if isinstance(output, EmbeddingOutput) and output.dimensions:
            fetch = next(variable for variable in fetches if variable.alias == alias)
            _check_dimensions(output, fetch, read_sentence(additions, path.parent), path)
    return Description({**filled, **rest}, outputs)


def default_outputs(fetches: Sequence[Variable], labels: Sequence[str]) -> dict[str, Output]:
    """Return the default outputs for a model whose serving.yml describes no outputs.

    If exactly one output has a score for each label, it becomes labels. All other outputs are tensors.
    """
    scores = [f for f in fetches if len(f.shape) in (2, 3) and f.shape[-1] == len(labels)]
    outputs: dict[str, Output] = {fetch.alias: TensorOutput() for fetch in fetches}
    if labels and len(scores) == 1:
        (only,) = scores
        outputs[only.alias] = TokensOutput(raw=True) if len(only.shape) == 3 else ClassesOutput(raw=True)
    return outputs


def match_feeds(name: str, section: Input, feeds: Sequence[Variable]) -> list[str]:
    """Return the aliases of the model's input tensors that an input described in serving.yml fills.

    name: the name of the described input.
    """
    if isinstance(section, TensorInput):
        return [name]
    if isinstance(section, TableInput):
        return list(dict.fromkeys(column.feed for column in section.columns))
    if isinstance(section, TextInput) and not section.feed:
        aliases = {variable.alias for variable in feeds}
        return [alias for alias in (section.ids, section.types, section.mask) if alias in aliases]
    return [section.feed]


def _names_sent(name: str, section: Input) -> list[str]:
    """Return the names under which clients send a described input: several for a table or a pair of texts."""
    if isinstance(section, TableInput):
        return [column.name for column in section.columns]
    return [name, section.pair] if isinstance(section, TextInput) and section.pair else [name]


def get_class_labels(output: Output, labels: Sequence[str]) -> tuple[str, ...]:
    """Return the class names of an output, by default the model's `labels`; empty without classes."""
    if isinstance(output, EmbeddingOutput | RelevanceOutput | TensorOutput):
        return ()
    return tuple(labels if output.labels is None else output.labels)


def _entries(value: object, kinds: Mapping[str, type[S]], where: str) -> dict[str, S]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(name, str) and name for name in value):
        raise ConfigError(f"{where} is not a mapping of names, each with its kind")
    entries: dict[str, S] = {}
    flaws = []
    for name, entry in value.items():
        kind = entry.get("kind") if isinstance(entry, dict) else None
        if kind not in kinds:
            flaws.append(f"{where}.{name}: kind is {kind!r}; allowed: {', '.join(kinds)}")
            continue
        model = kinds[str(kind)]
        try:
            entries[name] = model.model_validate(entry)
        except ValidationError as exc:
            flaws.append(describe_mistakes(f"{where}.{name}", exc, model, {}))
    if flaws:
        raise ConfigError("\n".join(flaws))
    return entries


def _filled_input(name: str, section: Input, feeds: Sequence[Variable], where: str) -> Input:
    """Return an input with its defaults. Raises ConfigError for an input tensor that the model lacks."""
    if isinstance(section, TableInput):
        return _filled_table(section, feeds, where)
    if isinstance(section, TextInput):
        variable = _feed(section.feed or section.ids, feeds, where)
        dtype = "string" if section.feed else "int64"
        if section.feed and variable.dtype != dtype:
            raise ConfigError(f"{where}.feed: {variable.alias} takes {variable.dtype}, not {dtype}")
        if section.feed and (section.pair or section.too_long == "windows"):
            raise ConfigError(f"{where}: pairs and windows are for texts that are tokenized, without `feed`")
        return section
    if isinstance(section, ImageInput):
        variable = _feed(section.feed or _only(feeds, where), feeds, where)
        options = {key: getattr(section, key) for key in section.model_fields_set & _OF_PRESET}
        filled = completed(section.preset, options, variable, where)
        return section.model_copy(update={**filled, "feed": variable.alias})
    _feed(name, feeds, where)
    return section


def _filled_table(table: TableInput, feeds: Sequence[Variable], where: str) -> TableInput:
    shared = table.feed or ("" if all(c.feed for c in table.columns) else _only(feeds, where))
    columns = [column.model_copy(update={"feed": column.feed or shared}) for column in table.columns]
    _refuse_twice([column.name for column in columns], f"{where}.columns")
    for alias in dict.fromkeys(column.feed for column in columns):
        variable = _feed(alias, feeds, where)
        feed_columns = [column for column in columns if column.feed == alias]
        _check_columns(feed_columns, variable, where)
    return table.model_copy(update={"feed": shared, "columns": columns})


def _check_columns(columns: Sequence[Column], feed: Variable, where: str) -> None:
    width = feed.shape[1] if len(feed.shape) > 1 else 1
    if len(feed.shape) > 2 or width not in (-1, len(columns)):
        raise ConfigError(
            f"{where}: {len(columns)} columns are for feed {feed.alias}, which takes {list(feed.shape)}"
        )
    for column in columns:
        if (column.type == "text") is not (feed.dtype == "string"):
            raise ConfigError(
                f"{where}.columns: {column.name!r} is {column.type}, but feed {feed.alias} takes {feed.dtype}"
            )
        if column.missing == "nan" and feed.numpy_dtype.kind in "iub":
            raise ConfigError(
                f"{where}.columns: {column.name!r} has missing: nan, but feed {feed.alias} takes "
                f"{feed.dtype}, which has no such number"
            )


def _check_output(
    alias: str, output: Output, fetches: Sequence[Variable], labels: Sequence[str], where: str
) -> None:
    fetch = next((variable for variable in fetches if variable.alias == alias), None)
    if fetch is None:
        raise ConfigError(f"{where}: the model has only {', '.join(v.alias for v in fetches)}")
    if isinstance(output, TensorOutput | LabelOutput):
        return
    if isinstance(output, ClassesOutput) and output.chosen not in ("", *(v.alias for v in fetches)):
        aliases = ", ".join(variable.alias for variable in fetches)
        raise ConfigError(f"{where}.chosen: the model has no fetch {output.chosen!r}, only {aliases}")
    if isinstance(output, EmbeddingOutput | RelevanceOutput):
        _check_compared(alias, output, fetch, where)
        return
    form = "[N, tokens, classes]" if isinstance(output, TokensOutput | EntitiesOutput) else "[N, classes]"
    if len(fetch.shape) > 1 and len(fetch.shape) != form.count(",") + 1:
        raise ConfigError(f"{where}: kind {output.kind} is for {form}; {alias} gives {list(fetch.shape)}")
    names = get_class_labels(output, labels)
    if names and fetch.shape and fetch.shape[-1] not in (-1, len(names)):
        raise ConfigError(
            f"{where}: there are {len(names)} labels for {fetch.shape[-1]} classes; name each class once"
        )
    if isinstance(output, ZeroShotOutput):
        _check_zero_shot(output, names, where)


def _check_compared(
    alias: str, output: EmbeddingOutput | RelevanceOutput, fetch: Variable, where: str
) -> None:
    relevance = isinstance(output, RelevanceOutput)
    form = "[N, 1] or [N, 2]" if relevance else "[N, tokens, size] or [N, size]"
    fits = len(fetch.shape) in ((0, 2) if relevance else (0, 2, 3))
    if relevance and fits and fetch.shape:
        fits = fetch.shape[-1] in (-1, 1, 2)
    if not fits:
        raise ConfigError(f"{where}: kind {output.kind} is for {form}; {alias} gives {list(fetch.shape)}")


def _check_dimensions(
    output: EmbeddingOutput, fetch: Variable, sentence: SentenceSettings, path: Path
) -> None:
    """Raise ConfigError if an output's `dimensions` exceeds the size of the model's vectors."""
    size = fetch.shape[-1] if fetch.shape else -1
    if len(fetch.shape) == 3 and size > 0:
        poolings = len(sentence.poolings) if output.pooling == "auto" else 1
        size = sentence.vector_size(size * max(1, poolings))
    if size > 0 and (output.dimensions or 0) > size:
        where = f"{path}: {OUTPUTS_KEY}.{fetch.alias}.dimensions"
        raise ConfigError(f"{where}: {output.dimensions}, but {fetch.alias} has {size}")


def _check_zero_shot(output: ZeroShotOutput, names: Sequence[str], where: str) -> None:
    if output.template.count(SLOT) != 1:
        raise ConfigError(f"{where}.template: {output.template!r} has no single {SLOT} for a label")
    entailment = find_entailment(names) if output.entailment is None else output.entailment
    if entailment is None or (names and entailment >= len(names)):
        listing = f", of {', '.join(names)}" if names else ""
        raise ConfigError(f"{where}.entailment: say which class means entailment{listing}: its number from 0")


def _feed(alias: str, feeds: Sequence[Variable], where: str) -> Variable:
    match = next((variable for variable in feeds if variable.alias == alias), None)
    if match is None:
        aliases = ", ".join(variable.alias for variable in feeds)
        raise ConfigError(f"{where}: the model has no feed {alias!r}, only {aliases}")
    return match


def _only(feeds: Sequence[Variable], where: str) -> str:
    if len(feeds) != 1:
        names = ", ".join(variable.alias for variable in feeds)
        raise ConfigError(f"{where}: the model has the feeds {names}; say which by `feed`")
    return feeds[0].alias


def _refuse_twice(names: Sequence[str], where: str) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{where}: {twice} stands there twice")

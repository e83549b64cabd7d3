"""TextTask: base class of text tasks, which tokenize a request's texts and turn model scores into a response.

`tasks.py` lists the subclasses. A row of the model's input is a text, a window of a long text, or a text with
a label. Rows of all requests share batches, sorted by their lengths.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from pipeline.api.request_options import Answer
from pipeline.errors import InvalidInput, ServingError, TooLarge
from pipeline.models.description import Output, TextInput, get_class_labels
from pipeline.models.serving_model import ServingModel, Variable
from pipeline.ops.text_tasks.parameters import Parameter, flag, read_parameters
from pipeline.ops.text_tasks.text_windows import Cut, Reading, cut
from pipeline.ops.texts import named_texts
from pipeline.ops.tokenizer import Row, TextTokenizer, Tokens, load_tokenizer, shortened, tokenizer_file


class TextRows:
    """Tokenizes the texts of a request into rows of the model's input, cutting long texts into windows.

    `names` are the names of the input, or of the two inputs of text pairs, for error messages.
    """

    def __init__(self, tokenizer: TextTokenizer, names: Sequence[str], reading: Reading) -> None:
        self._tokenizer = tokenizer
        self._names = names
        self._reading = reading

    def build_rows(self, texts: Sequence[Sequence[str]]) -> tuple[list[Row], list[Cut]]:
        """Tokenize the texts of each input, and build the model's input rows.

        Returns the rows, and the tokens of each text that the model reads. For pairs, a single first text may
        be paired with all second texts.
        """
        tokens = [self._tokens(many) for many in texts]
        if len(texts) == 2 and len(texts[0]) < len(texts[1]):
            texts, tokens[0] = [list(texts[0]) * len(texts[1]), texts[1]], tokens[0] * len(texts[1])
        rows, cuts = self.build_text_rows(*tokens) if len(texts) == 1 else self.build_pair_rows(*tokens)
        return rows, self._find_cuts(cuts, *texts)

    def build_rows_with_places(self, texts: Sequence[str]) -> tuple[list[Tokens], list[Row], list[Cut]]:
        """Tokenize texts, and build the model's input rows.

        Returns the tokens with their offsets, the rows, and the tokens of each text that the model reads.
        """
        tokens = self._tokens(texts, places=True)
        rows, cuts = self.build_text_rows(tokens)
        return tokens, rows, self._find_cuts(cuts, texts)

    def _tokens(self, texts: Sequence[str], *, places: bool = False) -> list[Tokens]:
        max_chars = self._reading.most_chars
        return self._tokenizer.tokens([text[:max_chars] for text in texts], places=places)

    def _find_cuts(self, cuts: Sequence[Cut], *texts: Sequence[str]) -> list[Cut]:
        """Mark texts as truncated if their last characters were dropped before tokenization."""
        max_chars = self._reading.most_chars
        over = [any(len(text) > max_chars for text in pair) for pair in zip(*texts, strict=True)]
        return [part._replace(truncated=part.truncated or cut) for part, cut in zip(cuts, over, strict=True)]

    def build_text_rows(self, tokens: Sequence[Tokens]) -> tuple[list[Row], list[Cut]]:
        """Return the model's input rows for tokenized texts, and the token spans read of each text."""
        room, rows, cuts = self._room(paired=False), list[Row](), list[Cut]()
        for number, text in enumerate(tokens):
            part = cut(len(text.ids), room, self._reading, where(self._names[0], number, len(tokens)))
            cuts.append(part)
            rows += [self._tokenizer.row(text.ids[first:last]) for first, last in part.spans]
        return rows, cuts

    def build_pair_rows(
        self, first: Sequence[Tokens], second: Sequence[Tokens]
    ) -> tuple[list[Row], list[Cut]]:
        """Return the model's input rows for tokenized pairs, and the token spans read of each first text."""
        room, rows, cuts = self._room(paired=True), list[Row](), list[Cut]()
        for number, (first_text, second_text) in enumerate(zip(first, second, strict=True)):
            if self._reading.too_long == "truncate":
                ids, more = shortened(first_text.ids, second_text.ids, room)
                part = Cut([(0, len(ids))], len(ids) + len(more) < len(first_text.ids) + len(second_text.ids))
            else:
                more = second_text.ids
                room_left = self.room_beside(len(more), where(self._names[1], number, len(second)))
                part = cut(
                    len(first_text.ids), room_left, self._reading, where(self._names[0], number, len(first))
                )
            cuts.append(part)
            rows += [self._tokenizer.row(first_text.ids[begin:end], more) for begin, end in part.spans]
        return rows, cuts

    def room_beside(self, second: int, place: str) -> int:
        """Return how many tokens of a first text fit into a row beside a second text of `second` tokens.

        `place` names the second text in errors. Raises InvalidInput if the second text leaves too little
        room.
        """
        room = self._room(paired=True)
        if 2 * second > room and (self._reading.too_long == "windows" or second >= room):
            raise InvalidInput(
                f"{place} has {second} tokens; beside another text {room // 2} are read: shorten it"
            )
        return room - second

    def _room(self, *, paired: bool) -> int:
        """Return how many text tokens fit into a row of the model's input, besides the special tokens."""
        return self._reading.max_tokens - self._tokenizer.special(paired=paired)


def find_prompt(prompts: Mapping[str, str], name: str) -> str:
    """Return the model's prompt (a prefix for texts) of this name.

    Raises InvalidInput for an unknown name.
    """
    if name and name not in prompts:
        names = ", ".join(prompts)
        raise InvalidInput(
            f"'prompt_name' is {name[:40]!r}; the model has {names}"
            if prompts
            else f"'prompt_name' is {name[:40]!r}; the model has no prompts: put yours before the text"
        )
    return prompts.get(name, "")


def with_prompt(prompt: str, texts: Sequence[str], *, lowercase: bool) -> list[str]:
    """Return the texts with a prompt in front, in lower case if the model needs lower case."""
    joined = [prompt + text for text in texts]
    return [text.lower() for text in joined] if lowercase else joined


def prompt_tokens(count: int, rows: Sequence[Row], cuts: Sequence[Cut]) -> list[int]:
    """Return, for each row, how many tokens at its start belong to a prompt, special tokens included.

    `count` is the prompt's number of tokens.
    """
    firsts = [first for part in cuts for first, _ in part.spans]
    return [row.at + count - first if first < count else 0 for row, first in zip(rows, firsts, strict=True)]


def where(name: str, number: int, of: int) -> str:
    """Return the name of a text in error messages: "text 3 of 'NAME'". `of` is the number of texts."""
    return f"text {number} of {name!r}" if of > 1 else f"the text of {name!r}"


Array = np.ndarray[Any, np.dtype[Any]]
Feed = dict[str, Array]

MAX_ROWS = 4096  # of a request
USUAL_LENGTH = 512
TRUNCATED, WINDOWS = "truncated", "windows"
TRUNCATE = Parameter("truncate", flag, "Whether the end of a long text is left out.")


@dataclass
class TextRequest:
    """A parsed request of a text task, with its parameters and the rows of the model's input."""

    parameters: dict[str, Any]  # by name, parsed
    rows: list[Row]  # for the model
    cuts: list[Cut]  # the parts of each text that the rows have
    texts: Sequence[Any] = ()  # where the answer needs them
    tokens: Sequence[Tokens] = field(default_factory=list)  # of these texts
    skips: Sequence[int] = ()  # of each row, how many tokens at its start are not pooled; empty: none

    @property
    def windows(self) -> list[int]:
        """The number of windows (rows) of each text."""
        return [len(part.spans) for part in self.cuts]


class TextTask:
    """Base class of text tasks: tokenizes texts or pairs into model rows. A subclass builds the response."""

    parameters: ClassVar[tuple[Parameter, ...]] = ()
    """What a request may say beside its texts."""
    pairs: ClassVar[bool] = True
    """Whether a text may have a second one."""
    one_for_all: ClassVar[bool] = False
    """Whether the first text of pairs may be sent once for all of them."""

    row_schema: ClassVar[Mapping[str, Any]] = {}
    """What KServe v1 answers for a text, where that is no row of the declared outputs."""

    def __init__(
        self, name: str, text_input: TextInput, output: Any, fetch: Variable, model: ServingModel
    ) -> None:
        """`name` is the input's name in requests; `output` describes the output tensor `fetch`."""
        self.name = name
        self.input = text_input
        self.output = output
        self.fetch = fetch
        self.model = model
        self.labels = np.array(get_class_labels(output, model.labels))
        self.max_tokens = longest_text(text_input, model.feeds)
        self._dtypes = {feed.alias: feed.numpy_dtype for feed in model.feeds}

    @property
    def names(self) -> list[str]:
        """Names of the request's inputs: the text, and, for pairs, the second text."""
        return [self.name, *([self.input.pair] if self.input.pair else [])]

    def declared(self) -> dict[str, str]:
        """Return the declarations of the task's outputs for KServe metadata, such as "FP32 [-1]", by name."""
        raise NotImplementedError

    def declared_all(self) -> dict[str, str]:
        """Return the outputs of `declared`, plus `truncated` and `windows` if long texts are accepted."""
        lengths = {} if self.input.too_long == "refuse" else {TRUNCATED: "BOOL [-1]", WINDOWS: "INT64 [-1]"}
        return self.declared() | lengths

    def describe_text(self) -> dict[str, Any]:
        """Return facts about the model for clients: `max_tokens`, the maximum tokens of a text."""
        return {"max_tokens": self.max_tokens}

    def example(self) -> dict[str, Any]:
        """Return example values of the parameters that a request must have."""
        return {}

    def load(self) -> None:
        """Load the tokenizer, in a worker. Raises ConfigError."""
        self.tokenizer = TextTokenizer(self.library_tokenizer())

    def library_tokenizer(self) -> Any:
        """Load the `tokenizers.Tokenizer` in the model's folder or its parent. Raises ConfigError."""
        folders = (self.model.directory, self.model.directory.parent)
        return load_tokenizer(self.input, tokenizer_file(self.input, folders))

    def read_request(self, inputs: Mapping[str, Any], parameters: Mapping[str, Any]) -> TextRequest:
        """Parse a request, and tokenize its texts into model rows. Raises InvalidInput and TooLarge.

        `parameters` are the KServe parameters beside the inputs.
        """
        options = read_parameters(self.parameters, inputs, parameters)
        request = self._truncating(options).rows(inputs, options)
        refuse_many(len(request.rows))
        return request

    def _truncating(self, options: Mapping[str, Any]) -> Self:
        """Return the task with the request's `truncate` setting: long texts are truncated, or rejected."""
        truncate = options.get(TRUNCATE.name)
        if truncate is None or (not truncate and self.input.too_long != "truncate"):
            return self
        other = copy.copy(self)
        other.input = self.input.model_copy(update={"too_long": "truncate" if truncate else "refuse"})
        return other

    def rows(self, inputs: Mapping[str, Any], options: dict[str, Any]) -> TextRequest:
        """Tokenize the texts of a request into model rows. `options` are the request's parsed parameters."""
        return TextRequest(options, *self.maker.build_rows(self.get_texts(inputs)))

    def get_texts(self, inputs: Mapping[str, Any]) -> list[list[str]]:
        """Return the texts of each input. Raises InvalidInput if the texts of pairs differ in number.

        If the task allows it, a single first text may be paired with all second texts.
        """
        texts = [self.texts(inputs, name) for name in self.names]
        if len({len(many) for many in texts}) > 1 and not (self.one_for_all and len(texts[0]) == 1):
            counts = ", ".join(f"{name} {len(many)}" for name, many in zip(self.names, texts, strict=True))
            raise InvalidInput(f"the texts of pairs differ in number: {counts}")
        return texts

    def texts(self, inputs: Mapping[str, Any], name: str) -> list[str]:
        """Return the texts of one input of a request.

        Raises InvalidInput for a text that is certainly too long. The check counts characters, because
        tokenization would take time.
        """
        max_chars = None if self.input.too_long == "truncate" else self.reading.most_chars
        texts = named_texts(inputs, name, max_chars, alone=not self.input.pair)
        refuse_many(len(texts))
        return texts

    @property
    def reading(self) -> Reading:
        """Settings for long texts: maximum tokens, and whether to truncate, reject, or read in windows."""
        text_input = self.input
        return Reading(self.max_tokens, text_input.too_long, text_input.stride, text_input.max_windows)

    @property
    def maker(self) -> TextRows:
        """Builder of model rows, with the task's tokenizer and settings."""
        return TextRows(self.tokenizer, self.names, self.reading)

    def feeds(self, request: TextRequest) -> list[Feed]:
        """Return the model's input arrays of each row: a list of dicts by tensor name."""
        text_input, dtypes = self.input, self._dtypes
        feeds = []
        for row in request.rows:
            feed = {text_input.ids: np.array([row.ids], dtypes[text_input.ids])}
            if text_input.types in dtypes:
                feed[text_input.types] = np.array([row.types], dtypes[text_input.types])
            if text_input.mask in dtypes:
                feed[text_input.mask] = np.ones((1, len(row.ids)), dtypes[text_input.mask])
            feeds.append(feed)
        return feeds

    def answer(self, request: TextRequest, fetches: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
        """Build the response outputs from the model's output arrays of each row."""
        answer = self.build_answer(request, [fetch[self.fetch.alias] for fetch in fetches])
        if self.input.too_long != "refuse":
            _add_lengths(answer, [part.truncated for part in request.cuts], request.windows)
        return answer

    def build_answer(self, request: TextRequest, scores: list[Array]) -> dict[str, Any]:
        """Build the task's response outputs from the scores of each row. Subclasses override this method."""
        raise NotImplementedError

    def get_class_names(self, classes: int) -> Array:
        """Return the names of the model's classes; their numbers if there are no labels.

        Raises ServingError if the number of labels differs from `classes`.
        """
        if not len(self.labels):
            return np.array([str(number) for number in range(classes)])
        if len(self.labels) != classes:
            raise ServingError(
                f"the model gives {classes} scores in {self.fetch.alias!r}, and there are "
                f"{len(self.labels)} labels"
            )
        return self.labels


def refuse_many(rows: int) -> None:
    """Raise TooLarge if a request needs more than MAX_ROWS rows of the model's input."""
    if rows > MAX_ROWS:
        raise TooLarge(
            f"the request comes to {rows} rows for the model, {MAX_ROWS} are allowed: send fewer texts in "
            "each request"
        )


def _add_lengths(answer: dict[str, Any], truncated: list[bool], windows: list[int]) -> None:
    """Add to a response whether each text was truncated, and into how many windows it was split."""
    answer[TRUNCATED], answer[WINDOWS] = np.array(truncated), np.array(windows)
    if not isinstance(answer, Answer):
        return
    if answer.rows is not None:
        read_parts = zip(answer.rows, truncated, windows, strict=True)
        answer.rows = [{**row, TRUNCATED: cut_off, WINDOWS: count} for row, cut_off, count in read_parts]
    if answer.key_values is not None:
        answer.key_values = {
            **answer.key_values,
            TRUNCATED: json.dumps(truncated),
            WINDOWS: json.dumps(windows),
        }


def is_task_output(output: Output) -> bool:
    """Whether the response needs only the task's result from an output tensor, and not the raw tensor."""
    return not getattr(output, "raw", False) and not getattr(output, "chosen", "")


def longest_text(text_input: TextInput, feeds: Sequence[Variable]) -> int:
    """Return the maximum tokens of a text, special tokens included.

    The limit comes from serving.yml, else from the shape of the input tensor.
    """
    lengths = (feed.longest[1] for feed in feeds if feed.alias == text_input.ids and feed.longest)
    return text_input.max_tokens or next(lengths, USUAL_LENGTH)

"""TextTask: makes rows for the model of a request's texts, and the answer of the model's scores.

Each kind of task is a class of its own; `tasks.py` lists them. A row is a text, a window of a long one,
or a text with a label. Rows of all callers share batches, sorted by their lengths.
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
from pipeline.ops.text_tasks.text_rows import TextRows
from pipeline.ops.text_tasks.text_windows import Cut, Reading
from pipeline.ops.texts import named_texts
from pipeline.ops.tokenizing.text_tokenizer import Row, TextTokenizer, Tokens
from pipeline.ops.tokenizing.tokenizer_files import load_tokenizer, tokenizer_file

Array = np.ndarray[Any, np.dtype[Any]]
Feed = dict[str, Array]

MAX_ROWS = 4096  # of a request
USUAL_LENGTH = 512
TRUNCATED, WINDOWS = "truncated", "windows"
TRUNCATE = Parameter("truncate", flag, "Whether the end of a long text is left out.")


@dataclass
class TextRequest:
    """A request as its task has read it."""

    parameters: dict[str, Any]  # by name, parsed
    rows: list[Row]  # for the model
    cuts: list[Cut]  # the parts of each text that the rows have
    texts: Sequence[Any] = ()  # where the answer needs them
    tokens: Sequence[Tokens] = field(default_factory=list)  # of these texts
    skips: Sequence[int] = ()  # of each row, how many tokens at its start are not pooled; empty: none

    @property
    def windows(self) -> list[int]:
        """How many windows each text has."""
        return [len(part.spans) for part in self.cuts]


class TextTask:
    """Base of the tasks: reads texts or pairs, one row for each window. A subclass makes the answer."""

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
        """name: of the input. output: what is said of the fetch."""
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
        """Names of the inputs."""
        return [self.name, *([self.input.pair] if self.input.pair else [])]

    def declared(self) -> dict[str, str]:
        """The outputs as KServe declares them; those of long texts are added to these."""
        raise NotImplementedError

    def declared_all(self) -> dict[str, str]:
        lengths = {} if self.input.too_long == "refuse" else {TRUNCATED: "BOOL [-1]", WINDOWS: "INT64 [-1]"}
        return self.declared() | lengths

    def describe_text(self) -> dict[str, Any]:
        """Return facts of the model for clients: the maximum tokens of a text."""
        return {"max_tokens": self.max_tokens}

    def example(self) -> dict[str, Any]:
        """Parameters without which a request is refused."""
        return {}

    def load(self) -> None:
        """Loads the tokenizer, in a worker. Raises ConfigError."""
        self.tokenizer = TextTokenizer(self.library_tokenizer())

    def library_tokenizer(self) -> Any:
        """The tokenizer in the model's folder, as `tokenizers` has it. Raises ConfigError."""
        folders = (self.model.directory, self.model.directory.parent)
        return load_tokenizer(self.input, tokenizer_file(self.input, folders))

    def read_request(self, inputs: Mapping[str, Any], parameters: Mapping[str, Any]) -> TextRequest:
        """Return the parsed request. parameters: those beside its inputs. Raises InvalidInput, TooLarge."""
        options = read_parameters(self.parameters, inputs, parameters)
        request = self._truncating(options).rows(inputs, options)
        refuse_many(len(request.rows))
        return request

    def _truncating(self, options: Mapping[str, Any]) -> Self:
        """The task as the request's `truncate` says, where it has one: a long text is cut, or refused."""
        truncate = options.get(TRUNCATE.name)
        if truncate is None or (not truncate and self.input.too_long != "truncate"):
            return self
        other = copy.copy(self)
        other.input = self.input.model_copy(update={"too_long": "truncate" if truncate else "refuse"})
        return other

    def rows(self, inputs: Mapping[str, Any], options: dict[str, Any]) -> TextRequest:
        """The rows of a request's texts."""
        return TextRequest(options, *self.maker.build_rows(self.get_texts(inputs)))

    def get_texts(self, inputs: Mapping[str, Any]) -> list[list[str]]:
        """The texts of each input, as many of each; of pairs one first text may stand for all of them."""
        texts = [self.texts(inputs, name) for name in self.names]
        if len({len(many) for many in texts}) > 1 and not (self.one_for_all and len(texts[0]) == 1):
            counts = ", ".join(f"{name} {len(many)}" for name, many in zip(self.names, texts, strict=True))
            raise InvalidInput(f"the texts of pairs differ in number: {counts}")
        return texts

    def texts(self, inputs: Mapping[str, Any], name: str) -> list[str]:
        """The texts under a name. Raises InvalidInput for one that is surely too long, before a tokenizer has
        any work with it."""
        max_chars = None if self.input.too_long == "truncate" else self.reading.most_chars
        texts = named_texts(inputs, name, max_chars, alone=not self.input.pair)
        refuse_many(len(texts))
        return texts

    @property
    def reading(self) -> Reading:
        """How much of a text is read."""
        text_input = self.input
        return Reading(self.max_tokens, text_input.too_long, text_input.stride, text_input.max_windows)

    @property
    def maker(self) -> TextRows:
        """Maker of the rows of texts."""
        return TextRows(self.tokenizer, self.names, self.reading)

    def feeds(self, request: TextRequest) -> list[Feed]:
        """The model's feeds, a list with one row each."""
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
        """The answer of the fetches of each row."""
        answer = self.build_answer(request, [fetch[self.fetch.alias] for fetch in fetches])
        if self.input.too_long != "refuse":
            _add_lengths(answer, [part.truncated for part in request.cuts], request.windows)
        return answer

    def build_answer(self, request: TextRequest, scores: list[Array]) -> dict[str, Any]:
        raise NotImplementedError

    def get_class_names(self, classes: int) -> Array:
        """The names of so many classes, their numbers where they have none. Raises ServingError where there
        are as many names as there are no classes."""
        if not len(self.labels):
            return np.array([str(number) for number in range(classes)])
        if len(self.labels) != classes:
            raise ServingError(
                f"the model gives {classes} scores in {self.fetch.alias!r}, and there are "
                f"{len(self.labels)} labels"
            )
        return self.labels


def refuse_many(rows: int) -> None:
    """Raises TooLarge for more rows than a request may come to."""
    if rows > MAX_ROWS:
        raise TooLarge(
            f"the request comes to {rows} rows for the model, {MAX_ROWS} are allowed: send fewer texts in "
            "each request"
        )


def _add_lengths(answer: dict[str, Any], truncated: list[bool], windows: list[int]) -> None:
    """Add to an answer what was read of each text."""
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
    """Whether nothing but the task's own answer is wanted of a fetch."""
    return not getattr(output, "raw", False) and not getattr(output, "chosen", "")


def longest_text(text_input: TextInput, feeds: Sequence[Variable]) -> int:
    """Most tokens of a text, special ones included."""
    lengths = (feed.longest[1] for feed in feeds if feed.alias == text_input.ids and feed.longest)
    return text_input.max_tokens or next(lengths, USUAL_LENGTH)

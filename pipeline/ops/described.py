"""DescribedOp: an Op without user code. It serves a model by the inputs and outputs described in serving.yml.

It decodes images, texts and table rows, and answers with labels. `paddlewheel new` writes a script with a
DescribedOp; its hooks may be overridden like those of any Op.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.api.examples import feed_texts
from pipeline.api.feeds import read_feeds
from pipeline.api.op import Op
from pipeline.errors import ConfigError, InvalidInput, ServingError
from pipeline.models.description import (
    Column,
    ImageInput,
    Input,
    Output,
    TableInput,
    TensorInput,
    TensorOutput,
    TextInput,
)
from pipeline.models.serving_model import ServingModel, Variable, described_by
from pipeline.models.tensor_spec import BY_NAME
from pipeline.ops.images import ImageReader
from pipeline.ops.labels import OutputPrinter, answer_shapes, label_shapes
from pipeline.ops.tables import CSV, TableReader
from pipeline.ops.text_tasks.tasks import text_task
from pipeline.ops.text_tasks.text_task import TextRequest, TextTask, longest_text
from pipeline.ops.text_tasks.text_windows import Reading
from pipeline.ops.texts import named_texts
from pipeline.ops.tokenizer import load_tokenizer, tokenizer_file


class TextReader:
    """Turns the texts of one request input into input tensors of the model, with the model's tokenizer."""

    def __init__(self, name: str, settings: TextInput, model: ServingModel) -> None:
        """`name` is the input's name in requests.

        Raises ConfigError if the tokenizer is missing or can't be read.
        """
        self._name = name
        self._given = settings
        self._alone = len(model.description.inputs) == 1
        self._max_tokens = longest_text(settings, model.feeds)
        self._feeds = {feed.alias: feed for feed in model.feeds}
        self._tokenizer = None if settings.feed else _tokenizer(settings, model, self._max_tokens)
        padding = model.padding.feeds if model.padding else {}
        self._pads = {alias: rule.value for alias, rule in padding.items()}

    def read_texts(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Return the model's input arrays, by tensor name, with a row for each text of the request.

        Raises InvalidInput that names the text by its number.
        """
        max_chars = Reading(self._max_tokens).most_chars
        cuts = self._given.too_long == "truncate"
        texts = named_texts(inputs, self._name, None if cuts else max_chars, alone=self._alone)
        if cuts:
            texts = [text[:max_chars] for text in texts]
        if self._tokenizer is None:
            feed = self._feeds[self._given.feed]
            strings = np.array(texts, object)
            return {feed.alias: strings[:, None] if len(feed.shape) == 2 else strings}
        return self._tokenized(self._tokenizer.encode_batch(texts))

    def _tokenized(self, encoded: Sequence[Any]) -> dict[str, Array]:
        settings = self._given
        longest = max(len(encoding.ids) for encoding in encoded)
        if longest > self._max_tokens:
            raise InvalidInput(
                f"a text of {self._name!r} has {longest} tokens, the model reads {self._max_tokens}: shorten "
                "or split it"
            )
        of_feeds = {
            settings.ids: [encoding.ids for encoding in encoded],
            settings.types: [encoding.type_ids for encoding in encoded],
            settings.mask: [encoding.attention_mask for encoding in encoded],
        }
        return {
            alias: self._padded(alias, rows, longest)
            for alias, rows in of_feeds.items()
            if alias in self._feeds
        }

    def _padded(self, alias: str, rows: Sequence[Sequence[int]], longest: int) -> Array:
        array = np.full((len(rows), longest), self._pads.get(alias, 0), self._feeds[alias].numpy_dtype)
        for number, row in enumerate(rows):
            array[number, : len(row)] = row
        return array


def _tokenizer(settings: TextInput, model: ServingModel, max_tokens: int) -> Any:
    tokenizer = load_tokenizer(settings, tokenizer_file(settings, [model.directory]))
    if settings.too_long == "truncate":
        tokenizer.enable_truncation(max_tokens)
    return tokenizer


# 8 x 8 pixels, red to the right and green downwards, for the examples of services of images.
EXAMPLE_IMAGE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAbElEQVR42g3JQQEAMAgDMcQgBjEVcRIQUzEVw2PL"
    "N1VFF1Oo2MJFiiuqmm6mUbONmzTXP4YeZtCwg4cMNz9EixESKywiTj+WXmbRsouXLLc/TJsxMmtsYs4/QocJChsc"
    "Ei4/jj7m0LGHjxx3PPMZXwHXVs66AAAAAElFTkSuQmCC"
)
EXAMPLE_TEXT = "text"
_DATATYPES = {"number": "FP32", "integer": "INT64", "text": "BYTES"}
_CELLS = {"number": "1.0", "integer": "1", "text": "text"}


class Declared(NamedTuple):
    """The declaration of one service input for clients: tensors, media types of raw bodies, and examples."""

    tensors: Mapping[str, str]  # as KServe declares them
    row: Mapping[str, Any]  # an example as KServe v1 has it; empty: a row of ones
    texts: Mapping[str, str] | None  # an example for key/value; None where it would be too large
    raw_bodies: Mapping[str, str] = {}  # by media type, the name under which hooks find such a body
    bodies: Mapping[str, bytes] = {}  # by media type, an example of a body


class DescribedFetch(NamedTuple):
    """An output tensor of the model that is part of the response, and its description in serving.yml."""

    fetch: Variable
    output: Output
    prefix: str  # of its labels' names, where two outputs would have one name; else empty


def declared_input(name: str, section: Input, model: ServingModel) -> Declared:
    """Return how clients send one input of a model: its tensors, raw bodies and examples.

    `section` is the description of the input in serving.yml.
    """
    if isinstance(section, ImageInput):
        text = {name: base64.b64encode(EXAMPLE_IMAGE).decode()}
        return Declared({name: "BYTES [-1]"}, text, text, {"image/*": name}, {"image/png": EXAMPLE_IMAGE})
    if isinstance(section, TextInput):
        text = {name: EXAMPLE_TEXT}
        return Declared({name: "BYTES [-1]"}, text, text)
    if isinstance(section, TableInput):
        columns = section.columns
        tensors = {column.name: _declared_column(column) for column in columns}
        texts = {column.name: _example_cell(column) for column in columns}
        row = {column.name: _parse_cell(column, texts[column.name]) for column in columns}
        return Declared(tensors, row, texts, {"text/csv": CSV}, {"text/csv": _csv(texts)})
    (feed,) = (variable for variable in model.feeds if variable.alias == name)
    example = {alias: array for alias, array in model.read_example().items() if alias == name}
    declared = {name: f"{BY_NAME[feed.dtype].datatype} {list(feed.shape)}"}
    feed_text = feed_texts([feed], example)
    if not example or feed_text is None:
        return Declared(declared, {}, feed_text)
    by_rows = all(variable.has_rows for variable in (*model.feeds, *model.fetches))
    value = example[name][0] if by_rows else example[name]
    return Declared(declared, {name: value.tolist()}, feed_text)


def declared_outputs(model: ServingModel) -> Iterator[tuple[str, str]]:
    """Yield name and declaration ("FP32 [-1, 3]") of each response output. Outputs with labels come first."""
    for fetch, output, prefix in described_fetches(model):
        for name, (datatype, shape) in answer_shapes(fetch, output, prefix).items():
            if row_by_row(model):
                shape = (-1, *shape[1:])
            yield name, f"{datatype or BY_NAME[fetch.dtype].datatype} {list(shape)}"


def described_fetches(model: ServingModel) -> list[DescribedFetch]:
    """Return the model's output tensors that are part of the response, those with labels first."""
    outputs = model.description.outputs
    fetches = [fetch for fetch in model.fetches if fetch.alias in outputs]
    fetches.sort(key=lambda fetch: isinstance(outputs[fetch.alias], TensorOutput))
    names = [name for fetch in fetches for name in _list_answer_names(fetch, outputs[fetch.alias])]
    labelled = sum(not isinstance(output, TensorOutput) for output in outputs.values())
    several = labelled > 1 or len(set(names)) < len(names)
    return [
        DescribedFetch(fetch, outputs[fetch.alias], f"{fetch.alias}_" if several else "") for fetch in fetches
    ]


def _list_answer_names(fetch: Variable, output: Output) -> Iterator[str]:
    """Yield the response names for one output tensor, without a prefix. A name may occur twice."""
    if isinstance(output, TensorOutput) or getattr(output, "raw", False):
        yield fetch.alias
    if not isinstance(output, TensorOutput):
        yield from label_shapes(fetch, output)


def row_by_row(model: ServingModel) -> bool:
    """Whether the rows of a request must run one by one, because the model was exported for one row."""
    is_single_row = bool(model.feeds) and all(feed.shape[:1] == (1,) for feed in model.feeds)
    return is_single_row and model.description.kinds != {"tensor"}


def _example_cell(column: Column) -> str:
    return column.example or next(iter(column.values), _CELLS[column.type])


def _declared_column(column: Column) -> str:
    missing = " or null" if column.type == "text" or column.missing == "nan" else ""
    return f"{_DATATYPES[column.type]} [-1]{missing}"


def _csv(texts: Mapping[str, str]) -> bytes:
    lines = io.StringIO(newline="")
    csv.writer(lines, lineterminator="\n").writerows([texts, texts.values()])
    return lines.getvalue().encode()


def _parse_cell(column: Column, text: str) -> Any:
    kinds: Mapping[str, Any] = {"number": float, "integer": int, "text": str}
    return kinds[column.type](text)


Array = np.ndarray[Any, np.dtype[Any]]
Feed = dict[str, Array]


class DescribedOp(Op):
    """A service step (Op) without user code: serves a model by its `inputs` and `outputs` in serving.yml."""

    takes_rows = True
    _description: Path | None = None
    _task: TextTask | None = None  # of a model of texts alone
    _request: TextRequest | None = None  # the request, as its task has read it

    def __init__(
        self,
        name: str | None = None,
        input_ops: Sequence[Op] | Op | None = None,
        *,
        description: Path | str = "",
        **options: Any,
    ) -> None:
        """`description` is a file whose `inputs`, `outputs` and `labels` replace those in serving.yml.

        `options` are the arguments of the base class Op.
        """
        super().__init__(name, input_ops, **options)
        self._description = Path(description) if description else None

    def described(self, model: ServingModel) -> ServingModel:
        """Return a copy of the model with the service's own description; the model itself if there is none.

        Raises ConfigError.
        """
        return model if self._description is None else described_by(model, self._description)

    def set_model_info(self, model: ServingModel) -> None:
        self.model = model = self.described(model)
        _refuse_fixed_batch(model)
        if any(variable.is_lod for variable in (*model.feeds, *model.fetches)):
            # KServe can't declare sequences of unequal length.
            self.example_key_values = feed_texts(model.feeds) or {}
            return
        self._task = text_task(model)
        if self._task is not None:
            self._declare(self._task)
            self._text_info = self._task.describe_text()
            return
        inputs = [declared_input(*item, model) for item in model.description.inputs.items()]
        self.input_tensors = {
            name: declaration for declared in inputs for name, declaration in declared.tensors.items()
        }
        self.output_tensors = dict(declared_outputs(model))
        self.raw_bodies = {media: name for declared in inputs for media, name in declared.raw_bodies.items()}
        self.example_bodies = {media: body for declared in inputs for media, body in declared.bodies.items()}
        self.example = {name: value for declared in inputs for name, value in declared.row.items()}
        if all(declared.texts is not None for declared in inputs):
            self.example_key_values = {
                n: text for declared in inputs for n, text in (declared.texts or {}).items()
            }

    def _declare(self, task: TextTask) -> None:
        self.input_tensors = dict.fromkeys(task.names, "BYTES [-1]")
        self.output_tensors = task.declared_all()
        self.example = dict.fromkeys(task.names, EXAMPLE_TEXT)
        self.example_parameters = task.example()
        self.example_key_values = {
            name: str(value) for name, value in {**self.example, **task.example()}.items()
        }
        self.row_schema = task.row_schema
        self.request_parameters = {parameter.name: parameter.meaning for parameter in task.parameters}

    def init_op(self) -> None:
        """Load tokenizers and image decoders, and prepare the readers of inputs and builders of outputs."""
        model = self.model
        if model is None:
            raise ConfigError(f"Op {self.name} has no model: set local_service_conf.model_config")
        if self._task is not None:
            self._task.load()
            return
        inputs = model.description.inputs
        tensors = [name for name, section in inputs.items() if isinstance(section, TensorInput)]
        # The predictor's feeds have the axes that an old description has left out.
        self._tensors = tuple(feed for feed in self.predictor.feeds if feed.alias in tensors)
        self._alike = _padded_alike(model)
        self._readers = [_reader(name, inputs[name], model) for name in inputs if name not in tensors]
        self._printers = [OutputPrinter(*described, model.labels) for described in described_fetches(model)]
        self._row_by_row = row_by_row(model)

    def preprocess(self, input_dicts: dict[str, Any], data_id: int = 0, log_id: int = 0) -> Any:
        (inputs,) = input_dicts.values()
        return self.feeds_of(inputs)

    def postprocess(
        self, input_dicts: dict[str, Any], fetch_dict: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        return self.answer_of(fetch_dict)

    def feeds_of(self, inputs: Mapping[str, Any]) -> Feed | list[Feed]:
        """Return the model's input arrays for a request, by tensor name.

        Raises InvalidInput that names the input. Returns a list of dicts, one for each row, if the model
        takes one row per run, or texts.
        """
        if self._task is not None:
            self._request = self._task.read_request(inputs, self.request_options.parameters)
            return self._task.feeds(self._request)
        feed = read_feeds(inputs, self._tensors, alike=self._alike) if self._tensors else {}
        for read in self._readers:
            feed.update(read(inputs))
        if not self._readers:
            return feed
        rows = {name: len(array) for name, array in feed.items() if array.ndim}
        if len(set(rows.values())) > 1:
            counts = ", ".join(f"{name} {count}" for name, count in rows.items())
            raise InvalidInput(f"the inputs differ in rows: {counts}")
        if not self._row_by_row:
            return feed
        count = max(rows.values())
        return [{name: array[at : at + 1] for name, array in feed.items()} for at in range(count)]

    def answer_of(self, fetches: Mapping[str, Array] | Sequence[Mapping[str, Array]]) -> dict[str, Any]:
        """Return the response outputs by name, built from the model's output arrays for one request.

        `fetches` has the arrays by tensor name, or is a list with such a dict for each row.
        """
        if self._task is not None:
            if self._request is None:
                raise ServingError(
                    f"Op {self.name}: answer_of is called for a request that feeds_of has not read"
                )
            return self._task.answer(self._request, [fetches] if isinstance(fetches, Mapping) else fetches)
        if not isinstance(fetches, Mapping):
            names = fetches[0]
            fetches = {name: np.concatenate([row[name] for row in fetches]) for name in names}
        answer: dict[str, Any] = {}
        for printer in self._printers:
            answer.update(printer.build_outputs(fetches))
        return answer


def _refuse_fixed_batch(model: ServingModel) -> None:
    """Raise ConfigError if the model's fixed batch size is above 1.

    A model with such a batch size can't run a request of one row.
    """
    if model.description.kinds == {"tensor"}:
        return
    fixed = next((feed for feed in model.feeds if feed.shape and feed.shape[0] > 1), None)
    if fixed is not None:
        raise ConfigError(
            f"{model.directory}: feed {fixed.alias} takes {fixed.shape[0]} rows at once, no fewer: `python "
            "-m convert serving MODEL OUT --rebatch` makes a model for any number, where that can be"
        )


def _reader(name: str, section: Input, model: ServingModel) -> Any:
    """Return a function that turns a request's values into the model's input arrays for the input `name`."""
    if isinstance(section, ImageInput):
        (feed,) = (variable for variable in model.feeds if variable.alias == section.feed)
        images = ImageReader(name, section, feed)
        return lambda inputs: {feed.alias: images.read_images(inputs)}
    if isinstance(section, TextInput):
        return TextReader(name, section, model).read_texts
    assert isinstance(section, TableInput)
    return TableReader(section, model.feeds).read_rows


def _padded_alike(model: ServingModel) -> list[str]:
    """Return the input tensors that must have equal shapes in a request: those that are padded together."""
    padded = [feed for feed in model.feeds if model.padding and feed.alias in model.padding.feeds]
    if len(padded) < 2 or len({feed.shape for feed in padded}) > 1:
        return []
    return [feed.alias for feed in padded]

"""DescribedOp: serves a model as the serving.yml beside it describes its inputs and outputs.

Images, texts and rows of tables go in, labels come out, and no code is to be written. `paddlewheel new`
writes a script with such an Op; its hooks may be overridden as those of any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.api.examples import feed_texts
from pipeline.api.feeds import read_feeds
from pipeline.api.op import Op
from pipeline.errors import ConfigError, InvalidInput, ServingError
from pipeline.models.description import ImageInput, Input, TableInput, TensorInput, TextInput
from pipeline.models.serving_model import ServingModel, described_by
from pipeline.ops.declarations import (
    EXAMPLE_TEXT,
    declared_input,
    declared_outputs,
    described_fetches,
    row_by_row,
)
from pipeline.ops.images import ImageReader
from pipeline.ops.labels import OutputPrinter
from pipeline.ops.tables import TableReader
from pipeline.ops.text_tasks.tasks import text_task
from pipeline.ops.text_tasks.text_task import TextRequest, TextTask
from pipeline.ops.tokenized import TextReader

Array = np.ndarray[Any, np.dtype[Any]]
Feed = dict[str, Array]


class DescribedOp(Op):
    """Takes and gives what `inputs` and `outputs` in the model's serving.yml say."""

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
        """description: a file with `inputs`, `outputs` and `labels`, which go before those of the model's
        serving.yml. options: those of Op."""
        super().__init__(name, input_ops, **options)
        self._description = Path(description) if description else None

    def described(self, model: ServingModel) -> ServingModel:
        """Return the model as this service describes it, else as its serving.yml does. Raises ConfigError."""
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
        """Makes what reads the inputs and prints the outputs: tokenizers and decoders are loaded here."""
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
        """The model's feeds of a request: {name: value}. Raises InvalidInput that names the input.

        A list of feeds, one for each row, where the model takes one row at once, or reads texts.
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
        """The answer to a request of the model's fetches for it."""
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
            answer.update(printer.answer(fetches))
        return answer


def _refuse_fixed_batch(model: ServingModel) -> None:
    """Raises ConfigError where a request of one row can't be run."""
    if model.description.kinds == {"tensor"}:
        return
    fixed = next((feed for feed in model.feeds if feed.shape and feed.shape[0] > 1), None)
    if fixed is not None:
        raise ConfigError(
            f"{model.directory}: feed {fixed.alias} takes {fixed.shape[0]} rows at once, no fewer: `python "
            "-m convert serving MODEL OUT --rebatch` makes a model for any number, where that can be"
        )


def _reader(name: str, section: Input, model: ServingModel) -> Any:
    """A function of the inputs of a request that returns the feeds of one of them."""
    if isinstance(section, ImageInput):
        (feed,) = (variable for variable in model.feeds if variable.alias == section.feed)
        images = ImageReader(name, section, feed)
        return lambda inputs: {feed.alias: images.read_images(inputs)}
    if isinstance(section, TextInput):
        return TextReader(name, section, model).read_texts
    assert isinstance(section, TableInput)
    return TableReader(section, model.feeds).read_rows


def _padded_alike(model: ServingModel) -> list[str]:
    """The tensors that have equal shapes in a request, for they are padded together."""
    padded = [feed for feed in model.feeds if model.padding and feed.alias in model.padding.feeds]
    if len(padded) < 2 or len({feed.shape for feed in padded}) > 1:
        return []
    return [feed.alias for feed in padded]

"""Ragged batches of config.pbtxt: inputs joined end to end, and tensors that are made of a whole batch.

`allow_ragged_batch` joins the elements of requests of any shape. `batch_input` tells the model where requests
end, and `batch_output` cuts an output by the shapes of the requests.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from client.protos.kserve_v2_pb2 import BatchInput, BatchOutput, ModelConfig, ModelInput, ModelOutput
from pipeline.api.op import AnswerSender, OpRequest, RequestRunner
from pipeline.engines.base import Predictor
from pipeline.errors import ModelFailed
from pipeline.models.tensor_spec import BY_DATATYPE

_DATA_TYPES = ModelConfig.DESCRIPTOR.file.enum_types_by_name["DataType"]
_BATCH_INPUT_TYPES = ("TYPE_INT32", "TYPE_FP32")  # of Triton
_Feeds = Sequence[Mapping[str, Any]]


def find_ragged_errors(config: ModelConfig) -> Iterator[str]:
    """Yield an error message for each mistake in `batch_input` and `batch_output` of a config.pbtxt."""
    inputs = {tensor.name for tensor in config.input}
    for field, entries in (("input", config.batch_input), ("output", config.batch_output)):
        kinds = BatchInput.Kind if field == "input" else BatchOutput.Kind
        for entry in entries:
            kind = kinds.Name(entry.kind)
            if len(entry.source_input) != 1:
                count = len(entry.source_input)
                yield f"batch {field} kind '{kind}' expects 1 source input, got {count} for {config.name}"
            if not entry.target_name:
                yield f"batch_{field} of {config.name}: {kind} has no target_name"
            for name in entry.source_input:
                if name not in inputs:
                    yield f"unknown source input name '{name}' for {config.name}"
    for entry in config.batch_input:
        if (name := _DATA_TYPES.values_by_number[entry.data_type].name) not in _BATCH_INPUT_TYPES:
            types = " or ".join(_BATCH_INPUT_TYPES)
            yield f"batch input data type must be {types} for {config.name}, and is {name}"
    outputs = {tensor.name for tensor in config.output}
    for entry in config.batch_output:
        for name, count in Counter(entry.target_name).items():
            if name not in outputs:
                yield f"unknown target output name '{name}' for {config.name}"
            if count > 1:
                yield f"target output name '{name}' can only be specified once for {config.name}"


def is_ragged(config: ModelConfig) -> bool:
    """Return whether a model has ragged tensors, which are merged from or split for a batch's requests."""
    return bool(
        config.batch_input or config.batch_output or any(tensor.allow_ragged_batch for tensor in config.input)
    )


def has_ragged_tensors(config: Mapping[str, Any]) -> bool:
    """Return whether config.pbtxt, as a dict, declares ragged tensors (merged from or split for a batch)."""
    listed = [*config.get("batch_input", ()), *config.get("batch_output", ())]
    return bool(listed) or any(tensor["allow_ragged_batch"] for tensor in config.get("input", ()))


def is_flat(config: ModelConfig, tensor: ModelInput | ModelOutput) -> bool:
    """Return whether a tensor may be flat in the model: its only axis holds the elements of a whole batch."""
    if isinstance(tensor, ModelInput):
        return tensor.allow_ragged_batch
    return any(tensor.name in entry.target_name for entry in config.batch_output)


def list_batch_inputs(config: ModelConfig) -> list[str]:
    """Return the names of inputs that the server computes from a batch (`batch_input`)."""
    return [name for entry in config.batch_input for name in entry.target_name]


class RaggedModel(RequestRunner):
    """Runs the requests of a batch in an engine, with ragged inputs and inputs computed from the batch."""

    def __init__(self, config: Mapping[str, Any], predictor: Predictor) -> None:
        """config: config.pbtxt as a dict. predictor: runs the model in its engine."""
        self._predictor = predictor
        ranks = {feed.alias: len(feed.shape) for feed in predictor.feeds}
        self.ragged_inputs = frozenset(
            tensor["name"]
            for tensor in config["input"]
            if tensor["allow_ragged_batch"] and ranks.get(tensor["name"]) == 1
        )
        self._batch_inputs = config["batch_input"]
        rows = [-1] if config["max_batch_size"] else []
        dims = {tensor["name"]: [*rows, *map(int, tensor["dims"])] for tensor in config["output"]}
        self._scattered = {  # by output, the input whose shapes cut it, and its own dims
            name: (entry["source_input"][0], dims[name])
            for entry in config["batch_output"]
            for name in entry["target_name"]
        }

    def run(self, requests: Sequence[OpRequest], feeds: _Feeds, senders: Sequence[AnswerSender]) -> list[Any]:
        """Run the model once for all requests of a batch. Returns the outputs of each request by name.

        Raises ModelFailed for an output that does not hold the elements or rows of all requests.
        """
        merged = {name: self._join(name, feeds) for name in feeds[0]}
        for entry in self._batch_inputs:
            tensor = make_batch_input(entry, [feed[entry["source_input"][0]].shape for feed in feeds])
            merged |= dict.fromkeys(entry["target_name"], tensor)
        fetches = self._predictor.run(merged)
        parts = {name: self._cut(name, fetch, feeds) for name, fetch in fetches.items()}
        return [{name: cut[number] for name, cut in parts.items()} for number in range(len(feeds))]

    def _join(self, name: str, feeds: _Feeds) -> Any:
        arrays = [feed[name] for feed in feeds]
        if name in self.ragged_inputs:
            return np.concatenate([array.reshape(-1) for array in arrays])
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def _cut(self, name: str, fetch: Any, feeds: _Feeds) -> list[Any]:
        """Return the part of an output that belongs to each request, as a copy."""
        if name in self._scattered:
            source, dims = self._scattered[name]
            shapes = [_fill_dims(dims, feed[source].shape) for feed in feeds]
            counts, flat = [math.prod(shape) for shape in shapes], fetch.reshape(-1)
        else:
            counts, flat = [len(next(iter(feed.values()))) for feed in feeds], fetch
            shapes = [(count, *fetch.shape[1:]) for count in counts]
        if len(feeds) == 1 and name not in self._scattered:
            return [fetch]
        if not flat.ndim or len(flat) != sum(counts):
            unit = "elements" if name in self._scattered else "rows"
            raise ModelFailed(f"output '{name}' has the shape {list(fetch.shape)}, for {sum(counts)} {unit}")
        ends = list(accumulate(counts))
        return [
            flat[end - count : end].reshape(shape).copy()
            for end, count, shape in zip(ends, counts, shapes, strict=True)
        ]

    def own_metrics(self) -> None:
        """Return None: engines have no metrics of their own."""

    def close(self) -> None:
        pass


def make_batch_input(entry: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> Any:
    """Return the tensor of a `batch_input` entry in config.pbtxt.

    shapes: shape of the source input in each request.
    """
    dtype = BY_DATATYPE[entry["data_type"].removeprefix("TYPE_")].numpy
    return np.asarray(_KINDS[entry["kind"]](shapes)).astype(dtype)


def _count_elements(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    return [math.prod(shape) for shape in shapes]


def _list_item_shapes(shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the shape of each row in a batch, without the batch axis."""
    return [shape[1:] for shape in shapes for _ in range(shape[0])]


_KINDS: Mapping[str, Callable[[Sequence[tuple[int, ...]]], Any]] = {
    "BATCH_ELEMENT_COUNT": _count_elements,
    "BATCH_ACCUMULATED_ELEMENT_COUNT": lambda shapes: list(accumulate(_count_elements(shapes))),
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": lambda shapes: [0, *accumulate(_count_elements(shapes))],
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": lambda shapes: np.zeros(max(_count_elements(shapes))),
    "BATCH_ITEM_SHAPE": _list_item_shapes,
    "BATCH_ITEM_SHAPE_FLATTEN": lambda shapes: np.concatenate(_list_item_shapes(shapes)),
}


def _fill_dims(dims: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the dims of an output. A variable dim (-1) gets the length of the same axis of the input."""
    return tuple(
        shape[axis] if length == -1 and axis < len(shape) else length for axis, length in enumerate(dims)
    )

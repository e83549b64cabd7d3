"""Tensors that a model of sequences gets and returns besides those of its clients: state and controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.errors import ConfigError
from pipeline.models.signature import Variable
from pipeline.models.tensor_spec import BY_DATATYPE, BY_NAME

START, END = 1, 2  # flags of a request
MAX_ID_BYTES = 128  # of a correlation id that is a text, as in Triton
STATE_KEY = "state"  # of serving.yml
CONSTANTS_KEY = "constants"  # of serving.yml


class StateTensor(NamedTuple):
    """A tensor that a model returns with each request of a sequence, and gets back with the next one."""

    input: str  # the model's input
    output: str  # the model's output with the new value
    datatype: str  # as KServe v2 names it
    shape: tuple[int, ...]  # of the initial state, with a batch axis of length 1 if the model has one
    axis: int = 0  # the batch axis in the model; callers of the predictor see it as the first axis
    initial: bytes | None = None  # elements of the initial state; None: zeros, or empty texts
    shown: bool = False  # whether the output is part of the response, too

    def build_initial(self) -> np.ndarray[Any, Any]:
        """Return the state for the first request of a sequence."""
        if self.datatype == "BYTES":
            return np.full(self.shape, b"", object)
        dtype = BY_DATATYPE[self.datatype].numpy
        if self.initial is None:
            return np.zeros(self.shape, dtype)
        return np.frombuffer(self.initial, dtype).reshape(self.shape)


class BooleanControl(NamedTuple):
    """A control input that tells the model whether a request starts its sequence, ends it, or is ready."""

    input: str
    kind: str  # START, END or READY
    datatype: str
    values: tuple[float, float]  # for false and true

    def build(self, flags: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Return the control tensor (START, END or READY) for a request with these flags.

        READY is true for every request.
        """
        is_true = {"START": flags & START, "END": flags & END, "READY": 1}[self.kind]
        return np.full(shape, self.values[bool(is_true)], BY_DATATYPE[self.datatype].numpy)


class IdControl(NamedTuple):
    """A control input that tells the model the correlation id of a request."""

    input: str
    datatype: str  # UINT64, INT64, UINT32, INT32 or BYTES

    def build(self, correlation_id: int | str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Return the control tensor with the correlation id of a request's sequence."""
        if self.datatype == "BYTES":
            return np.full(shape, str(correlation_id).encode(), object)
        return np.full(shape, correlation_id, BY_DATATYPE[self.datatype].numpy)


class SequenceTensors(NamedTuple):
    """State and control tensors of a model that processes sequences of requests."""

    states: tuple[StateTensor, ...] = ()
    controls: tuple[BooleanControl, ...] = ()
    ids: tuple[IdControl, ...] = ()
    batched: bool = True  # whether the model's tensors have a batch axis

    @property
    def datatypes(self) -> dict[str, str]:
        """Datatypes of the model's inputs that clients do not send, by input name."""
        datatypes = {state.input: state.datatype for state in self.states}
        datatypes |= {control.input: control.datatype for control in self.controls}
        return datatypes | {control.input: control.datatype for control in self.ids}

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the model's outputs that clients do not get."""
        return tuple(state.output for state in self.states if not state.shown)

    def build_controls(self, correlation_id: int | str, flags: int) -> dict[str, np.ndarray[Any, Any]]:
        """Return the control inputs for a request, by name."""
        shape = (1, 1) if self.batched else (1,)
        feeds = {control.input: control.build(flags, shape) for control in self.controls}
        return feeds | {control.input: control.build(correlation_id, shape) for control in self.ids}


def parse_state(
    value: object, feeds: Sequence[Variable], fetches: Sequence[Variable], path: Path
) -> tuple[StateTensor, ...]:
    """Check the value of `state` in serving.yml, which declares the state tensors by model input.

    value: `{state: {output: stateN, axis: 1}}`. Raises ConfigError for tensors that the model lacks, and for
    an axis that is not the batch axis.
    """
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: {STATE_KEY} is no mapping; write {{h: {{output: hn, axis: 1}}}}")
    return tuple(_parse_entry(name, entry, feeds, fetches, path) for name, entry in value.items())


def _parse_entry(
    name: str, entry: object, feeds: Sequence[Variable], fetches: Sequence[Variable], path: Path
) -> StateTensor:
    where = f"{path}: {STATE_KEY}.{name}"
    if not isinstance(entry, Mapping) or "output" not in entry or entry.keys() - {"output", "axis", "shape"}:
        raise ConfigError(f"{where} is not of the form {{output: hn, axis: 1, shape: [2, 1, 128]}}")
    feed = next((variable for variable in feeds if variable.alias == name), None)
    fetch = next((variable for variable in fetches if variable.alias == entry["output"]), None)
    if feed is None or fetch is None:
        kind, known = ("output", fetches) if feed is not None else ("input", feeds)
        missing = entry["output"] if feed is not None else name
        raise ConfigError(
            f"{where}: the model has no {kind} {missing!r}, only {', '.join(v.alias for v in known)}"
        )
    if feed.dtype != fetch.dtype:
        raise ConfigError(f"{where}: input {name!r} is {feed.dtype}, output {fetch.alias!r} {fetch.dtype}")
    axis = entry.get("axis", 0)
    if type(axis) is not int or not 0 <= axis < len(feed.shape) or feed.shape[axis] != -1:
        raise ConfigError(
            f"{where}: axis {axis!r} is not the batch axis: a dynamic axis of the shape {list(feed.shape)}"
        )
    shape = _initial_shape(entry.get("shape"), feed, axis, where)
    return StateTensor(name, fetch.alias, BY_NAME[feed.dtype].datatype, shape, axis)


def _initial_shape(value: object, feed: Variable, axis: int, where: str) -> tuple[int, ...]:
    """Return the shape of the initial state: a batch axis of length 1 first, then the other axes."""
    lengths = list(feed.shape) if value is None else value
    if not isinstance(lengths, list) or len(lengths) != len(feed.shape):
        raise ConfigError(f"{where}: shape {value!r} is not like the model's, {list(feed.shape)}")
    for length, declared in zip(lengths, feed.shape, strict=True):
        if type(length) is not int or (declared not in (-1, length)):
            raise ConfigError(f"{where}: shape {value!r} is not like the model's, {list(feed.shape)}")
    del lengths[axis]
    return (1, *(1 if length < 0 else length for length in lengths))


def parse_constants(value: object, feeds: Sequence[Variable], path: Path) -> dict[str, Any]:
    """Check the value of `constants` in serving.yml: inputs that have the same value in each run.

    Clients do not send these inputs. Returns arrays by input name. Raises ConfigError for inputs that the
    model lacks, and for values that its dtype can't hold.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: {CONSTANTS_KEY} is no mapping; write {{sr: 16000}}")
    constants = {}
    for name, content in value.items():
        feed = next((variable for variable in feeds if variable.alias == name), None)
        where = f"{path}: {CONSTANTS_KEY}.{name}"
        if feed is None:
            raise ConfigError(f"{where}: the model has only {', '.join(v.alias for v in feeds)}")
        try:
            array = np.asarray(content)
            constants[name] = array.astype(feed.numpy_dtype, casting="same_kind")
        except (TypeError, ValueError):
            raise ConfigError(f"{where}: {content!r} is no value of {feed.dtype}") from None
        if array.ndim != len(feed.shape):
            raise ConfigError(f"{where} has {array.ndim} axes, the model's input {list(feed.shape)}")
    return constants

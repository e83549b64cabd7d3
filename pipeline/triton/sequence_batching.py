"""Reader of `sequence_batching` in config.pbtxt: its mistakes, and the state and the controls of a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from client.protos.kserve_v2_pb2 import ModelConfig, ModelInput, ModelOutput, ModelSequenceBatching
from pipeline.errors import ConfigError
from pipeline.models.sequence_tensors import BooleanControl, IdControl, SequenceTensors, StateTensor
from pipeline.models.tensor_spec import BY_DATATYPE

FOLDER = "initial_state"  # subfolder of the model's folder with the files of initial states
_DATA_TYPES = ModelConfig.DESCRIPTOR.file.enum_types_by_name["DataType"]
_CORRID = ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID
_KINDS = ModelSequenceBatching.Control.Kind
_ID_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")
_VALUES = {  # by field of a control, the datatype of its input
    "int32_false_true": "INT32",
    "fp32_false_true": "FP32",
    "bool_false_true": "BOOL",
}


def keeps_sequences(config: ModelConfig) -> bool:
    """Return whether a model has `sequence_batching`."""
    return bool(config.WhichOneof("scheduling_choice") == "sequence_batching")


def find_sequence_errors(config: ModelConfig) -> Iterator[str]:
    """Yield an error message for each mistake in the `sequence_batching` of a config.pbtxt."""
    if not keeps_sequences(config):
        return
    batching = config.sequence_batching
    if batching.state and (batching.iterative_sequence or config.model_transaction_policy.decoupled):
        yield (
            f"{config.name} is decoupled or has iterative_sequence, so that the model itself keeps the state "
            "of its sequences: remove state"
        )
    yield from _find_control_errors(config)
    names: set[str] = set()
    for state in batching.state:
        for name in (state.input_name, state.output_name):
            if not name or name in names:
                yield f"sequence batching state must have unique input and output names for {config.name}"
            names.add(name)
        yield from _find_state_errors(config, state)
    for size in batching.oldest.preferred_batch_size:
        if size <= 0:
            yield f"sequence batching preferred batch size must be positive for {config.name}"
        elif size > config.max_batch_size:
            yield f"sequence batching preferred batch size must be <= max batch size for {config.name}"
    if batching.oldest.max_candidate_sequences < 0:
        yield f"sequence batching max_candidate_sequences must be positive for {config.name}"
    if not 0 <= batching.direct.minimum_slot_utilization <= 1:
        yield f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {config.name}"


def _find_control_errors(config: ModelConfig) -> Iterator[str]:
    names, kinds = set[str](), set[int]()
    for tensor in config.sequence_batching.control_input:
        if not tensor.name:
            yield f"sequence batching control tensor must have a name for {config.name}"
        if tensor.name in names:
            yield (
                f"sequence batching control tensor '{tensor.name}' is specified for multiple control kinds "
                f"for {config.name}"
            )
        names.add(tensor.name)
        for control in tensor.control:
            kind = _KINDS.Name(control.kind)
            if control.kind in kinds:
                yield f"sequence batching specifies multiple {kind} tensors for {config.name}"
            kinds.add(control.kind)
            yield from _find_value_errors(config.name, control, kind)


def _find_value_errors(name: str, control: ModelSequenceBatching.Control, kind: str) -> Iterator[str]:
    fields = [field for field in _VALUES if getattr(control, field)]
    if control.kind == _CORRID:
        if fields:
            yield (
                "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or "
                f"'bool_false_true' for {kind} for {name}"
            )
        if _DATA_TYPES.values_by_number[control.data_type].name not in _ID_TYPES:
            yield (
                f"unexpected data type for control {kind} for {name}. Allowed data types are "
                f"{', '.join(_ID_TYPES[:-1])} and {_ID_TYPES[-1]}"
            )
    elif len(fields) != 1:
        number, last = ("specifies more than one from", "and") if fields else ("must specify either", "or")
        options = f"'int32_false_true', 'fp32_false_true' {last} 'bool_false_true'"
        yield f"sequence batching {number} {options} for {kind} for {name}"
    elif len(getattr(control, fields[0])) != 2:
        yield f"sequence batching control '{fields[0]}' must have exactly 2 entries for {kind} for {name}"


def _find_state_errors(config: ModelConfig, state: ModelSequenceBatching.State) -> Iterator[str]:
    about = f"sequence batching state '{state.input_name}' for {config.name}"
    if not state.data_type or not state.dims:
        yield f"{about} must specify 'data_type' and 'dims'"
    if any(dim == 0 or dim < -1 for dim in state.dims):
        yield f"{about} has dims {list(state.dims)}: write lengths, or -1 for any length"
    if len(state.initial_state) > 1:
        yield f"{about} has {len(state.initial_state)} entries of initial_state, expected one"
    for initial in state.initial_state:
        if not initial.WhichOneof("state_data"):
            yield f"{about}: initial_state must specify zero_data or data_file"
        if initial.data_type != state.data_type:
            yield f"{about}: initial_state has another data type than the state"
        if any(dim < 0 for dim in initial.dims) or not _fits(initial.dims, state.dims):
            yield f"{about}: initial_state has the dims {list(initial.dims)}, the state {list(state.dims)}"
        file = initial.data_file
        if file and (Path(file).name != file or file in (".", "..")):
            yield f"{about}: data_file {file!r} is no name of a file in {FOLDER}/"


def _fits(dims: Any, declared: Any) -> bool:
    return len(dims) == len(declared) and all(
        dim == expected or expected == -1 for dim, expected in zip(dims, declared, strict=True)
    )


def list_hidden_tensors(config: ModelConfig) -> tuple[list[ModelInput], list[ModelOutput]]:
    """Return the inputs and outputs of a model that clients do not see: state and control tensors.

    A state output that config.pbtxt also lists under `output` is left out, because clients see it.
    """
    if not keeps_sequences(config):
        return [], []
    batching = config.sequence_batching
    inputs = [ModelInput(name=s.input_name, data_type=s.data_type, dims=s.dims) for s in batching.state]
    shown = {output.name for output in config.output}
    outputs = [
        ModelOutput(name=s.output_name, data_type=s.data_type, dims=s.dims)
        for s in batching.state
        if s.output_name not in shown
    ]
    for tensor in batching.control_input:
        for control in tensor.control:
            field = next((field for field in _VALUES if getattr(control, field)), "")
            datatype = (
                f"TYPE_{_VALUES[field]}" if field else _DATA_TYPES.values_by_number[control.data_type].name
            )
            inputs.append(ModelInput(name=tensor.name, data_type=datatype, dims=[1]))
    return inputs, outputs


def build_sequence_tensors(config: Mapping[str, Any], folder: Path) -> SequenceTensors | None:
    """Return the state and control tensors of a sequence model; None for a model without sequences.

    config: config.pbtxt as a dict. folder: the model's folder. Raises ConfigError if the file of an initial
    state is missing, or its size is wrong.
    """
    section = config.get("sequence_batching")
    if section is None:
        return None
    batched = config["max_batch_size"] > 0
    shown = {output["name"] for output in config["output"]}
    states = tuple(_build_state(state, batched, shown, folder) for state in section["state"])
    controls, ids = [], []
    for tensor in section["control_input"]:
        for control in tensor["control"]:
            kind = control["kind"].removeprefix("CONTROL_SEQUENCE_")
            if kind == "CORRID":
                ids.append(IdControl(tensor["name"], _get_datatype(control["data_type"])))
                continue
            field = next(field for field in _VALUES if control[field])
            values = tuple(map(float, control[field]))
            controls.append(BooleanControl(tensor["name"], kind, _VALUES[field], (values[0], values[1])))
    return SequenceTensors(states, tuple(controls), tuple(ids), batched)


def _build_state(state: Mapping[str, Any], batched: bool, shown: set[str], folder: Path) -> StateTensor:
    initial = state["initial_state"][0] if state["initial_state"] else {}
    dims = initial.get("dims") or [1 if dim < 0 else dim for dim in state["dims"]]
    shape = ((1,) if batched else ()) + tuple(map(int, dims))
    datatype = _get_datatype(state["data_type"])
    content = None
    if initial.get("data_file"):
        content = _read_initial(folder / FOLDER / initial["data_file"], datatype, shape)
    return StateTensor(
        state["input_name"],
        state["output_name"],
        datatype,
        shape,
        initial=content,
        shown=state["output_name"] in shown,
    )


def _read_initial(path: Path, datatype: str, shape: tuple[int, ...]) -> bytes:
    if datatype == "BYTES":
        raise ConfigError(f"{path}: an initial state of texts can't come from a file; write zero_data: true")
    size = math.prod(shape) * BY_DATATYPE[datatype].numpy.itemsize
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise ConfigError(f"failed to read the initial state {path}: {exc.strerror}") from exc
    if len(content) != size:
        raise ConfigError(f"{path} has {len(content)} bytes; a state of {datatype} {list(shape)} has {size}")
    return content


def _get_datatype(data_type: str) -> str:
    name = data_type.removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name

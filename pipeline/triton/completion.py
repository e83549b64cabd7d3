"""What a model's file tells in place of config.pbtxt, and whether both agree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from client.protos.kserve_v2_pb2 import ModelConfig, ModelInput, ModelOutput
from pipeline.errors import ConfigError
from pipeline.models.dtypes import BY_NAME
from pipeline.models.signature import Variable
from pipeline.triton.model_folder import get_data_type, get_datatype
from pipeline.triton.program_facts import ProgramFacts

_ENDINGS = (
    (".onnx", "onnxruntime"),
    (".pdmodel", "paddle"),
    (".json", "paddle"),
    (".plan", "tensorrt"),  # this one and those below it are not run here, and refused by their names
    (".savedmodel", "tensorflow"),
    (".graphdef", "tensorflow"),
    (".pt", "pytorch"),
)


def backend_of_files(folder: Path) -> str:
    """The backend whose file stands in a version's folder; empty where none does."""
    for name, backend in (("model.onnx", "onnxruntime"), ("model.py", "python"), ("model.xml", "openvino")):
        if (folder / name).is_file():
            return backend
    for ending, backend in _ENDINGS:
        if any(folder.glob(f"*{ending}")):
            return backend
    return ""


def complete_by_file(config: ModelConfig, facts: ProgramFacts, most: int, *, strict: bool) -> list[str]:
    """Put in what the model's file tells and the configuration leaves out; what of both does not agree.

    most: rows, where the model takes any number of them and nothing says how many. strict: nothing may be
    left out.
    """
    feeds, fetches = facts.feeds, facts.fetches
    if strict:
        missing = [name for name in ("input", "output") if not getattr(config, name)]
        return [f"model configuration must specify '{name}' for {config.name}" for name in missing]
    says_nothing = not config.max_batch_size and not config.input and not config.output
    if says_nothing and most and all(variable.shape[:1] == (-1,) for variable in (*feeds, *fetches)):
        config.max_batch_size = most
        if most > 1 and not config.WhichOneof("scheduling_choice"):
            config.dynamic_batching.SetInParent()
    batched = config.max_batch_size > 0
    return [
        *_agree(config, "input", config.input, feeds, batched),
        *_agree(config, "output", config.output, fetches, batched),
    ]


def _agree(
    config: ModelConfig, field: str, told: Sequence[ModelInput] | Sequence[ModelOutput],
    own: Sequence[Variable], batched: bool,
) -> list[str]:  # fmt: skip
    """Complete the tensors of one side; what does not agree with the file's."""
    if not told:
        for variable in own:
            _fill(getattr(config, field).add(name=variable.alias), variable, batched)
        return []
    flaws = []
    known = {variable.alias: variable for variable in own}
    for one in told:
        if one.name not in known:
            flaws.append(f"{field} '{one.name}' is not in the model, which has {', '.join(known)}")
            continue
        _fill(one, known[one.name], batched)
        flaws += _of_tensor(field, one, known[one.name], batched)
    if field == "input":
        given = {one.name for one in told}
        flaws += [f"input '{name}' of the model is not in the configuration" for name in known.keys() - given]
    return flaws


def _fill(one: ModelInput | ModelOutput, own: Variable, batched: bool) -> None:
    if not one.data_type:
        one.data_type = _number(own)  # type: ignore[assignment]  # the stub asks for its own kind of int
    if not one.dims and not one.HasField("reshape"):
        dims = own.shape[1:] if batched else own.shape
        one.dims.extend(dims or (1,))
        if not dims:  # of one number, or one a row: dims may not be empty, so clients have it as [1]
            one.reshape.SetInParent()


def _of_tensor(field: str, one: ModelInput | ModelOutput, own: Variable, batched: bool) -> list[str]:
    flaws = []
    if (given := get_datatype(one.data_type)) != (expected := BY_NAME[own.dtype].datatype):
        flaws.append(f"{field} '{one.name}' is {given} in the configuration, and {expected} in the model")
    inner = one.reshape.shape if one.HasField("reshape") else one.dims
    shape = ((-1,) if batched else ()) + tuple(inner)
    fits = len(shape) == len(own.shape) and all(
        own_one in (-1, given_one) or given_one == -1
        for given_one, own_one in zip(shape, own.shape, strict=True)
    )
    if fits and batched and own.shape[0] not in (-1,):
        fits = False
    if not fits:
        rows = ", with the rows of max_batch_size before them" if batched else ""
        flaws.append(
            f"{field} '{one.name}' has the dims {list(inner)} in the configuration{rows}, and "
            f"{list(own.shape)} in the model"
        )
    return flaws


def _number(variable: Variable) -> int:
    if variable.dtype not in BY_NAME:
        raise ConfigError(f"tensor {variable.alias!r} of the model is of type {variable.dtype}")
    return get_data_type(BY_NAME[variable.dtype].datatype)

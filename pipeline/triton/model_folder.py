"""A model's folder in a repository: its versions, its files, and its configuration."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from client.protos.kserve_v2_pb2 import ModelConfig, ModelInput, ModelOutput
from pipeline.engines.base import Engine, load_engine
from pipeline.engines.openvino.graph import inspect_id_limits
from pipeline.errors import ConfigError
from pipeline.models.dtypes import BY_NAME
from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.serving_model import SERVER_CONF, SERVER_FOLDER, find_model_files, is_serving_model
from pipeline.models.signature import Variable, read_signature, signature_text
from pipeline.models.tensor_spec import Signature, TensorSpec
from pipeline.process.cache_folder import cache_folder
from pipeline.process.helper_process import HelperFailed, run_helper

_DATA_TYPES = ModelConfig.DESCRIPTOR.file.enum_types_by_name["DataType"]
NO_VERSION = "at least one version must be available under the version policy of model '{}'"


def select_versions(folder: Path, config: ModelConfig) -> list[str]:
    """The versions that the policy wants to be served, of those in the folder; ascending."""
    there = sorted(
        int(path.name)
        for path in folder.iterdir()
        if path.is_dir() and re.fullmatch(r"[1-9]\d{0,17}", path.name)
    )
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "specific":
        chosen = [version for version in there if version in policy.specific.versions]
    elif choice == "all":
        chosen = there
    else:
        chosen = there[-(policy.latest.num_versions or 1) :]
    return list(map(str, chosen))


def find_program(folder: Path, name: str) -> Path:
    """The program in a version's folder: a file, or the file of the same name in a folder of this name, where
    its weights are beside it."""
    path = folder / name
    return path / name if path.is_dir() else path


def build_signature(config: ModelConfig, folder: Path) -> Signature:
    """The tensors as clients send and get them. Raises ConfigError for a file of labels that is not there."""
    most = config.max_batch_size
    inputs, outputs = build_specs(config.input, most), build_specs(config.output, most)
    return Signature(
        tuple(spec._replace(optional=one.optional) for spec, one in zip(inputs, config.input, strict=True)),
        tuple(
            spec._replace(labels=_labels(one, folder))
            for spec, one in zip(outputs, config.output, strict=True)
        ),
        most,
    )


def build_specs(tensors: Sequence[ModelInput] | Sequence[ModelOutput], most: int) -> list[TensorSpec]:
    """Inputs or outputs as they are declared. most: rows; 0: they have none."""
    rows = (-1,) if most else ()
    return [TensorSpec(one.name, get_datatype(one.data_type), (*rows, *one.dims)) for one in tensors]


def get_datatype(number: int) -> str:
    """KServe's name of a data_type."""
    name = _DATA_TYPES.values_by_number[number].name.removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def get_data_type(datatype: str) -> int:
    """The number of a data_type, by KServe's name."""
    name = "STRING" if datatype == "BYTES" else datatype
    return int(_DATA_TYPES.values_by_name[f"TYPE_{name}"].number)


def _labels(output: ModelOutput, folder: Path) -> tuple[str, ...]:
    if not output.label_filename:
        return ()
    path = folder / output.label_filename
    try:
        return tuple(path.read_text("utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is no UTF-8"
        raise ConfigError(f"Internal: failed to open text file for read {path}: {why}") from None


TIMEOUT_S = 120.0
_TELLER = "convert.programs.told"  # imports Paddle, and so is run, not imported
# Operators of ONNX, and those that ONNX Runtime's optimiser writes.
_KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})


class ProgramFacts(NamedTuple):
    """folder: that the engine loads the model from."""

    feeds: Sequence[Variable]
    fetches: Sequence[Variable]
    folder: Path


def read_program_facts(program: Path, backend: str) -> ProgramFacts:
    """Of the program in a version's folder. Raises ConfigError for one that can't be read."""
    engine = load_engine(backend)
    if (program.parent / SERVER_CONF).is_file():
        return ProgramFacts(*read_signature(program.parent / SERVER_CONF), program.parent)
    if engine.self_described and is_serving_model(program.parent):
        return ProgramFacts(*engine.signature_of(program), program.parent)
    folder = _described(program, engine)
    return ProgramFacts(*read_signature(folder / SERVER_CONF, batched=False), folder)


def find_id_limits(program: Path, backend: str) -> Mapping[str, int]:
    """Return by feed the number of embeddings that it is looked up in, as far as the files tell."""
    if program.suffix == ".onnx":
        return inspect_onnx(program).id_limits
    if program.suffix == ".xml":
        return inspect_id_limits(program)
    if backend == "paddle":
        limits: Mapping[str, int] = _read_program(program.parent)[2]
        return limits
    return {}


def unknown_operators(program: Path) -> str:
    """Return the names of operator sets that are neither ONNX's nor ONNX Runtime's; empty without any."""
    if program.suffix != ".onnx":
        return ""
    return ", ".join(sorted(inspect_onnx(program).domains - _KNOWN_DOMAINS))


def _described(program: Path, engine: Engine) -> Path:
    """A folder with links to the program's files, and the prototxt that tells its feeds."""
    files = find_model_files(program.parent, engine.name)
    paths = [path for path in (files.program, files.params) if path is not None]
    folder = cache_folder("programs") / _key(paths) / SERVER_FOLDER
    if (folder / SERVER_CONF).is_file():
        return folder
    text = (
        signature_text(*engine.signature_of(program))
        if engine.self_described
        else _find_prototxt(program.parent)
    )
    try:
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent.parent))
        (made / SERVER_FOLDER).mkdir()
        for path in paths:
            (made / SERVER_FOLDER / path.name).symlink_to(path.absolute())
        (made / SERVER_FOLDER / SERVER_CONF).write_text(text, "utf-8")
        made.rename(folder.parent)
    except OSError as exc:
        if not (folder / SERVER_CONF).is_file():  # else another process was faster
            raise ConfigError(f"{folder} can't be written ({exc.strerror}): set XDG_CACHE_HOME") from exc
    return folder


def _find_prototxt(folder: Path) -> str:
    """The prototxt of the program in a folder."""
    feeds, fetches = (
        [Variable(name, name, dtype, tuple(shape)) for name, dtype, shape in side]
        for side in _read_program(folder)[:2]
    )
    return signature_text(feeds, fetches)


def _read_program(folder: Path) -> tuple[Any, Any, Any]:
    """Return feeds, fetches and id limits of the program in a folder, as the helper prints them."""
    try:
        helper = run_helper(_TELLER, str(folder.absolute()), timeout_s=TIMEOUT_S)
    except HelperFailed as exc:
        raise ConfigError(f"{folder}: reading its program {exc.message}") from exc
    if helper.status:
        lines = helper.stderr.strip().splitlines() or [f"left with {helper.status}"]
        raise ConfigError(f"{folder}: {lines[-1]}")
    feeds, fetches, id_limits = json.loads(helper.last_line())
    return feeds, fetches, id_limits


def _key(paths: Sequence[Path]) -> str:
    states = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(repr(states).encode()).hexdigest()[:32]


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

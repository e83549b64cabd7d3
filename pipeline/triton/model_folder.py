"""Reader of one model's folder in a Triton repository: versions, model files, tensors and checksums."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from client.protos.kserve_v2_pb2 import ModelConfig, ModelInput, ModelOutput
from pipeline.engines.base import Engine, load_engine
from pipeline.engines.openvino.graph import inspect_id_limits
from pipeline.engines.torch.archive import detect_format
from pipeline.errors import ConfigError
from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.serving_model import (
    ADDITIONS,
    SERVER_CONF,
    SERVER_FOLDER,
    find_model_files,
    is_serving_model,
)
from pipeline.models.signature import Variable, read_signature, signature_text
from pipeline.models.tensor_spec import BY_DATATYPE, BY_NAME, Signature, TensorSpec
from pipeline.process.folders import cache_folder
from pipeline.process.helper_process import HelperFailed, run_helper
from pipeline.triton.ragged_batch import is_flat, list_batch_inputs
from pipeline.triton.sequence_batching import list_hidden_tensors

_DATA_TYPES = ModelConfig.DESCRIPTOR.file.enum_types_by_name["DataType"]
NO_VERSION = "at least one version must be available under the version policy of model '{}'"


def select_versions(folder: Path, config: ModelConfig) -> list[str]:
    """Return the versions of a model to load, ascending: subfolders that the version_policy selects."""
    available = sorted(
        int(path.name)
        for path in folder.iterdir()
        if path.is_dir() and re.fullmatch(r"[1-9]\d{0,17}", path.name)
    )
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "specific":
        chosen = [version for version in available if version in policy.specific.versions]
    elif choice == "all":
        chosen = available
    else:
        chosen = available[-(policy.latest.num_versions or 1) :]
    return list(map(str, chosen))


def find_program(folder: Path, name: str) -> Path:
    """Return the path of the model file (the ONNX, OpenVINO or Paddle graph) in a version's folder.

    name: default_model_filename in config.pbtxt. If it names a folder with weights, the model file is the
    file of the same name in that folder.
    """
    path = folder / name
    return path / name if path.is_dir() else path


def build_signature(config: ModelConfig, folder: Path) -> Signature:
    """Build the inputs and outputs that clients see, with output labels, from a model's config.pbtxt.

    Raises ConfigError for a label file that can't be read.
    """
    max_batch_size = config.max_batch_size
    inputs, outputs = build_specs(config.input, max_batch_size), build_specs(config.output, max_batch_size)
    return Signature(
        tuple(
            spec._replace(optional=tensor.optional) for spec, tensor in zip(inputs, config.input, strict=True)
        ),
        tuple(
            spec._replace(labels=_load_labels(tensor, folder))
            for spec, tensor in zip(outputs, config.output, strict=True)
        ),
        max_batch_size,
    )


def build_specs(
    tensors: Sequence[ModelInput] | Sequence[ModelOutput], max_batch_size: int
) -> list[TensorSpec]:
    """Convert inputs or outputs of a config.pbtxt to tensor specs (name, datatype, shape).

    With a max_batch_size the shapes begin with a batch axis, -1.
    """
    rows = (-1,) if max_batch_size else ()
    return [
        TensorSpec(tensor.name, get_datatype(tensor.data_type), (*rows, *tensor.dims)) for tensor in tensors
    ]


def get_datatype(number: int) -> str:
    """Return KServe's name, such as "FP32", for a number of Triton's DataType enum."""
    name = _DATA_TYPES.values_by_number[number].name.removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def get_data_type(datatype: str) -> int:
    """Return the number in Triton's DataType enum for KServe's name, such as "FP32"."""
    name = "STRING" if datatype == "BYTES" else datatype
    return int(_DATA_TYPES.values_by_name[f"TYPE_{name}"].number)


def _load_labels(output: ModelOutput, folder: Path) -> tuple[str, ...]:
    if not output.label_filename:
        return ()
    path = folder / output.label_filename
    try:
        return tuple(path.read_text("utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is no UTF-8"
        raise ConfigError(f"Internal: failed to open text file for read {path}: {why}") from None


PYTORCH = "pytorch"
TIMEOUT_S = 120.0
_INSPECTOR = "convert.programs.inference_program"  # imports Paddle, so it runs in a process of its own
# Operators of ONNX, and those that ONNX Runtime's optimiser writes.
_KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})


class ProgramFacts(NamedTuple):
    """Inputs and outputs of a model file (such as ONNX or Paddle), and the folder to load it from."""

    feeds: Sequence[Variable]
    fetches: Sequence[Variable]
    folder: Path  # the engine loads the model from here


def read_program_facts(program: Path, backend: str, config: ModelConfig | None = None) -> ProgramFacts:
    """Read the names, types and shapes of a model file's inputs and outputs.

    program: the model file in a version's folder. config: the config.pbtxt, which declares the tensors of a
    PyTorch model, because its file may not. Raises ConfigError for an unreadable file.
    """
    engine = load_engine(backend)
    if (program.parent / SERVER_CONF).is_file():
        return ProgramFacts(*read_signature(program.parent / SERVER_CONF), program.parent)
    if backend == PYTORCH:
        detect_format(program)  # tells what another file holds
        return _link_pytorch(program, config)
    if engine.self_described and is_serving_model(program.parent):
        return ProgramFacts(*engine.signature_of(program), program.parent)
    folder = _link_program(program, engine)
    return ProgramFacts(*read_signature(folder / SERVER_CONF, batched=False), folder)


def _link_pytorch(program: Path, config: ModelConfig | None) -> ProgramFacts:
    """Return a PyTorch model's tensors, and a folder to load the model from.

    config.pbtxt takes precedence over the file. Its tensors may have other names, such as INPUT__0 with the
    position.
    """
    if config is not None and config.input and config.output:
        feeds, fetches = declare_variables(config)
    else:
        feeds, fetches = load_engine(PYTORCH).signature_of(program)
    folder = _write_links([program], signature_text(feeds, fetches), batched=False)
    return ProgramFacts(feeds, fetches, folder)


def declare_variables(config: ModelConfig) -> tuple[Sequence[Variable], Sequence[Variable]]:
    """Return the inputs and outputs in a config.pbtxt, with their shapes in the model (after `reshape`)."""
    rows = (-1,) if config.max_batch_size else ()
    feeds, fetches = (
        [
            Variable(
                tensor.name,
                tensor.name,
                BY_DATATYPE[get_datatype(tensor.data_type)].name,
                (*rows, *(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)),
            )
            for tensor in tensors
        ]
        for tensors in (config.input, config.output)
    )
    return feeds, fetches


def find_id_limits(program: Path, backend: str) -> Mapping[str, int]:
    """Return the embedding table size for each input of token ids, by input name.

    program: the model file. Inputs are left out if the files do not show their table; the result may be
    empty.
    """
    if program.suffix == ".onnx":
        return inspect_onnx(program).id_limits
    if program.suffix == ".xml":
        return inspect_id_limits(program)
    if backend == "paddle":
        limits: Mapping[str, int] = _read_program(program.parent)[2]
        return limits
    return {}


def find_optional_feeds(program: Path) -> Sequence[Variable]:
    """Return the inputs of an ONNX file that have default values, so that a request may leave them out."""
    return inspect_onnx(program).optional_feeds if program.suffix == ".onnx" else ()


def find_unknown_operators(program: Path) -> str:
    """Return the custom operator domains that an ONNX file uses, separated by commas; empty if there is none.

    Domains of ONNX and ONNX Runtime are not custom.
    """
    if program.suffix != ".onnx":
        return ""
    return ", ".join(sorted(inspect_onnx(program).domains - _KNOWN_DOMAINS))


def _link_program(program: Path, engine: Engine) -> Path:
    """Create a cache folder with links to a model's files and a prototxt of its inputs and outputs.

    Engines load a model from such a folder. Raises ConfigError for an unwritable cache.
    """
    files = find_model_files(program.parent, engine.name)
    paths = [path for path in (files.program, files.params) if path is not None]
    folder = cache_folder("programs") / _hash_file_states(paths) / SERVER_FOLDER
    if (folder / SERVER_CONF).is_file():
        return folder
    text = (
        signature_text(*engine.signature_of(program))
        if engine.self_described
        else _find_prototxt(program.parent)
    )
    return _write_links(paths, text)


def _write_links(paths: Sequence[Path], text: str, *, batched: bool = True) -> Path:
    """Write a cache folder with links to a model's files, and this prototxt; return the folder.

    batched: whether shapes without a batch axis get one. Raises ConfigError for an unwritable cache.
    """
    facts = () if batched else (text,)  # the prototxt of other models follows from their files
    folder = cache_folder("programs") / _hash_file_states(paths, *facts) / SERVER_FOLDER
    if (folder / SERVER_CONF).is_file():
        return folder
    try:
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=folder.parent.parent))
        (partial / SERVER_FOLDER).mkdir()
        for path in paths:
            (partial / SERVER_FOLDER / path.name).symlink_to(path.absolute())
        (partial / SERVER_FOLDER / SERVER_CONF).write_text(text, "utf-8")
        if not batched:
            (partial / SERVER_FOLDER / ADDITIONS).write_text("batched: false\n", "utf-8")
        partial.rename(folder.parent)
    except OSError as exc:
        if not (folder / SERVER_CONF).is_file():  # else another process was faster
            raise ConfigError(f"{folder} can't be written ({exc.strerror}): set XDG_CACHE_HOME") from exc
    return folder


def _find_prototxt(folder: Path) -> str:
    """Build the prototxt of a Paddle model's inputs and outputs, in Paddle Serving's format."""
    feeds, fetches = (
        [Variable(name, name, dtype, tuple(shape)) for name, dtype, shape in side]
        for side in _read_program(folder)[:2]
    )
    return signature_text(feeds, fetches)


def _read_program(folder: Path) -> tuple[Any, Any, Any]:
    """Read inputs, outputs and embedding table sizes of the Paddle model in a folder, in a separate process.

    The process imports Paddle. Inputs and outputs are (name, type, shape). Raises ConfigError for an
    unreadable model.
    """
    try:
        helper = run_helper(_INSPECTOR, str(folder.absolute()), timeout_s=TIMEOUT_S)
    except HelperFailed as exc:
        raise ConfigError(f"{folder}: reading its program {exc.message}") from exc
    if helper.status:
        lines = helper.stderr.strip().splitlines() or [f"left with {helper.status}"]
        raise ConfigError(f"{folder}: {lines[-1]}")
    feeds, fetches, id_limits = json.loads(helper.last_line())
    return feeds, fetches, id_limits


def _hash_file_states(paths: Sequence[Path], *facts: str) -> str:
    """Return a name for a cache folder with links to these files.

    The name is a hash of each path, its link target, size and mtime. The path is included because two
    repositories may link to one file, and one link may be removed.
    """
    states = [
        (str(path.absolute()), str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns, *facts)
        for path in paths
    ]
    return hashlib.sha256(repr(states).encode()).hexdigest()[:32]


_ENDINGS = (
    (".onnx", "onnxruntime"),
    (".pdmodel", "paddle"),
    (".json", "paddle"),
    (".pt", PYTORCH),
    (".pt2", PYTORCH),
    (".plan", "tensorrt"),  # this backend and the following ones are detected to reject them by name
    (".savedmodel", "tensorflow"),
    (".graphdef", "tensorflow"),
)


def detect_backend(folder: Path) -> str:
    """Guess the backend from the model file in a version's folder; empty without a model file."""
    for name, backend in (("model.onnx", "onnxruntime"), ("model.py", "python"), ("model.xml", "openvino")):
        if (folder / name).is_file():
            return backend
    for ending, backend in _ENDINGS:
        if any(folder.glob(f"*{ending}")):
            return backend
    return ""


def fill_from_program(
    config: ModelConfig,
    facts: ProgramFacts,
    max_batch_size: int,
    *,
    strict: bool,
    optional_feeds: Sequence[Variable] = (),
) -> list[str]:
    """Complete a config.pbtxt, in place, from the inputs and outputs of the model file.

    Returns a message for each contradiction between config.pbtxt and the file. max_batch_size: default for a
    model with a dynamic batch dimension whose configuration has no max_batch_size, inputs and outputs.
    strict: fill nothing, and report absent fields instead. optional_feeds: inputs with default values, which
    the configuration may leave out.
    """
    feeds, fetches = facts.feeds, facts.fetches
    if strict:
        missing = [name for name in ("input", "output") if not getattr(config, name)]
        return [f"model configuration must specify '{name}' for {config.name}" for name in missing]
    is_unset = not config.max_batch_size and not config.input and not config.output
    if is_unset and max_batch_size and all(variable.shape[:1] == (-1,) for variable in (*feeds, *fetches)):
        config.max_batch_size = max_batch_size
        if max_batch_size > 1 and not config.WhichOneof("scheduling_choice"):
            config.dynamic_batching.SetInParent()
    batched = config.max_batch_size > 0
    configured = {tensor.name for tensor in config.input}
    feeds = [*feeds, *(variable for variable in optional_feeds if variable.alias in configured)]
    batch_inputs = list_batch_inputs(config)
    missing = [name for name in batch_inputs if name not in {variable.alias for variable in feeds}]
    if missing:
        return [f"batch_input has the target '{name}', which is no input of the model" for name in missing]
    feeds = [variable for variable in feeds if variable.alias not in batch_inputs]
    hidden_inputs, hidden_outputs = list_hidden_tensors(config)
    return [
        *_compare_hidden("input", hidden_inputs, feeds, batched),
        *_compare_hidden("output", hidden_outputs, fetches, batched),
        *_fill_tensors(config, "input", config.input, _without(feeds, hidden_inputs), batched),
        *_fill_tensors(config, "output", config.output, _without(fetches, hidden_outputs), batched),
    ]


def _without(
    variables: Sequence[Variable], tensors: Sequence[ModelInput] | Sequence[ModelOutput]
) -> list[Variable]:
    names = {tensor.name for tensor in tensors}
    return [variable for variable in variables if variable.alias not in names]


def _compare_hidden(
    field: str,
    tensors: Sequence[ModelInput] | Sequence[ModelOutput],
    variables: Sequence[Variable],
    batched: bool,
) -> Iterator[str]:
    """Yield a message for each tensor of `sequence_batching` that does not fit the model file."""
    by_name = {variable.alias: variable for variable in variables}
    for tensor in tensors:
        if tensor.name in by_name:
            yield from _compare_tensor(field, tensor, by_name[tensor.name], batched)
        else:
            yield (
                f"sequence_batching has the {field} '{tensor.name}', which is not in the model: it has "
                f"{', '.join(by_name)}"
            )


def _fill_tensors(
    config: ModelConfig, field: str, tensors: Sequence[ModelInput] | Sequence[ModelOutput],
    variables: Sequence[Variable], batched: bool,
) -> list[str]:  # fmt: skip
    """Complete the inputs or outputs of a config.pbtxt from the model file's `variables`.

    field: "input" or "output". batched: whether the configuration has a max_batch_size. Returns a message for
    each contradiction.
    """
    if not tensors:
        for variable in variables:
            _fill_tensor(getattr(config, field).add(name=variable.alias), variable, batched)
        return []
    errors = []
    by_name = {variable.alias: variable for variable in variables}
    for tensor in tensors:
        if tensor.name not in by_name:
            errors.append(f"{field} '{tensor.name}' is not in the model, which has {', '.join(by_name)}")
            continue
        _fill_tensor(tensor, by_name[tensor.name], batched)
        variable = by_name[tensor.name]
        if batched and len(variable.shape) == 1 and is_flat(config, tensor):
            variable = replace(variable, shape=(-1,) * (1 + len(tensor.dims)))  # of the elements of a batch
        errors += _compare_tensor(field, tensor, variable, batched)
    if field == "input":
        configured = {tensor.name for tensor in tensors}
        errors += [
            f"input '{name}' of the model is not in the configuration" for name in by_name.keys() - configured
        ]
    return errors


def _fill_tensor(tensor: ModelInput | ModelOutput, variable: Variable, batched: bool) -> None:
    if not tensor.data_type:
        tensor.data_type = _get_variable_data_type(variable)  # type: ignore[assignment]  # the stub declares an enum type
    if tensor.HasField("reshape"):
        return
    dims = variable.shape[1:] if batched else variable.shape
    if not tensor.dims:
        tensor.dims.extend(dims or (1,))
    if not dims and list(tensor.dims) == [1]:
        tensor.reshape.SetInParent()  # a scalar, or a scalar per row: dims may not be empty


def _compare_tensor(
    field: str, tensor: ModelInput | ModelOutput, variable: Variable, batched: bool
) -> list[str]:
    errors = []
    if (datatype := get_datatype(tensor.data_type)) != (expected := BY_NAME[variable.dtype].datatype):
        errors.append(
            f"{field} '{tensor.name}' is {datatype} in the configuration, and {expected} in the model"
        )
    inner = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
    shape = ((-1,) if batched else ()) + tuple(inner)
    fits = len(shape) == len(variable.shape) and all(
        model_length in (-1, length) or length == -1
        for length, model_length in zip(shape, variable.shape, strict=True)
    )
    if fits and batched and variable.shape[0] not in (-1,):
        fits = False
    if not fits:
        rows = ", with the rows of max_batch_size before them" if batched else ""
        errors.append(
            f"{field} '{tensor.name}' has the dims {list(inner)} in the configuration{rows}, and "
            f"{list(variable.shape)} in the model"
        )
    return errors


def _get_variable_data_type(variable: Variable) -> int:
    if variable.dtype not in BY_NAME:
        raise ConfigError(f"tensor {variable.alias!r} of the model is of type {variable.dtype}")
    return get_data_type(BY_NAME[variable.dtype].datatype)


CHECKSUM = "checksum"


def find_agent_error(config: ModelConfig, folder: Path) -> str:
    """Return the error of `model_repository_agents`, such as a wrong MD5; empty if the model may be loaded.

    An unknown agent is an error: without it, a model might be loaded that the agent would have refused.
    """
    for agent in config.model_repository_agents.agents:
        if agent.name != CHECKSUM:
            return (
                f"model_repository_agents: there is no agent '{agent.name}' here, only '{CHECKSUM}'; remove "
                f"it from the configuration of {config.name}"
            )
        for key, expected in sorted(agent.parameters.items()):
            if error := _find_checksum_error(key, expected, folder):
                return error
    return ""


def _find_checksum_error(key: str, expected: str, folder: Path) -> str:
    algorithm, colon, name = key.partition(":")
    if not colon:
        return f"failed to parse key: {key}; write MD5:FILE"
    if algorithm.lower() != "md5":
        return f"Unsupported checksum algorithm: {algorithm}"
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        # A client may send the configuration: the digest of another file is not to be found out by it.
        return f"checksum of '{name}': the path leads out of the model's folder"
    digest = hashlib.md5(usedforsecurity=False)  # the only algorithm of Triton's agent
    try:
        for block in _read_blocks(folder / path):
            digest.update(block)
    except OSError as exc:
        return f"failed to open file for read {name}: {exc.strerror}"
    if digest.hexdigest() != expected:
        return f"Mismatched MD5 hash for file {name}, expect: {expected}, got: {digest.hexdigest()}"
    return ""


def _read_blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            yield block

"""config.pbtxt: a model's configuration in Google's text format, read into Triton's ModelConfig message."""

from __future__ import annotations

import difflib
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import text_format
from google.protobuf.message import Message

from client.protos.kserve_v2_pb2 import ModelConfig, ModelInput, ModelInstanceGroup, ModelOutput
from pipeline.errors import ConfigError
from pipeline.plugins import ENGINES, find

FILE = "config.pbtxt"
MAX_FILE_BYTES = 1 << 20
_PLATFORMS = {  # the older key, and the backend that it means
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorrt_plan": "tensorrt",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
}
_BY_FILES = ("fastdeploy",)  # a backend of several engines: the model's file tells which


def read_config(folder: Path) -> ModelConfig:
    """The configuration in a model's folder; an empty one where there is no file. Raises ConfigError."""
    path = folder / FILE
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return ModelConfig()
    except OSError as exc:
        raise ConfigError(f"{path} can't be read: {exc.strerror}") from exc
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} is over {MAX_FILE_BYTES} bytes; a configuration is some KB")
    try:
        text = content.decode("utf-8-sig")  # editors of Windows write a mark before it
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        raise ConfigError(
            f"{path}, line {line}: byte 0x{content[exc.start]:02x} is no UTF-8; save the file as UTF-8"
        ) from None
    return parse_config(text, str(path))


def parse_config(text: str, source: str) -> ModelConfig:
    """A configuration in text format. source: for messages. Raises ConfigError that names the line."""
    config = ModelConfig()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as exc:
        raise ConfigError(f"{source}, line {exc.GetLine()}: {_describe_parse_error(exc)}") from None
    except RecursionError:
        raise ConfigError(f"{source}: messages are nested too deeply") from None
    return config


def get_backend(config: ModelConfig) -> str:
    """The backend that runs the model, whichever key names it; "ensemble" for one; empty where none does, or
    the one that is named leaves it to the files."""
    if config.platform == "ensemble" or config.WhichOneof("scheduling_choice") == "ensemble_scheduling":
        return "ensemble"
    named = config.backend or _PLATFORMS.get(config.platform, config.platform)
    return "" if named in _BY_FILES else named


def _describe_parse_error(exc: text_format.ParseError) -> str:
    """What protobuf says of the mistake, without the place, and the field that was probably meant."""
    _, _, words = str(exc).partition(" : ")
    words = words.replace('Message type "inference.', 'message "')
    kind, _, field = words.partition(" has no field named ")
    if field:
        message, name = kind.rpartition('"inference.')[2].split('"')[1], field.strip('".')
        near = difflib.get_close_matches(name, _list_fields(message), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"unknown field {name!r} in {message}{hint}"
    return words


def _list_fields(message: str) -> list[str]:
    kind = ModelConfig.DESCRIPTOR.file.pool.FindMessageTypeByName(f"inference.{message}")
    return list(kind.fields_by_name)


_NEWER = ("max_inflight_requests",)  # than the version of Triton whose answers are given here
_FILE_NAMES = {"python": "model.py", "onnxruntime": "model.onnx", "openvino": "model.xml"}


def message_to_dict(message: Message) -> dict[str, Any]:
    """The message by its fields' names: numbers as numbers, enums by name, and what is not set as its
    default, unless it is a message or the choice of one."""
    told: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            of = field.message_type.fields_by_name["value"]  # type: ignore[union-attr]  # it is one
            told[field.name] = {str(key): _value(of, value[key]) for key in sorted(value)}
        elif field.is_repeated:
            told[field.name] = [_value(field, one) for one in value]
        elif field.name in _NEWER and not value:
            continue
        elif not field.has_presence or message.HasField(field.name):
            told[field.name] = _value(field, value)
    return told


def complete(config: ModelConfig, backend: str) -> None:
    """Put in what Triton puts in where a file leaves it out."""
    if config.WhichOneof("scheduling_choice") == "dynamic_batching":
        batching = config.dynamic_batching
        if not batching.preferred_batch_size and config.max_batch_size:
            batching.preferred_batch_size.append(config.max_batch_size)
    if not config.version_policy.WhichOneof("policy_choice"):
        config.version_policy.latest.num_versions = 1
    if backend == "ensemble":
        config.platform = "ensemble"
        config.model_transaction_policy.decoupled = False
        return
    config.backend = backend
    for pinned in (config.optimization.input_pinned_memory, config.optimization.output_pinned_memory):
        pinned.enable = True
    if not config.instance_group:
        config.instance_group.add(name=config.name, kind=ModelInstanceGroup.KIND_CPU, count=1)
    for number, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{number}"
        group.count = group.count or 1
        if group.kind == ModelInstanceGroup.KIND_AUTO:
            group.kind = ModelInstanceGroup.KIND_CPU
    config.default_model_filename = config.default_model_filename or _FILE_NAMES.get(backend, "")


def _is_map(field: Any) -> bool:
    return bool(
        field.message_type is not None and field.message_type.GetOptions().map_entry and field.is_repeated
    )


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return message_to_dict(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value


_MAX_BATCH_SIZE, _THREADS = "default-max-batch-size", "intra_op_thread_count"
DEFAULT_MAX_BATCH_SIZE = 4  # as Triton's
DEFAULT_THREADS = 2


class Defaults(NamedTuple):
    """settings: backend, empty for all, name and value."""

    settings: tuple[tuple[str, str, int], ...] = ()

    def max_batch_size(self, backend: str) -> int:
        """Rows of a model that takes any number of them; 0: it is given no batches."""
        return self._get_value(backend, _MAX_BATCH_SIZE, DEFAULT_MAX_BATCH_SIZE)

    def threads(self, backend: str) -> int:
        """Threads of one run."""
        return self._get_value(backend, _THREADS, DEFAULT_THREADS) or DEFAULT_THREADS

    def _get_value(self, backend: str, name: str, otherwise: int) -> int:
        told = {of: value for of, known, value in self.settings if known == name}
        return told.get(backend, told.get("", otherwise))


NO_DEFAULTS = Defaults()


def parse_defaults(given: Sequence[str]) -> tuple[Defaults, list[str]]:
    """What `--backend-config=BACKEND,NAME=VALUE` and `=NAME=VALUE` say, and a line for each that has no
    effect.

    Raises ConfigError.
    """
    read = list(map(_split_setting, given))
    settings = [
        (backend, name, int(value)) for backend, name, value in read if name in (_MAX_BATCH_SIZE, _THREADS)
    ]
    return Defaults(tuple(settings)), list(_without_effect(read))


def _split_setting(text: str) -> tuple[str, str, str]:
    backend, _, setting = text.rpartition(",")
    name, equals, value = setting.partition("=")
    if not name or not equals:
        raise ConfigError(
            f"--backend-config={text}: write BACKEND,NAME=VALUE, as in onnxruntime,{_MAX_BATCH_SIZE}=8"
        )
    if name in (_MAX_BATCH_SIZE, _THREADS) and not value.isdecimal():
        raise ConfigError(f"--backend-config={text}: {name} is a number, 0 or more")
    return backend, name, value


def _without_effect(read: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    for backend, name, _ in read:
        if name not in (_MAX_BATCH_SIZE, _THREADS):
            of = f"{backend},{name}" if backend else name
            yield (
                f"--backend-config={of} has no effect: of a backend's settings {_MAX_BATCH_SIZE} and "
                f"{_THREADS} are known here"
            )


_NOT_HERE = {  # backends of Triton's that this server has none for, and the way instead
    "tensorrt": "TensorRT plans run on the card that they were built for alone: serve the ONNX model",
    "tensorflow": "TensorFlow models are not run here: convert the model to ONNX with tf2onnx",
    "pytorch": "TorchScript is not run here yet: export the model to ONNX (torch.onnx.export)",
    "dali": "DALI pipelines need a GPU and NVIDIA's library: preprocess in a Python model",
    "fil": "forests are not run here: convert the model to ONNX with skl2onnx or hummingbird",
    "vllm": "vLLM's answers are streams, which are not served yet",
    "tensorrtllm": "TensorRT-LLM's answers are streams, which are not served yet",
}
_RUN_HERE = ("python", "identity", "ensemble")  # beside the engines
_NOT_YET = {
    "sequence_batching": "models of sequences (sequence_batching) are not served yet",
    "response_cache": "the response cache is not built yet: take response_cache out",
    "batch_input": "inputs that are made of a batch (batch_input, batch_output) are not made yet: send them",
    "rate_limiter": "the rate limiter is not built yet: take rate_limiter out of instance_group",
}


def check_config(config: ModelConfig, backend: str) -> list[str]:
    """What is wrong with the configuration, each in a sentence."""
    return [
        *_of_backend(config, backend),
        *_of_batching(config),
    ]


def flaws_of_tensors(config: ModelConfig, backend: str) -> list[str]:
    """What is wrong with the completed inputs and outputs, or with what is to run them."""
    flaws = [*_of_tensors(config, "input", config.input), *_of_tensors(config, "output", config.output)]
    if backend not in (*_RUN_HERE, *find(ENGINES)):
        flaws.append(
            f"unable to find backend library for backend '{backend}', try specifying runtime on the model "
            f"configuration; backends here are {', '.join((*_RUN_HERE, *find(ENGINES)))}"
        )
    return flaws


def _of_backend(config: ModelConfig, backend: str) -> Iterator[str]:
    if backend in _NOT_HERE:
        yield f"backend {backend!r}: {_NOT_HERE[backend]}"
    if config.WhichOneof("scheduling_choice") == "sequence_batching":
        yield _NOT_YET["sequence_batching"]
    if config.batch_input or config.batch_output:
        yield _NOT_YET["batch_input"]
    if config.response_cache.enable:
        yield _NOT_YET["response_cache"]
    if config.model_transaction_policy.decoupled:
        yield "models of several answers a request (decoupled) are not served yet"
    if any(group.HasField("rate_limiter") for group in config.instance_group):
        yield _NOT_YET["rate_limiter"]
    if (least := min((group.count for group in config.instance_group), default=0)) < 0:
        yield f"instance_group of {config.name} has the count {least}; it is a number from 1 on"
    if config.max_batch_size < 0:
        yield f"'max_batch_size' must be non-negative value for {config.name}"


def _of_tensors(
    config: ModelConfig, kind: str, tensors: Sequence[ModelInput] | Sequence[ModelOutput]
) -> Iterator[str]:
    for one in tensors:
        if not one.name:
            yield f"model {kind} must specify 'name' for {config.name}"
        if not one.dims:
            yield f"model {kind} '{one.name}' must specify 'dims' for {config.name}"
        if any(dim == 0 or dim < -1 for dim in one.dims):
            yield (
                f"model {kind} '{one.name}' dimension must be integer >= 1, or -1 to indicate a "
                f"variable-size dimension for {config.name}"
            )
        if one.HasField("reshape") and not _same_size(one.dims, one.reshape.shape):
            yield f"model {kind} '{one.name}' has different size for dims and reshape for {config.name}"


def _same_size(dims: Sequence[int], shape: Sequence[int]) -> bool:
    if -1 in dims or -1 in shape:
        return [*dims].count(-1) == [*shape].count(-1)
    return math.prod(dims) == math.prod(shape)


def _of_batching(config: ModelConfig) -> Iterator[str]:
    if config.WhichOneof("scheduling_choice") != "dynamic_batching":
        return
    batching, most = config.dynamic_batching, config.max_batch_size
    if not most:
        yield f"dynamic batching requires max_batch_size > 0 for {config.name}"
    for size in batching.preferred_batch_size:
        if size <= 0:
            yield f"dynamic batching preferred size must be positive for {config.name}"
        elif size > most:
            yield f"dynamic batching preferred size must be <= max batch size for {config.name}"
    if batching.priority_levels:
        default = batching.default_priority_level
        if not 0 < default <= batching.priority_levels:
            yield f"default priority level must be in range [1, priority_levels] for {config.name}"
        if batching.preserve_ordering:
            yield f"priority levels can't be used with preserve_ordering for {config.name}"


_LENGTH = struct.Struct("<I")


def join_texts(texts: Iterable[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(text)) + text for text in texts)


def split_texts(data: bytes) -> list[bytes]:
    """Raises ValueError for what ends within a text or its length."""
    texts: list[bytes] = []
    at = 0
    while at + _LENGTH.size <= len(data):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(data, at)[0]
        texts.append(data[start:at])
    if at != len(data):
        raise ValueError(f"{len(data)} bytes do not hold texts, each after its length")
    return texts

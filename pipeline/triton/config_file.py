"""Reader of config.pbtxt, a Triton model's configuration, and its translation to options of this server.

Engine options and instance groups become keys of `local_service_conf` in a section of config.yml.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import Message

from client.protos.kserve_v2_pb2 import (
    ModelConfig,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
    ModelQueuePolicy,
)
from pipeline.api.metrics_settings import FIRST_RESPONSE
from pipeline.errors import ConfigError
from pipeline.models.protobuf_text import read_message
from pipeline.plugins import ENGINES, find
from pipeline.triton.ragged_batch import find_ragged_errors
from pipeline.triton.sequence_batching import find_sequence_errors, keeps_sequences

FILE = "config.pbtxt"
MAX_FILE_BYTES = 1 << 20
_PLATFORMS = {  # values of the older key `platform`, and their backends
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorrt_plan": "tensorrt",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
}
_BY_FILES = ("fastdeploy",)  # backends of several engines: the suffix of the model's file selects the engine


def read_config(folder: Path) -> ModelConfig:
    """Parse the config.pbtxt in a model's folder; without the file, return an empty ModelConfig.

    Raises ConfigError for a file that can't be parsed.
    """
    try:
        return read_message(folder / FILE, ModelConfig, MAX_FILE_BYTES)
    except FileNotFoundError:
        return ModelConfig()


def get_backend(config: ModelConfig) -> str:
    """Return the backend that `backend` or `platform` in config.pbtxt names, "ensemble" for an ensemble.

    Empty if neither key names a backend, or if the backend must be guessed from the model file.
    """
    if config.platform == "ensemble" or config.WhichOneof("scheduling_choice") == "ensemble_scheduling":
        return "ensemble"
    named = config.backend or _PLATFORMS.get(config.platform, config.platform)
    return "" if named in _BY_FILES else named


PYTHON_RUNTIME = "model.py"  # `runtime` of models whose backend is written in Python


def find_python_backend(directory: Path | None, backend: str, folder: Path) -> Path | None:
    """Return the path of the model.py of a backend written in Python; None for other backends.

    The model's folder is searched first, then the backend's folder in `directory` (`--backend-directory`). As
    in Triton, a model.py in a version's folder is no backend. A backend built into this server takes
    precedence. folder: the model's folder.
    """
    is_known = backend in (*_RUN_HERE, *find(ENGINES))
    if is_known or not backend or "/" in backend or backend.startswith("."):
        return None
    folders = [folder] if directory is None else [folder, directory / backend]
    programs = (place / PYTHON_RUNTIME for place in folders)
    return next((program for program in programs if program.is_file()), None)


def get_runner(config: Mapping[str, Any]) -> str:
    """Return the name of a model's backend: "python" also for a custom backend written in Python."""
    return "python" if config.get("runtime") == PYTHON_RUNTIME else str(config["backend"])


_NEWER = ("max_inflight_requests",)  # fields that the emulated version of Triton does not have
_FILE_NAMES = {"python": "model.py", "onnxruntime": "model.onnx", "openvino": "model.xml"}


def message_to_dict(message: Message) -> dict[str, Any]:
    """Convert a protobuf message to a dict, with Triton's field names, numbers as numbers, and enums by name.

    Unset scalar fields have their default; unset messages and members of a oneof are absent.
    """
    fields: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            value_field = field.message_type.fields_by_name["value"]  # type: ignore[union-attr]  # maps have one
            fields[field.name] = {str(key): _to_plain_value(value_field, value[key]) for key in sorted(value)}
        elif field.is_repeated:
            fields[field.name] = [_to_plain_value(field, item) for item in value]
        elif field.name in _NEWER and not value:
            continue
        elif not field.has_presence or message.HasField(field.name):
            fields[field.name] = _to_plain_value(field, value)
    return fields


def fill_default_fields(config: ModelConfig, backend: str) -> None:
    """Fill absent fields of a model's configuration, in place, with the values that Triton reports."""
    if config.WhichOneof("scheduling_choice") == "dynamic_batching":
        batching = config.dynamic_batching
        if not batching.preferred_batch_size and config.max_batch_size:
            batching.preferred_batch_size.append(config.max_batch_size)
    if keeps_sequences(config):
        sequences = config.sequence_batching
        sequences.max_sequence_idle_microseconds = sequences.max_sequence_idle_microseconds or 1_000_000
        if (
            sequences.HasField("oldest")
            and not sequences.oldest.preferred_batch_size
            and config.max_batch_size
        ):
            sequences.oldest.preferred_batch_size.append(config.max_batch_size)
    if not config.version_policy.WhichOneof("policy_choice"):
        config.version_policy.latest.num_versions = 1
    if backend == "ensemble":
        config.platform = "ensemble"
        config.model_transaction_policy.decoupled = False
        for step in config.ensemble_scheduling.step:
            step.model_version = step.model_version or -1  # perf_analyzer requests each step's configuration
        return
    if config.runtime != PYTHON_RUNTIME:
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


def _to_plain_value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return message_to_dict(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value


_MAX_BATCH_SIZE, _THREADS = "default-max-batch-size", "intra_op_thread_count"
DEFAULT_MAX_BATCH_SIZE = 4  # as Triton's
DEFAULT_THREADS = 2


class Defaults(NamedTuple):
    """Values of `--backend-config` on the command line, for models whose config.pbtxt leaves them out."""

    settings: tuple[tuple[str, str, int], ...] = ()  # backend (empty: all), name, value

    def max_batch_size(self, backend: str) -> int:
        """Return the max_batch_size for a model with a dynamic batch dimension; 0 disables batching."""
        return self._get_value(backend, _MAX_BATCH_SIZE, DEFAULT_MAX_BATCH_SIZE)

    def threads(self, backend: str) -> int:
        """Return the number of CPU threads that an engine uses for one inference."""
        return self._get_value(backend, _THREADS, DEFAULT_THREADS) or DEFAULT_THREADS

    def _get_value(self, backend: str, name: str, otherwise: int) -> int:
        values = {setting_backend: value for setting_backend, key, value in self.settings if key == name}
        return values.get(backend, values.get("", otherwise))


NO_DEFAULTS = Defaults()


def parse_defaults(arguments: Sequence[str]) -> tuple[Defaults, list[str]]:
    """Parse the values of `--backend-config`: `BACKEND,NAME=VALUE`, or `NAME=VALUE` for all backends.

    Returns the defaults, and a warning for each setting without effect. Raises ConfigError for a malformed
    value.
    """
    parsed = list(map(_split_setting, arguments))
    settings = [
        (backend, name, int(value)) for backend, name, value in parsed if name in (_MAX_BATCH_SIZE, _THREADS)
    ]
    return Defaults(tuple(settings)), list(_describe_ineffective_settings(parsed))


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


def _describe_ineffective_settings(parsed: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    for backend, name, _ in parsed:
        if name not in (_MAX_BATCH_SIZE, _THREADS):
            setting = f"{backend},{name}" if backend else name
            yield (
                f"--backend-config={setting} has no effect: of a backend's settings {_MAX_BATCH_SIZE} and "
                f"{_THREADS} are known here"
            )


_NOT_HERE = {  # backends of Triton that this server lacks, with the alternative
    "tensorrt": "TensorRT plans run on the card that they were built for alone: serve the ONNX model",
    "tensorflow": "TensorFlow models are not run here: convert the model to ONNX with tf2onnx",
    "dali": "DALI pipelines need a GPU and NVIDIA's library: preprocess in a Python model",
    "fil": "forests are not run here: convert the model to ONNX with skl2onnx or hummingbird",
    "vllm": "vLLM's answers are streams, which are not served yet",
    "tensorrtllm": "TensorRT-LLM's answers are streams, which are not served yet",
}
_RUN_HERE = ("python", "identity", "ensemble")  # beside the engines


def check_config(config: ModelConfig, backend: str) -> list[str]:
    """Return an error message for each invalid or unsupported setting of a config.pbtxt; empty without any.

    Inputs and outputs are checked by `check_tensors`. No file of the model is read.
    """
    return [
        *_find_backend_errors(config, backend),
        *_find_cache_errors(config),
        *_find_instance_errors(config),
        *_find_batching_errors(config),
        *_find_metric_errors(config),
        *find_sequence_errors(config),
        *_find_empty_reshapes(config),
    ]


def check_tensors(config: ModelConfig, backend: str) -> list[str]:
    """Return error messages for invalid inputs and outputs of a configuration, or an unknown backend.

    The configuration must be complete: call this after absent fields are filled in from the model's file.
    """
    errors = [
        *_find_tensor_errors(config, "input", config.input),
        *_find_tensor_errors(config, "output", config.output),
    ]
    if backend not in (*_RUN_HERE, *find(ENGINES)):
        errors.append(
            f"unable to find backend library for backend '{backend}', try specifying runtime on the model "
            f"configuration; backends here are {', '.join((*_RUN_HERE, *find(ENGINES)))}"
        )
    return errors


def _find_backend_errors(config: ModelConfig, backend: str) -> Iterator[str]:
    platform = config.platform
    if not config.backend and platform not in ("", "ensemble", *_PLATFORMS, *_RUN_HERE, *find(ENGINES)):
        yield f"unexpected platform type '{platform}' for {config.name}"
    if config.backend in _PLATFORMS.values() and platform and _PLATFORMS.get(platform) != config.backend:
        yield f"unexpected 'platform' and 'backend' pair, got:{platform}, {config.backend}"
    if backend in _NOT_HERE:
        yield f"backend {backend!r}: {_NOT_HERE[backend]}"
    yield from find_ragged_errors(config)
    if config.model_transaction_policy.decoupled and backend != "python":
        yield (
            f"model_transaction_policy of {config.name}: models of the backend {backend!r} send one response "
            "to each request; remove decoupled, which Python models alone can use"
        )
    if config.sequence_batching.iterative_sequence and backend != "python":
        yield (
            f"iterative_sequence of {config.name}: models of the backend {backend!r} reschedule no request; "
            "remove iterative_sequence, which Python models alone can use"
        )
    if backend == "identity":
        yield from _find_delay_errors(config)
    if (min_count := min((group.count for group in config.instance_group), default=0)) < 0:
        yield f"instance_group of {config.name} has the count {min_count}; it is a number from 1 on"
    if config.max_batch_size < 0:
        yield f"'max_batch_size' must be non-negative value for {config.name}"


_IDENTITY_DELAYS = ("creation_delay_sec", "execute_delay_ms", "instance_wise_delay_multiplier")
_MAX_DELAY = 3_600_000  # of a number in these parameters: an hour in milliseconds


def get_identity_delays(config: Mapping[str, Any]) -> dict[str, int]:
    """Return an identity model's delays by name of the config.pbtxt parameter; 0 for an absent parameter.

    config: config.pbtxt as a dict that has passed `check_config`.
    """
    parameters = config["parameters"]
    return {
        name: int(parameters[name]["string_value"]) if name in parameters else 0 for name in _IDENTITY_DELAYS
    }


def _find_delay_errors(config: ModelConfig) -> Iterator[str]:
    for name in _IDENTITY_DELAYS:
        text = config.parameters[name].string_value if name in config.parameters else "0"
        if not re.fullmatch(r"\d{1,7}", text, re.ASCII) or int(text) > _MAX_DELAY:
            yield f"parameter {name} of {config.name} is {text[:99]!r}: write a number up to {_MAX_DELAY}"


def _find_cache_errors(config: ModelConfig) -> Iterator[str]:
    """Yield an error if a response cache is enabled for a model whose responses can't be cached."""
    kinds = {
        "sequence batching scheduler": keeps_sequences(config),
        "'decoupled' transaction policy": config.model_transaction_policy.decoupled,
    }
    for kind, is_used in kinds.items():
        if config.response_cache.enable and is_used:
            yield (
                f"Response Cache does not currently support model {config.name} with {kind}. Please disable "
                "the response cache."
            )


def _find_instance_errors(config: ModelConfig) -> Iterator[str]:
    if config.instance_group and all(group.passive for group in config.instance_group):
        yield f"all instance groups of model {config.name} are passive, and no instance would run requests"
    for number, group in enumerate(config.instance_group):
        about = f"instance group {group.name or f'{config.name}_{number}'} of model {config.name}"
        if group.profile:
            yield (
                f"{about} and platform {config.platform}specifies profile field which is only supported for "
                "TensorRT models"
            )
        if group.kind in (ModelInstanceGroup.KIND_CPU, ModelInstanceGroup.KIND_MODEL):
            if group.gpus:
                kind = ModelInstanceGroup.Kind.Name(group.kind)
                yield f"{about} has kind {kind} but specifies one or more GPUs"
            continue
        gpu_numbers = range(max(1, count_gpus()))  # without a GPU, number 0 is moved to the CPU
        for gpu in group.gpus:
            if gpu not in gpu_numbers:
                yield (
                    f"{about} specifies invalid or unsupported gpu id {gpu}. This machine has {count_gpus()} "
                    "GPUs, numbered from 0"
                )


def _find_metric_errors(config: ModelConfig) -> Iterator[str]:
    for control in config.model_metrics.metric_control:
        if not control.HasField("metric_identifier"):
            yield f"metric control must specify 'metric_identifier' for {config.name}"
        elif not control.metric_identifier.family:
            yield f"metric identifier must specify non-empty 'family' for {config.name}"
        if not control.HasField("histogram_options"):
            yield f"metric control must specify 'histogram_options' for {config.name}"
        elif not control.histogram_options.buckets:
            yield f"histogram options must specify non-empty 'buckets' for {config.name}"
        elif any(a >= b for a, b in pairwise(control.histogram_options.buckets)):
            yield f"histogram options must specify 'buckets' in ascending order for {config.name}"


def _find_empty_reshapes(config: ModelConfig) -> Iterator[str]:
    """Yield an error for each empty `reshape` of a model without batches, whose tensors can't be scalars."""
    for kind, tensors in (("input", config.input), ("output", config.output)):
        for tensor in tensors:
            if tensor.HasField("reshape") and not tensor.reshape.shape and not config.max_batch_size:
                yield (
                    f"model {kind} '{tensor.name}' cannot have empty reshape for non-batching model as "
                    f"scalar tensors are not supported for {config.name}"
                )


def _find_tensor_errors(
    config: ModelConfig, kind: str, tensors: Sequence[ModelInput] | Sequence[ModelOutput]
) -> Iterator[str]:
    for tensor in tensors:
        if not tensor.name:
            yield f"model {kind} must specify 'name' for {config.name}"
        if not tensor.data_type:
            yield f"model {kind} '{tensor.name}' must specify 'data_type' for {config.name}"
        if not tensor.dims:
            yield f"model {kind} '{tensor.name}' must specify 'dims' for {config.name}"
        if any(dim == 0 or dim < -1 for dim in tensor.dims):
            yield f"model {kind} '{tensor.name}' dimension {_DIMENSIONS} for {config.name}"
        if tensor.HasField("reshape") and (error := _find_reshape_error(tensor.dims, tensor.reshape.shape)):
            yield f"model {kind} '{tensor.name}' {error} for {config.name}"
        yield from _find_format_errors(config.name, tensor)


def _find_format_errors(model: str, tensor: ModelInput | ModelOutput) -> Iterator[str]:
    """Yield an error for a tensor format that does not fit the dims, or that only TensorRT supports."""
    if isinstance(tensor, ModelInput) and tensor.format and len(tensor.dims) != _IMAGE_AXES:
        yield f"model input NHWC/NCHW require 3 dims for {model}"
    if tensor.is_shape_tensor:
        yield f"shape tensors are only supported for TensorRT platform for {model}"
    if tensor.is_non_linear_format_io:
        yield f"Non-linear IO format is only supported for the TensorRT platform for {model}"


_IMAGE_AXES = 3  # of FORMAT_NHWC and FORMAT_NCHW


_DIMENSIONS = "must be integer >= 1, or -1 to indicate a variable-size dimension"


def _find_reshape_error(dims: Sequence[int], shape: Sequence[int]) -> str:
    """Return the error of a `reshape` whose element count differs from that of `dims`; empty if equal."""
    if any(dim == 0 or dim < -1 for dim in shape):
        return f"reshape dimensions {_DIMENSIONS}"
    counts, reshaped_counts = _count_elements(dims), _count_elements(shape)
    if len(counts) != len(reshaped_counts) and min(len(counts), len(reshaped_counts)) > 1:
        return "has different number of variable-size dimensions for dims and reshape"
    return "" if counts == reshaped_counts else "has different size for dims and reshape"


def _count_elements(dims: Sequence[int]) -> list[int]:
    """Return the products of the fixed dims before, between and after the variable dims (-1)."""
    counts = [1]
    for dim in dims:
        if dim == -1:
            counts.append(1)
        else:
            counts[-1] *= dim
    return counts


def _find_batching_errors(config: ModelConfig) -> Iterator[str]:
    if config.WhichOneof("scheduling_choice") != "dynamic_batching":
        return
    batching, max_batch_size = config.dynamic_batching, config.max_batch_size
    for size in batching.preferred_batch_size:
        if size <= 0:
            yield f"dynamic batching preferred size must be positive for {config.name}"
        elif size > max_batch_size:
            yield f"dynamic batching preferred size must be <= max batch size for {config.name}"
    if levels := batching.priority_levels:
        if not 0 < batching.default_priority_level <= levels:
            yield f"default priority level must be in range [1, {levels}] for {config.name}"
        if any(not 0 < level <= levels for level in batching.priority_queue_policy):
            yield f"priority queue policy must have priority level in range [1, {levels}] for {config.name}"
    if not batching.preserve_ordering:
        return
    if levels > 1:
        yield f"Only one priority level is allowed when 'preserve_ordering' is true for {config.name}"
    policies = [batching.default_queue_policy, *batching.priority_queue_policy.values()]
    if any(p.default_timeout_microseconds and p.timeout_action == _DELAY for p in policies):
        yield (
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for "
            f"{config.name}"
        )


_DELAY = ModelQueuePolicy.DELAY


_LENGTH = struct.Struct("<I")


def join_texts(texts: Iterable[bytes]) -> bytes:
    """Serialize texts in KServe's binary format of BYTES tensors: a length in four bytes, then the text."""
    return b"".join(_LENGTH.pack(len(text)) + text for text in texts)


def split_texts(data: bytes) -> list[bytes]:
    """Parse a BYTES tensor in KServe's binary format, the inverse of `join_texts`. Returns its texts.

    Raises ValueError for data that ends within a text or a length.
    """
    texts: list[bytes] = []
    at = 0
    while at + _LENGTH.size <= len(data):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(data, at)[0]
        texts.append(data[start:at])
    if at != len(data):
        raise ValueError(f"{len(data)} bytes do not hold texts, each after its length")
    return texts


_THREAD_PARAMETERS = {  # by backend: the parameters for the number of threads of a run
    "onnxruntime": ("intra_op_thread_count",),
    "pytorch": ("INTRA_OP_THREAD_COUNT",),
    "openvino": ("INFERENCE_NUM_THREADS", "CPU_THREADS_NUM"),
}
_ACCELERATOR_THREADS = "cpu_threads"  # the number of threads, as a parameter of Paddle's accelerators
_BASIC_LEVELS = (-1, 2)  # of `optimization.graph`: -1 basic, 2 none; no engine here can disable all
_PARALLEL = "1"  # of `execution_mode`


def get_engine_options(config: ModelConfig, backend: str, threads: int) -> dict[str, Any]:
    """Return the engine options of a config.pbtxt as keys of `local_service_conf` in config.yml.

    threads: default for the CPU threads of one inference.
    """
    parameters = {key: config.parameters[key].string_value for key in config.parameters}
    named = [parameters.get(key, "") for key in _THREAD_PARAMETERS.get(backend, ())]
    named += [
        accelerator.parameters[_ACCELERATOR_THREADS]
        for accelerator in _list_accelerators(config)
        if _ACCELERATOR_THREADS in accelerator.parameters
    ]
    options: dict[str, Any] = {
        "thread_num": next((int(value) for value in named if _is_count(value)), threads),
        "ir_optim": config.optimization.graph.level not in _BASIC_LEVELS,
    }
    if backend == "onnxruntime" and parameters.get("execution_mode") == _PARALLEL:
        count = parameters.get("inter_op_thread_count", "")
        options["inter_op_thread_num"] = int(count) if _is_count(count) else os.cpu_count() or 1
    if backend == "openvino" and parameters.get("HINT_BF16", "").lower() in ("yes", "true"):
        options["precision"] = "bf16"
    if backend == "pytorch":
        options |= _get_pytorch_options(parameters)
    return options


def _get_pytorch_options(parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters of Triton's PyTorch backend as keys of `local_service_conf`."""
    options: dict[str, Any] = {}
    if _is_count(count := parameters.get("INTER_OP_THREAD_COUNT", "")):
        options["inter_op_thread_num"] = int(count)
    if _is_true(parameters.get("DISABLE_OPTIMIZED_EXECUTION", "")):
        options["ir_optim"] = False
    if not _is_true(parameters.get("INFERENCE_MODE", "true")):
        options["inference_mode"] = False
    return options


def _is_true(text: str) -> bool:
    return text.strip().lower() in ("true", "on", "1")


def describe_ineffective_accelerators(config: ModelConfig, backend: str) -> Iterator[str]:
    """Yield a warning for each `execution_accelerators` entry of config.pbtxt that has no effect here."""
    for accelerator in _list_accelerators(config):
        if (backend, accelerator.name) not in (
            ("paddle", "mkldnn"),
            ("paddle", "paddle"),
            ("openvino", "openvino"),
        ):
            hint = ' (backend: "openvino" runs it by OpenVINO)' if accelerator.name == "openvino" else ""
            yield (
                f"Model {config.name}: its execution accelerator {accelerator.name!r} has no effect: "
                f"{backend} runs the model by itself{hint}"
            )


def describe_ineffective_settings(config: ModelConfig) -> Iterator[str]:
    """Yield a warning for each setting of config.pbtxt, other than accelerators, that has no effect here."""
    for path in config.model_operations.op_library_filename:
        yield (
            f"Model {config.name}: its operator library {path!r} (model_operations) has no effect: libraries "
            "of Triton's backends can't be loaded here"
        )
    for control in config.model_metrics.metric_control:
        family = control.metric_identifier.family
        if family != FIRST_RESPONSE or not config.model_transaction_policy.decoupled:
            yield (
                f"Model {config.name}: model_metrics of {family!r} has no effect: only decoupled models have "
                f"a histogram with buckets of their own, {FIRST_RESPONSE!r}"
            )
    for group in config.instance_group:
        about = f"Model {config.name}: its instance group {group.name!r}"
        if group.passive:
            yield f"{about} is passive, and has no instances here: they would run no request"
        for device in group.secondary_devices:
            yield (
                f"{about} names the secondary device KIND_NVDLA {device.device_id}, which has no effect: "
                "TensorRT alone uses it"
            )
    for tag in config.metric_tags:
        if not LABEL.fullmatch(tag):
            yield (
                f"Model {config.name}: metric_tags has the key {tag!r}, which can't be a label of /metrics: "
                "use letters, digits and _"
            )


LABEL = re.compile(r"[a-zA-Z0-9_]+")  # a key of `metric_tags`; its label begins with "_"


def _list_accelerators(config: ModelConfig) -> list[Any]:
    accelerators = config.optimization.execution_accelerators
    return [*accelerators.cpu_execution_accelerator, *accelerators.gpu_execution_accelerator]


def _is_count(text: str) -> bool:
    return text.isdecimal() and int(text) > 0


_BUILDS = {
    "onnxruntime": "onnxruntime-gpu",
    "paddle": "paddlepaddle-gpu",
    "pytorch": "torch",
}  # the distributions that run on GPUs
_GPU = 1  # of `device_type`


@cache
def count_gpus() -> int:
    """Return the number of NVIDIA GPUs of this machine, by their files /dev/nvidia0, /dev/nvidia1, ..."""
    names = (path.name for path in Path("/dev").glob("nvidia*"))
    return sum(re.fullmatch(r"nvidia\d+", name) is not None for name in names)


def requests_gpu(config: ModelConfig) -> bool:
    """Return whether config.pbtxt has an instance group of KIND_GPU."""
    return any(group.kind == ModelInstanceGroup.KIND_GPU for group in config.instance_group)


def find_cpu_reason(backend: str) -> str:
    """Return why models of this backend can't use a GPU on this machine; empty if they can."""
    if not count_gpus():
        return "there is no GPU here"
    build = _BUILDS.get(backend)
    if build is None:
        return "" if backend == "python" else f"the backend {backend} runs on the CPU alone"
    try:
        version = importlib.metadata.version(build)
    except importlib.metadata.PackageNotFoundError:
        return f"{build} is not installed"
    return f"{build} {version} is a build for the CPU" if version.endswith("+cpu") else ""


def move_to_cpu(config: ModelConfig) -> None:
    """Change all GPU instance groups of a configuration to CPU groups, in place.

    Python models read the instance groups, too, and must not use a GPU after this change.
    """
    for group in config.instance_group:
        if group.kind == ModelInstanceGroup.KIND_GPU:
            group.kind = ModelInstanceGroup.KIND_CPU
            del group.gpus[:]


def get_device_keys(config: ModelConfig, backend: str) -> dict[str, Any]:
    """Return the keys of `local_service_conf` (config.yml) that select a model's GPUs; empty for the CPU."""
    if not requests_gpu(config) or find_cpu_reason(backend):
        return {}
    named = [gpu for group in config.instance_group for gpu in group.gpus]
    return {"device_type": _GPU, "devices": ",".join(map(str, named or range(count_gpus())))}

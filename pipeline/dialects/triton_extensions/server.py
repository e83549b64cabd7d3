"""FRONT PROCESS: state that the HTTP and gRPC handlers of KServe v2 share.

V2Server has the models, their configuration and statistics, shared memory, and trace and log settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline import __version__
from pipeline.config.config_file import LoggingConfig, OpConfig, ServiceConfig
from pipeline.dialects.kserve import json_fields
from pipeline.dialects.kserve.models import KServeModel, KServeModels, parse_version
from pipeline.dialects.kserve.refusals import KServeRefusal
from pipeline.dialects.triton_extensions.repository_api import ModelControl
from pipeline.dialects.triton_extensions.shared_memory import SharedMemory
from pipeline.dialects.triton_extensions.trace_settings import TraceSettings
from pipeline.errors import UnknownVersion
from pipeline.front.metrics.access_log import AccessLog
from pipeline.front.metrics.metrics import CacheFigures, OpFigures, RunFigures
from pipeline.front.repository import Repository
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.front.upgrades.upgrades import Upgrades
from pipeline.models.tensor_spec import TensorSpec
from pipeline.process.log import change_level

_CHANNELS = (1, 3)  # grey and colour images
_INT32_MAX = (1 << 31) - 1
LOG_FORMATS = ("default", "ISO8601")
SERVER_NAME = "triton"  # Triton's example programs reject other names
_NO_SHARED_MEMORY = (  # Triton's message
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
)
_EXTENSIONS = (
    "classification",
    "model_repository",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


def model_config(model: KServeModel, config: ServiceConfig, answering_op: str) -> dict[str, Any]:
    """Return the configuration of a model as Triton's ModelConfig in JSON, derived from config.yml.

    answering_op: name of the Op (step) whose section of config.yml is used if the model is the whole service.
    """
    op = config.op[model.op or answering_op]
    max_batch_size = model.signature.max_batch_size
    document: dict[str, Any] = {
        "name": model.name,
        "platform": "",
        "backend": "python",
        "runtime": "",
        "version_policy": _version_policy(op),
        "max_batch_size": max_batch_size,
        "input": [_input(spec, max_batch_size) for spec in model.signature.inputs],
        "output": [_output(spec, max_batch_size) for spec in model.signature.outputs],
        "batch_input": [],
        "batch_output": [],
        "optimization": {
            "priority": "PRIORITY_DEFAULT",
            "input_pinned_memory": {"enable": True},
            "output_pinned_memory": {"enable": True},
            "gather_kernel_buffer_threshold": 0,
            "eager_batching": False,
        },
    }
    if op.batch_size > 1:
        document["dynamic_batching"] = {
            "preferred_batch_size": [],
            "max_queue_delay_microseconds": int(op.auto_batching_timeout * 1000),
            "preserve_ordering": False,
            "priority_levels": 0,
            "default_priority_level": 0,
            "priority_queue_policy": {},
        }
    group = {
        "name": model.name,
        "kind": "KIND_CPU",
        "count": op.concurrency,
        "gpus": [],
        "secondary_devices": [],
        "profile": [],
        "passive": False,
        "host_policy": "",
    }
    return {
        **document,
        "instance_group": [group],
        "default_model_filename": "model.py",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
    }


def _version_policy(op: OpConfig) -> dict[str, Any]:
    conf = op.local_service_conf
    if conf is None or conf.model_version is None:
        return {"latest": {"num_versions": 1}}
    return {"specific": {"versions": [conf.model_version]}}


def _input(spec: TensorSpec, max_batch_size: int) -> dict[str, Any]:
    return {
        "name": spec.name,
        "data_type": _data_type(spec),
        "format": _image_format(spec, max_batch_size),
        "dims": _dims(spec, max_batch_size),
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": False,
        "is_non_linear_format_io": False,
    }


def _output(spec: TensorSpec, max_batch_size: int) -> dict[str, Any]:
    return {
        "name": spec.name,
        "data_type": _data_type(spec),
        "dims": _dims(spec, max_batch_size),
        "label_filename": "labels.txt" if spec.labels else "",
        "is_shape_tensor": False,
        "is_non_linear_format_io": False,
    }


def _image_format(spec: TensorSpec, max_batch_size: int) -> str:
    """Return Triton's format of an input. Inputs with the dimensions of an image have an image format.

    Other inputs have FORMAT_NONE, which Triton's image clients reject.
    """
    dims = _dims(spec, max_batch_size)
    if len(dims) != 3 or spec.datatype == "BYTES":
        return "FORMAT_NONE"
    first, last = (length in _CHANNELS for length in (dims[0], dims[-1]))
    if first == last:
        return "FORMAT_NONE"
    return "FORMAT_NCHW" if first else "FORMAT_NHWC"


def _dims(spec: TensorSpec, max_batch_size: int) -> list[int]:
    return list(spec.shape[1:] if max_batch_size else spec.shape)


def _data_type(spec: TensorSpec) -> str:
    return "TYPE_STRING" if spec.datatype == "BYTES" else f"TYPE_{spec.datatype}"


def statistics(scheduler: Scheduler, models: KServeModels, model: KServeModel) -> dict[str, Any]:
    """Return Triton's statistics of a model: an element of `model_stats`, with counts and nanoseconds."""
    of_ops, requests = scheduler.metrics.of_ops, scheduler.requests(model.key)
    if requests is None:
        return _op_statistics(model, of_ops[model.op])
    answering = of_ops[models.answering_op(model)]
    ops = [of_ops[op] for op in (*models.ops(model), *models.joint_ops(model))]
    total = RunFigures()
    for op in ops:
        total.input_ns += op.shares.input_ns
        total.infer_ns += op.shares.infer_ns
        total.output_ns += op.shares.output_ns
    total.count = requests.succeeded
    total.count -= min(total.count, requests.cache.hits)
    rows = requests.rows if model.signature.max_batch_size else total.count
    durations = {
        "success": _duration(requests.succeeded, int(requests.succeeded_s * 1e9)),
        "fail": _duration(requests.failed, int(requests.failed_s * 1e9)),
        "queue": _duration(requests.succeeded, sum(op.queued_ns for op in ops)),
        **_compute_durations(total),
        **_cache_durations(requests.cache),
    }
    return _statistics_document(model, answering, int(requests.last_s * 1e3), rows, durations)


def _op_statistics(model: KServeModel, op: OpFigures) -> dict[str, Any]:
    shares, cache = op.shares, op.cache
    executed = shares.count - op.failed
    took_ns = op.queued_ns + shares.input_ns + shares.infer_ns + shares.output_ns
    durations = {
        "success": _duration(executed + cache.hits, took_ns + cache.hit_ns),
        "fail": _duration(op.failed, 0),
        "queue": _duration(op.queued + cache.hits, op.queued_ns),
        **_compute_durations(shares),
        **_cache_durations(cache),
    }
    rows = op.rows if model.signature.max_batch_size else max(0, executed)
    return _statistics_document(model, op, op.last_ms, rows, durations)


def _statistics_document(
    model: KServeModel, op: OpFigures, last_ms: int, rows: int, durations: dict[str, Any]
) -> dict[str, Any]:
    """Return the statistics of a model as JSON values.

    rows: number of inferred rows. A request to a model that does not batch counts as one row.
    """
    by_rows = op.by_rows
    if not model.signature.max_batch_size:
        by_rows = {1: _sum_runs(by_rows.values())} if by_rows else {}
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": last_ms,
        "inference_count": rows,
        "execution_count": op.runs,
        "inference_stats": durations,
        "response_stats": {},
        "batch_stats": [
            {"batch_size": rows, **_compute_durations(run)} for rows, run in sorted(by_rows.items())
        ],
        "memory_usage": [],
    }


def _sum_runs(runs: Iterable[RunFigures]) -> RunFigures:
    total = RunFigures()
    for run in runs:
        total.count += run.count
        total.input_ns += run.input_ns
        total.infer_ns += run.infer_ns
        total.output_ns += run.output_ns
    return total


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}


def _compute_durations(run: RunFigures) -> dict[str, Any]:
    return {
        "compute_input": _duration(run.count, run.input_ns),
        "compute_infer": _duration(run.count, run.infer_ns),
        "compute_output": _duration(run.count, run.output_ns),
    }


def _cache_durations(cache: CacheFigures) -> dict[str, Any]:
    return {
        "cache_hit": _duration(cache.hits, cache.hit_ns),
        "cache_miss": _duration(cache.misses, cache.miss_ns),
    }


class LogSettings:
    """Triton's log settings. In a server with a model repository, they also set the level of the log."""

    def __init__(self, logging: LoggingConfig, access_log: AccessLog | None) -> None:
        """Store the settings. logging: settings at the start.

        access_log: is told about changes of the level; None if changes have no effect on the log.
        """
        self._access_log = access_log
        self._settings: dict[str, bool | int | str] = {
            "log_file": "",
            "log_info": logging.level in ("DEBUG", "INFO"),
            "log_warning": logging.level != "ERROR",
            "log_error": True,
            "log_verbose_level": int(logging.level == "DEBUG"),
            "log_format": "ISO8601" if logging.format == "triton_iso8601" else "default",
        }

    def get_settings(self) -> dict[str, bool | int | str]:
        """Return a copy of the settings by name."""
        return dict(self._settings)

    def kinds(self) -> dict[str, type]:
        """Return the type of each setting by name."""
        return {name: type(value) for name, value in self._settings.items()}

    def update(self, settings: Mapping[str, bool | int | str]) -> None:
        """Change log settings. Each value has the type that `kinds` returns. Unknown settings are ignored.

        For an invalid value, raises KServeRefusal and changes nothing.
        """
        if "log_file" in settings:
            raise KServeRefusal(
                "log file location can not be updated through network protocol", "UNIMPLEMENTED"
            )
        form = settings.get("log_format", "default")
        if form not in LOG_FORMATS:
            raise KServeRefusal(f"invalid argument for --log_format, got: {str(form)[:100]}", "UNAVAILABLE")
        level = settings.get("log_verbose_level", 0)
        if not 0 <= int(level) <= _INT32_MAX:
            raise KServeRefusal(f"log_verbose_level is {level}, and {_INT32_MAX} at most")
        self._settings.update({name: value for name, value in settings.items() if name in self._settings})
        if self._access_log is not None:
            change_level(self._find_level())
            self._access_log.follow_level()

    def _find_level(self) -> str:
        """Return the log level that the settings enable, such as WARNING."""
        if self._settings["log_verbose_level"]:
            return "DEBUG"
        levels = {"INFO": self._settings["log_info"], "WARNING": self._settings["log_warning"]}
        return next((level for level, is_on in levels.items() if is_on), "ERROR")


def parse_log_settings(document: Any, kinds: Mapping[str, type]) -> dict[str, bool | int | str]:
    """Convert a JSON document with log settings to the argument of `LogSettings.update`.

    kinds: type of each setting. Raises KServeRefusal for values of other types.
    """
    if not isinstance(document, dict):
        raise json_fields.parse_error("", "attempt to access JSON non-object as object")
    settings: dict[str, bool | int | str] = {}
    for name, kind in kinds.items():
        value = document.get(name)
        if value is None:
            continue
        if kind is bool:
            settings[name] = json_fields.check_boolean(value, "")
        elif kind is int:
            settings[name] = json_fields.check_unsigned(value, "")
        else:
            settings[name] = json_fields.check_text(value)
    return settings


class V2Server:
    """Shared state of the HTTP and gRPC handlers of KServe v2 and Triton's extensions."""

    def __init__(self, scheduler: Scheduler, repository: Repository) -> None:
        config = scheduler.app.config
        self.scheduler = scheduler
        self.limits = config.limits
        self.models = KServeModels(scheduler, repository)
        self.control = ModelControl(self.models, repository, explicit=config.v2.model_control == "explicit")
        self.upgrades = Upgrades(scheduler, repository)
        if scheduler.app.repository is None:
            self.memory = SharedMemory(config.v2.shared_memory)
        else:
            self.memory = SharedMemory(config.v2.shared_memory, _NO_SHARED_MEMORY)
        self.trace = TraceSettings(scheduler.traces)
        access_log = None if scheduler.app.repository is None else scheduler.access_log
        self.logging = LogSettings(config.logging, access_log)

    def metadata(self) -> dict[str, Any]:
        """Return the server metadata of KServe v2 as JSON: name, version and extensions."""
        offered = [name for name in _EXTENSIONS if self.memory.offered or not name.endswith("shared_memory")]
        name, app = SERVER_NAME, self.scheduler.app
        if app.repository is not None:
            offered.insert(offered.index("model_repository") + 1, "model_repository(unload_dependents)")
            name = app.name  # from the option --id
        return {"name": name, "version": __version__, "extensions": offered}

    def get_metadata(self, name: str, version: str) -> dict[str, Any]:
        """Return the metadata of a model as JSON: versions, inputs and outputs.

        An empty version selects the newest version; the metadata then list all versions. Raises KServeRefusal
        and UnknownVersion (HTTP 404).
        """
        return self.models.find_model(name, version).metadata(() if version else self.models.versions(name))

    def config(self, name: str, version: str) -> dict[str, Any]:
        """Return the configuration of a model as Triton's ModelConfig in JSON.

        An empty version selects the newest version. Raises KServeRefusal and UnknownVersion (HTTP 404).
        """
        app = self.scheduler.app
        model = self.models.find_model(name, version)
        if model.config is not None:
            return dict(model.config)
        return model_config(model, app.config, self.models.answering_op(model))

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Return Triton's statistics of a model as JSON; for an empty name, of all loaded models.

        An empty version selects all loaded versions.

        Raises KServeRefusal (HTTP 400) for a model or version that is not loaded.
        """
        if version:
            parse_version(version)
        try:
            models = [self.models.find_model(name, version)] if name else []
        except UnknownVersion:
            raise KServeRefusal(f"requested model version is not available for model '{name}'") from None
        except KServeRefusal:
            raise KServeRefusal(f"requested model '{name}' is not available") from None
        if not version:
            models = [model for model in self.models.loaded() if name in ("", model.name)]
        return {"model_stats": [statistics(self.scheduler, self.models, model) for model in models]}

    def close(self) -> None:
        """Close the shared memory files that clients have registered. Called when the ports are closed."""
        self.memory.unregister()

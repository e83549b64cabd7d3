"""The service of a Triton model repository: `paddlewheel serve` builds it, and its workers load it again."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.api import service
from pipeline.api.app import App, RepositoryPlace, ServedModel, collect_models
from pipeline.api.buckets import Bucket
from pipeline.api.cache_settings import CacheSettings
from pipeline.api.examples import Examples
from pipeline.api.header_patterns import NO_PATTERNS, HeaderPatterns
from pipeline.api.metrics_settings import DEFAULT_METRICS, MetricsSettings
from pipeline.api.op import Op
from pipeline.api.restrictions import NO_RESTRICTIONS, Restrictions
from pipeline.api.run_resources import ResourceLimits
from pipeline.config.config_file import ServiceConfig, load_config
from pipeline.config.value_types import OFF
from pipeline.errors import ConfigError, StartFailed
from pipeline.process.environment import require_numpy_2
from pipeline.triton.config_file import NO_DEFAULTS, Defaults
from pipeline.triton.python_backend.other_models import OtherModels
from pipeline.triton.repository import ModelRepository, RepositoryContent
from pipeline.triton.repository_op import EnsembleOp, RepositoryOp

log = logging.getLogger(__name__)

_CONTROL: dict[str, str] = {"none": "none", "poll": "none", "explicit": "explicit"}
REQUEST_TIMEOUT_S = 600  # Triton has no request timeout
MAX_PENDING_REQUESTS = 16384  # Triton has no such limit
JSON_DEPTH = 100  # of bodies, as in Triton
_MERGED = ("dag", "limits", "v2")  # sections of config.yml with values of the command line


@dataclass(frozen=True)
class Options:
    """Parsed command-line options of `paddlewheel serve --model-repository`."""

    folders: tuple[Path, ...]  # model repositories
    buckets: tuple[Bucket, ...] = ()  # that are copied to some of the folders
    http_port: int | None = 8000
    grpc_port: int | None = 8001
    metrics_port: int | None = 8002
    metrics_address: str | None = None
    sagemaker_port: int | None = None
    strict: bool = False  # whether configurations must be complete
    control: str = "none"  # --model-control-mode: none, poll or explicit
    exit_on_error: bool | None = None  # True: any error ends the start; None: only if no model can be served
    load: tuple[str, ...] | None = None  # models to load at the start; None: all
    config: Mapping[str, Any] = field(default_factory=dict)  # config.yml
    strict_readiness: bool = True  # whether readiness requires that all models can be served
    poll_s: int = 0  # seconds between checks of the repository for changes; 0: never
    strict_devices: bool = False  # whether a model that requests an unusable GPU is an error
    install_requirements: bool = False  # whether pip installs the requirements.txt of Python models
    starts: int = 0  # workers that start at the same time; 0: the number of cores
    defaults: Defaults = NO_DEFAULTS  # for settings that a model's configuration leaves out
    backend_directory: Path | None = None  # with a folder for each backend that is written in Python
    notes: tuple[str, ...] = ()  # log lines
    restrictions: Restrictions = NO_RESTRICTIONS  # APIs that require a header
    header_patterns: HeaderPatterns = NO_PATTERNS  # headers that become parameters of requests
    grpc_arguments: tuple[tuple[str, int], ...] = ()  # gRPC channel arguments
    cache: CacheSettings | None = None  # of the response cache; None: the server has none
    metrics: MetricsSettings = DEFAULT_METRICS
    load_retries: int = 0  # further tries of a load that fails
    resource_limits: ResourceLimits | None = None  # of the rate limiter; None: the server has none
    namespacing: bool = False  # whether several repositories may hold models of one name


class RepositoryService(service.Service):
    """Serves the models of a Triton repository; the counterpart of a user's service script.

    options: None in a worker, which gets its App (the service's configuration) from the front process.
    """

    def __init__(self, name: str, options: Options | None = None) -> None:
        super().__init__(name)
        self._options = options

    def create_op(self, app: App, name: str) -> Op:
        """Create the Op that runs a model version, or all steps of an ensemble, in this worker.

        name: "model:version", or `ServedModel.joint_op`. Raises StartFailed if the App has no such model.
        """
        for model in app.models:
            if model.joint_op == name:
                return EnsembleOp(name, {op: self.create_op(app, op) for op in model.graph.ops})
            if model.op == name:
                headers = [(restriction.header, restriction.value) for restriction in app.restrictions.grpc]
                # A trial of candidates has models of other sources, without Python and without a repository.
                repository = app.repository
                other_models = OtherModels(
                    _find_grpc_address(app.config), headers, _build_resolver(repository, model)
                )
                return RepositoryOp(
                    name,
                    model,
                    other_models,
                    install_requirements=repository is not None and repository.install_requirements,
                    backend_directory=None if repository is None else repository.backend_path,
                )
        raise StartFailed(f"the repository has no model {name}")

    def as_app(self) -> App:
        """Read the repository, and return the service's models and configuration. Workers do not call it.

        Raises ConfigError as `_read_models` does, and for an invalid configuration.
        """
        assert self._options is not None
        require_numpy_2(np.__version__)
        options = self._options
        source = _open_repository(options)
        names, repository_error = _list_names(source, options)
        served = self._read_models(source, names, options)
        ports: dict[str, Any] = {
            "http_port": options.http_port,
            "rpc_port": options.grpc_port or False,
            "v2": {
                "metrics_port": options.metrics_port,
                "metrics_address": options.metrics_address,
                "sagemaker_port": options.sagemaker_port,
                "model_control": _CONTROL[options.control],
                **options.config.get("v2", {}),
            },
        }
        config = load_config(
            {
                **ports,
                "dag": {
                    "is_thread_op": False,
                    "http_errors": "status",
                    "request_timeout": REQUEST_TIMEOUT_S,
                    "max_pending_requests": MAX_PENDING_REQUESTS,
                    **options.config.get("dag", {}),
                },
                "limits": {"json_depth": JSON_DEPTH, **options.config.get("limits", {})},
                "op": served.sections,
                **{name: value for name, value in options.config.items() if name not in _MERGED},
            },
            replaced_sections=service.replaced_sections,
        )
        return App(
            name=self.name,
            models=collect_models(_LoadedModels(served.models)) if served.models else (),
            config=config,
            script=str(Path(__file__).resolve()),
            arguments=(self.name,),
            folder=str(Path.cwd()),
            examples=Examples({}, {}),
            module="pipeline.triton.service",
            repository=RepositoryPlace(
                tuple(map(str, options.folders)),
                options.strict,
                options.strict_readiness,
                options.poll_s,
                options.strict_devices,
                options.starts,
                tuple(options.defaults),
                options.grpc_arguments,
                options.install_requirements,
                options.cache,
                str(options.backend_directory or ""),
                options.metrics,
                options.load_retries,
                options.resource_limits,
                options.buckets,
                options.namespacing,
            ),
            notes=(*options.notes, *served.lines),
            exit_on_error=options.exit_on_error is True,
            choices=served.choices,
            restrictions=options.restrictions,
            header_patterns=options.header_patterns,
            repository_error=repository_error,
            unavailable={name: (why.version, why.reason) for name, why in served.unavailable.items()},
            without_versions=tuple(name for name, why in served.unavailable.items() if not why.has_versions),
        )

    def _read_models(
        self, source: ModelRepository, available: Sequence[str], options: Options
    ) -> RepositoryContent:
        """Read the models to load at the start, and log each model that can't be served.

        available: names of all models. Raises ConfigError for an unknown name of `--load-model`, for an
        unavailable model with `exit_on_error`, and if no model can be served. Model control "explicit", or a
        set `exit_on_error`, permits a start without models.
        """
        requested = available if options.load is None or "*" in options.load else options.load
        unknown = sorted(set(requested) - set(available))
        if unknown and options.exit_on_error is not False:
            raise ConfigError(
                f"--load-model {unknown[0]}: there is no such model, only {', '.join(available)}"
            )
        served = source.read_models(requested)
        for name, why in served.unavailable.items():
            label = f"{name} version {why.version}" if why.version else name
            log.error("Model %s is not served: %s", label, why.reason)
        if served.unavailable and options.exit_on_error:
            raise ConfigError(f"not all models can be served: {', '.join(served.unavailable)}")
        if not served.models and options.control == "none" and options.exit_on_error is None:
            folders = ", ".join(map(str, options.folders))
            raise ConfigError(
                f"{folders} holds no model that can be served: each is a folder with config.pbtxt and "
                "versions, as in models/bert/1/model.onnx"
            )
        return served


def _open_repository(options: Options) -> ModelRepository:
    return ModelRepository(
        options.folders,
        options.strict,
        options.strict_devices,
        options.install_requirements,
        options.defaults,
        joins_steps=options.control == "none",
        backend_directory=options.backend_directory,
        resource_limits=options.resource_limits,
        buckets=options.buckets,
        namespacing=options.namespacing,
    )


def _list_names(source: ModelRepository, options: Options) -> tuple[list[str], str]:
    """Return the names of all models, and an error message if the repository can't be read.

    Unless `exit_on_error` is False, raises ConfigError instead of returning a message.
    """
    try:
        source.copy_buckets()
        return source.names(), ""
    except ConfigError as exc:
        if options.exit_on_error is not False:
            raise
        log.error("%s", exc.message)
        return [], exc.message


def _find_grpc_address(config: ServiceConfig) -> str:
    """Return the gRPC address of this server at which Python models call other models.

    Empty without a gRPC port, with workers on other machines, and if the server requires TLS or API keys.
    """
    if config.nodes is not None:
        return ""
    if config.tls is not None or config.security.api_keys is not None or config.rpc_port == OFF:
        return ""
    address = config.address("rpc_port") or "127.0.0.1"
    return f"[{address}]:{config.rpc_port}" if ":" in address else f"{address}:{config.rpc_port}"


def _build_resolver(place: RepositoryPlace | None, model: ServedModel) -> Callable[[str], str] | None:
    """Return a function that resolves the name by which a Python model calls another model to an identifier.

    None without `--model-namespacing`, because names are then unique.
    """
    if place is None or not place.namespacing:
        return None
    source = ModelRepository(tuple(map(Path, place.folders)), namespacing=True)
    return partial(source.resolve, repository=Path(model.repository))


class _LoadedModels:
    """Adapts a list of models that are already read to the ModelSource protocol of `collect_models`."""

    def __init__(self, models: list[Any]) -> None:
        self._models = models

    def models(self) -> list[Any]:
        return self._models


if __name__ == "__main__":  # in a worker
    RepositoryService(sys.argv[1]).serve()

"""App: a user's service as data, passed from the script to the front and on to the workers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
from pydantic import BaseModel

from pipeline.api.examples import Examples
from pipeline.api.queue_policy import ModelBatching
from pipeline.api.restrictions import NO_RESTRICTIONS, Restrictions
from pipeline.api.served_models import ServedModel
from pipeline.config.config_file import ServiceConfig
from pipeline.plugins import Plugin
from pipeline.tuning.choice import Choice


class RepositoryPlace(NamedTuple):
    """The folders of a model repository, and the options of its server."""

    folders: tuple[str, ...]
    strict: bool = False  # a model's configuration must be complete
    strict_readiness: bool = True  # the server is not ready while a model can't be served
    poll_s: int = 0  # seconds between scans for changes; 0: never
    strict_devices: bool = False  # a model whose GPU is missing is not served
    starts: int = 0  # workers that start at the same time; 0: one per core
    defaults: tuple[Any, ...] = ()  # default settings of models, see `pipeline.triton.config_file`
    grpc_arguments: tuple[tuple[str, int], ...] = ()  # channel arguments of the gRPC port, by gRPC's names
    install_requirements: bool = False  # pip installs the requirements.txt of Python models


@dataclass(frozen=True)
class App:
    """A service as data, for the front and for the workers that run the script again."""

    name: str
    models: tuple[ServedModel, ...]  # the first answers requests that name no model
    config: ServiceConfig
    script: str  # the file that called run_service
    arguments: tuple[str, ...]  # its sys.argv[1:]
    folder: str  # its working directory
    examples: Examples  # requests that the Ops declare as answerable
    module: str = ""  # the script's module name, after `python -m app.web_service`
    raw_bodies: Mapping[str, str] = field(default_factory=dict)  # by media type, the input of a raw HTTP body
    described: Mapping[str, Any] = field(default_factory=dict)  # by Op, `Description.document` of its model
    repository: RepositoryPlace | None = None  # None: the models come from the script
    notes: tuple[str, ...] = ()  # remarks about the models, for the log
    exit_on_error: bool = True  # a failed Op ends the service; False: its models are unavailable
    unavailable: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Models that can't be served from the start: by name, the version (empty for all) and the reason."""
    dialects: tuple[Plugin, ...] = ()  # added by the front, for workers
    choices: Mapping[str, Choice] = field(default_factory=dict)  # by Op with `auto`, the fastest choice
    restrictions: Restrictions = NO_RESTRICTIONS  # APIs that require a header

    @property
    def default(self) -> ServedModel | None:
        """The model of requests that name none; None in a repository."""
        return self.models[0] if self.repository is None else None

    @cached_property
    def ops(self) -> tuple[str, ...]:
        """All Ops that run a step of a model, in the order of each DAG."""
        return tuple(dict.fromkeys(m.graph.nodes[node].op for m in self.models for node in m.graph.order))

    @property
    def requires_all_models(self) -> bool:
        """Whether the server is ready only while it can serve every model."""
        return self.repository is None or self.repository.strict_readiness

    @property
    def has_failed_versions(self) -> bool:
        """Whether a version of a model could not be loaded.

        A model without any version does not count, as in Triton.
        """
        return any(version for version, _ in self.unavailable.values())

    def get_batching(self, op: str) -> ModelBatching:
        """Return the batching settings of the model that this Op runs."""
        configured = (m for m in self.models if m.op == op and m.config is not None)
        return next((model.batching for model in configured), ModelBatching())

    def to_json(self) -> str:
        """Return the app as JSON, for `from_json`.

        Python's encoder: file names and arguments may hold bytes that are no UTF-8.
        """
        return json.dumps(msgspec.to_builtins(self, enc_hook=_encode_config))

    @classmethod
    def from_json(cls, text: str | bytes) -> App:
        """Build an app from the JSON of `to_json`."""
        return msgspec.convert(json.loads(text), cls, dec_hook=_decode_config)


def _encode_config(config: Any) -> Any:
    """Return a pydantic model as data.

    Without defaults: a worker's model may set keys that config.yml leaves out.
    """
    return config.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _decode_config(kind: type[BaseModel], fields: Any) -> BaseModel:
    return kind.model_validate(fields)


def write_app(app: App) -> int:
    """Write the app to a memfd that survives exec. Returns its descriptor."""
    fd = os.memfd_create("paddlewheel-app", 0)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(app.to_json().encode())
    os.lseek(fd, 0, os.SEEK_SET)
    os.set_inheritable(fd, True)
    return fd


def read_app(fd: int) -> App:
    """Read the app that `write_app` wrote, and close the descriptor."""
    with os.fdopen(fd, "rb") as file:
        return App.from_json(file.read())

"""App: a user's service reduced to data, handed from the script to the front and on to the workers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from pipeline.api.examples import Examples
from pipeline.api.restrictions import NO_RESTRICTIONS, Restrictions
from pipeline.api.served_models import ServedModel
from pipeline.config.config_file import ServiceConfig
from pipeline.plugins import Plugin
from pipeline.tuning.choice import Choice


class RepositoryPlace(NamedTuple):
    """A model repository: its folders.

    strict: a model's configuration may leave nothing out. strict_readiness: the server is not ready while a
    model can't be served. poll_s: seconds between looks at what has changed; 0: never. strict_devices: a
    model that can't have the GPU it asks for is not served. starts: workers that start at a time; 0: as many
    as there are cores. defaults: those of models, see `pipeline.triton.config_file`.
    grpc_arguments: settings of the gRPC port, by gRPC's names. install_requirements: pip installs what the
    requirements.txt of Python models names.
    """

    folders: tuple[str, ...]
    strict: bool = False
    strict_readiness: bool = True
    poll_s: int = 0
    strict_devices: bool = False
    starts: int = 0
    defaults: tuple[Any, ...] = ()
    grpc_arguments: tuple[tuple[str, int], ...] = ()
    install_requirements: bool = False


@dataclass(frozen=True)
class App:
    """What the front knows of a service, and what a worker needs to run the script again.

    name: of the service. models: what clients may ask for; the first is meant where a request names none.
    examples: requests that the Ops say are answered. raw_bodies: by media type the input that the body of an
    HTTP request is as a whole. described: what the models of Ops take and give, see `Description.document`.
    script: the file that called run_service; module: its name where it was started by that, as in
    `python -m app.web_service`; arguments: its sys.argv[1:]; folder: where it was started.
    repository: where the models come from, if that is a model repository; None: from the script.
    notes: what is to be told of them in the log.
    exit_on_error: the service ends where an Op can't be started; else its models alone are not served.
    unavailable: models that can't be served from the start, by name, each with its version, empty for all,
    and the reason.
    dialects: where they are, each a `Plugin`; the front adds them for workers. choices: what was measured to
    be the fastest, by the Ops whose sections say `auto`.
    restrictions: the APIs that answer only requests with a certain header.
    """

    name: str
    models: tuple[ServedModel, ...]
    config: ServiceConfig
    script: str
    arguments: tuple[str, ...]
    folder: str
    examples: Examples
    module: str = ""
    raw_bodies: Mapping[str, str] = field(default_factory=dict)
    described: Mapping[str, Any] = field(default_factory=dict)
    repository: RepositoryPlace | None = None
    notes: tuple[str, ...] = ()
    exit_on_error: bool = True
    unavailable: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    dialects: tuple[Plugin, ...] = ()
    choices: Mapping[str, Choice] = field(default_factory=dict)
    restrictions: Restrictions = NO_RESTRICTIONS

    @property
    def default(self) -> ServedModel | None:
        """The model that is meant where a request names none; None in a repository."""
        return self.models[0] if self.repository is None else None

    @cached_property
    def ops(self) -> tuple[str, ...]:
        """Every Op that runs a step of some model, those of one DAG in its order."""
        return tuple(dict.fromkeys(m.graph.nodes[node].op for m in self.models for node in m.graph.order))

    def to_json(self) -> str:
        """For `from_json`."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        # Without defaults: the model in a worker may have settings for keys that config.yml has not.
        config = self.config.model_dump(mode="json", by_alias=True, exclude_unset=True)
        models = [model.to_data() for model in self.models]
        choices = msgspec.to_builtins(self.choices)
        return json.dumps({**fields, "models": models, "config": config, "choices": choices})

    @classmethod
    def from_json(cls, text: str | bytes) -> App:
        """What `to_json` has written."""
        fields = json.loads(text)
        return cls(
            name=fields["name"],
            models=tuple(map(ServedModel.of_data, fields["models"])),
            config=ServiceConfig.model_validate(fields["config"]),
            script=fields["script"],
            arguments=tuple(fields["arguments"]),
            folder=fields["folder"],
            examples=Examples(*fields["examples"]),
            module=fields["module"],
            raw_bodies=fields["raw_bodies"],
            described=fields["described"],
            repository=None if fields["repository"] is None else RepositoryPlace(*fields["repository"]),
            notes=tuple(fields["notes"]),
            exit_on_error=fields["exit_on_error"],
            unavailable={name: tuple(told) for name, told in fields["unavailable"].items()},
            dialects=tuple(Plugin(*given) for given in fields["dialects"]),
            choices=msgspec.convert(fields["choices"], dict[str, Choice]),
            restrictions=msgspec.convert(fields["restrictions"], Restrictions),
        )


def write_app(app: App) -> int:
    """The app in a memfd that survives exec; returns its descriptor."""
    fd = os.memfd_create("paddlewheel-app", 0)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(app.to_json().encode())
    os.lseek(fd, 0, os.SEEK_SET)
    os.set_inheritable(fd, True)
    return fd


def read_app(fd: int) -> App:
    """What `write_app` wrote; closes the descriptor."""
    with os.fdopen(fd, "rb") as file:
        return App.from_json(file.read())

"""App: a user's service reduced to data, handed from the script to the front and on to the workers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from pipeline.api.dag import Dag, Node
from pipeline.api.examples import Examples
from pipeline.config.config_file import ServiceConfig
from pipeline.models.tensor_spec import Signature
from pipeline.plugins import Plugin
from pipeline.tuning.choice import Choice


@dataclass(frozen=True)
class App:
    """What the front knows of a service, and what a worker needs to run the script again.

    signature: the tensors that the Ops declare; examples: requests that they say are answered.
    script: the file that called run_service; module: its name where it was started by that, as in
    `python -m app.web_service`; arguments: its sys.argv[1:]; folder: where it was started.
    dialects: where they are, each a `Plugin`; the front adds them for workers. choices: what was measured to
    be the fastest, by the Ops whose sections say `auto`.
    """

    name: str
    nodes: tuple[Node, ...]
    response: str
    config: ServiceConfig
    script: str
    arguments: tuple[str, ...]
    folder: str
    signature: Signature
    examples: Examples
    module: str = ""
    dialects: tuple[Plugin, ...] = ()
    choices: Mapping[str, Choice] = field(default_factory=dict)

    @property
    def dag(self) -> Dag:
        first_arrival = self.config.dag.channel_recv_frist_arrive
        return Dag(self.nodes, self.response, first_arrival=first_arrival)

    def to_json(self) -> str:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        # Without defaults: the model in a worker may have settings for keys that config.yml has not.
        config = self.config.model_dump(mode="json", by_alias=True, exclude_unset=True)
        choices = msgspec.to_builtins(self.choices)
        return json.dumps({**fields, "config": config, "choices": choices})

    @classmethod
    def from_json(cls, text: str | bytes) -> App:
        fields = json.loads(text)
        return cls(
            name=fields["name"],
            nodes=tuple(Node(name, tuple(inputs), tuple(jumps)) for name, inputs, jumps in fields["nodes"]),
            response=fields["response"],
            config=ServiceConfig.model_validate(fields["config"]),
            script=fields["script"],
            arguments=tuple(fields["arguments"]),
            folder=fields["folder"],
            signature=Signature.of_data(fields["signature"]),
            examples=Examples(*fields["examples"]),
            module=fields["module"],
            dialects=tuple(Plugin(*given) for given in fields["dialects"]),
            choices=msgspec.convert(fields["choices"], dict[str, Choice]),
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

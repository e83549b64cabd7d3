"""Dialect: the plug-in interface of a request protocol, such as KServe v2 or OpenAI's embeddings API.

A dialect has HTTP and gRPC handlers in the front process, and encoders of responses in the worker processes.
A package adds a dialect as an entry point of the group `paddlewheel.dialects`; see `pipeline.plugins`. The
module of a Dialect imports its handlers in `front` and its encoders in `worker`, so that each process imports
only its part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from client.protos.pipeline_service_pb2 import Response
from pipeline.errors import ConfigError
from pipeline.messages.frames import Part, Unread, will_read
from pipeline.models.tensor_spec import TensorSpec
from pipeline.plugins import Plugin, call_plugin, load

if TYPE_CHECKING:  # a worker imports no part of the front
    import grpc

    from pipeline.front.http.connection import HttpApplication
    from pipeline.front.http.http_handler import HttpHandler
    from pipeline.front.repository import Repository
    from pipeline.front.scheduler.scheduler import Scheduler

Render = Callable[[Mapping[str, Any], Any, str, Sequence[TensorSpec]], list[Part]]
"""Encodes a response, in as many parts as the dialect's handler in the front expects.

Arguments: an Op's output, the request's response options, the model's version, the tensors that the Op
declares. Raises ServingError.
"""


class Form(NamedTuple):
    """A response format of a protocol, such as JSON or protobuf, with encoders that run in a worker."""

    render: Render
    # Encodes a Response built by the app's ResponseOp. None: `render` encodes the values of that Response.
    render_message: Callable[[Response], list[Part]] | None = None
    # Returns the names of the requested outputs, from the response options; empty: all. None: always all.
    list_outputs: Callable[[Any], Collection[str]] | None = None


class Dialect(Protocol):
    """A plug-in for a request protocol, with its HTTP paths and gRPC methods.

    A package's entry point names it.
    """

    name: str  # the name of the entry point

    def front(self, scheduler: Scheduler, repository: Repository) -> FrontPart:
        """Return the protocol's HTTP and gRPC handlers, for the front-end process.

        Called once, before ports open.
        """

    def worker(self) -> WorkerPart:
        """Return the encoders of responses and the decoders of inputs, for a worker process.

        Called once per worker, before the app's script runs.
        """


class SeparatePort(NamedTuple):
    """An additional HTTP port with its own application. A key in config.yml opens the port."""

    app: HttpApplication
    health: Collection[bytes]  # pages without an API key, if `security.open_health` is set
    find_api: Callable[[str], str]  # returns the restricted API of a path


@dataclass(frozen=True, kw_only=True)
class FrontPart:
    """The part of a protocol in the front-end process: handlers with their HTTP paths and gRPC methods."""

    http: HttpHandler | None = None
    prefixes: Collection[str] = ()  # "/v1/": paths below; "/v2": this path; "/": all other paths
    methods: Mapping[str, grpc.RpcMethodHandler[bytes, bytes]] = field(default_factory=dict)  # by full name
    apis: Mapping[str, str] = field(default_factory=dict)  # restricted API by method; default: inference
    open_pages: Collection[bytes] = ()  # pages without an API key, if `security.open_health` is set
    open_methods: Collection[str] = ()  # methods without an API key, if `security.open_health` is set
    open_files: int = 0  # maximum number of files that the dialect keeps open for clients
    ports: Mapping[str, SeparatePort] = field(default_factory=dict)  # by key, such as "v2.metrics_port"
    openapi: Callable[[], Mapping[str, Any]] = dict  # the members of `paths` in /openapi.json
    close: Callable[[], None] = lambda: None  # called when the ports are closed


@dataclass(frozen=True, kw_only=True)
class WorkerPart:
    """The part of a protocol in a worker: encoders of responses, and input types that the worker decodes."""

    forms: Mapping[str, Form]  # by name, such as "lines.text"
    unread: Collection[type[Unread]] = ()  # values that the front does not decode


def load_forms(dialects: Sequence[Plugin]) -> dict[str, Form]:
    """Return the response formats of all protocol plug-ins by name, and register their input decoders.

    Called in a worker. The front-end process passes the list of plug-ins to its workers: reading the metadata
    of all installed packages takes about 10 ms, and both must use the same plug-ins. Raises ConfigError for a
    plug-in that can't be loaded, and for a name that two formats have.
    """
    forms: dict[str, Form] = {}
    owners: dict[str, Plugin] = {}
    for plugin in dialects:
        part: WorkerPart = call_plugin(plugin, load(plugin).worker)
        for name, form in part.forms.items():
            if name in forms:
                raise ConfigError(
                    f"dialect {plugin.name} of {plugin.distribution} has a form {name!r}, as has dialect "
                    f"{owners[name].name} of {owners[name].distribution}; uninstall one of the two"
                )
            forms[name], owners[name] = form, plugin
        will_read(part.unread)
    return forms

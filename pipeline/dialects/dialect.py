"""Dialect: a way for clients to ask a service, as seen by the front that reads and the worker that answers.

A package adds one as an entry point of the group `paddlewheel.dialects` that names an object with this
protocol; see `pipeline.plugins`. Front and worker are processes of their own, and each imports its
part alone: the module with the Dialect imports both only in `front` and in `worker`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.dialects.forms import Form, WorkerPart

if TYPE_CHECKING:  # a worker imports no part of the front
    import grpc

    from pipeline.front.http.http_handler import HttpHandler
    from pipeline.front.repository import Repository
    from pipeline.front.scheduler.scheduler import Scheduler

__all__ = ["Dialect", "Form", "FrontPart", "WorkerPart"]


class Dialect(Protocol):
    """A way for clients to ask a service: the object that an entry point names."""

    name: str  # the entry point's own

    def front(self, scheduler: Scheduler, repository: Repository) -> FrontPart:
        """Return the handlers of the front. Called once, before the ports are opened."""

    def worker(self) -> WorkerPart:
        """Return the decoders and renderers of a worker. Called once in each, before the script is run."""


@dataclass(frozen=True, kw_only=True)
class FrontPart:
    """The front's half of a dialect: its handlers, and the paths and gRPC methods they answer."""

    http: HttpHandler | None = None
    prefixes: Collection[str] = ()  # its paths: "/v1/" is all below, "/v2" that path alone, "/" all others
    methods: Mapping[str, grpc.RpcMethodHandler[bytes, bytes]] = field(default_factory=dict)  # by full name
    apis: Mapping[str, str] = field(default_factory=dict)  # of methods, for restrictions; else inference
    # Those that are asked without an API key where `security.open_health` says so:
    open_pages: Collection[bytes] = ()
    open_methods: Collection[str] = ()
    open_files: int = 0  # that it keeps open for clients, at the most
    openapi: Callable[[], Mapping[str, Any]] = dict  # the members of `paths` in /openapi.json
    close: Callable[[], None] = lambda: None  # called when the ports are closed

"""Dialects: what all of them bring to the front of one service, joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.api.restrictions import INFERENCE
from pipeline.dialects.dialect import Dialect, FrontPart
from pipeline.errors import ConfigError
from pipeline.front.http.http_handler import HttpHandler
from pipeline.front.repository import Repository
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.plugins import Plugin, call_plugin, load


class Dialects:
    """The front's parts of all dialects as if they were one `FrontPart`."""

    def __init__(self, plugins: Sequence[Plugin], scheduler: Scheduler, repository: Repository) -> None:
        """Raises ConfigError for a dialect that can't be loaded, and for what two of them answer."""
        self._parts: list[FrontPart] = []
        self.handlers: dict[str, HttpHandler] = {}  # of HTTP, by prefix
        self.methods: dict[str, Any] = {}  # of gRPC, by full name
        self.method_apis: dict[str, str] = {}  # by the method's full name
        self.open_files = 0  # for clients, at the most
        self.open_pages: list[bytes] = []
        self.open_methods: list[str] = []
        owners: dict[str, Plugin] = {}
        for plugin in plugins:
            dialect: Dialect = load(plugin)
            part = call_plugin(plugin, dialect.front, scheduler, repository)
            for path in (*part.prefixes, *part.methods):
                other = owners.setdefault(path, plugin)
                if other is not plugin:
                    raise ConfigError(
                        f"dialects {other.name} of {other.distribution} and {plugin.name} of "
                        f"{plugin.distribution} both answer at {path}; uninstall one of the two"
                    )
            if part.http is not None:
                self.handlers |= dict.fromkeys(part.prefixes, part.http)
            self.methods |= part.methods
            self.method_apis |= dict.fromkeys(part.methods, INFERENCE) | dict(part.apis)
            self.open_pages += part.open_pages
            self.open_methods += part.open_methods
            self.open_files += part.open_files
            self._parts.append(part)

    def openapi(self) -> Mapping[str, Any]:
        """The members of `paths` in /openapi.json, but for the server's own."""
        return {path: operation for part in self._parts for path, operation in part.openapi().items()}

    def close(self) -> None:
        for part in self._parts:
            part.close()

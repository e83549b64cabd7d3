"""The handlers of all installed dialects, as the front and its shards use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.api.restrictions import INFERENCE
from pipeline.dialects.dialect import Dialect, FrontPart, SeparatePort
from pipeline.errors import ConfigError
from pipeline.front.http.http_handler import HttpHandler
from pipeline.front.repository import Repository
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.plugins import Plugin, call_plugin, load


class Dialects:
    """HTTP handlers and gRPC methods of all installed dialects (request formats such as KServe v2)."""

    def __init__(self, plugins: Sequence[Plugin], scheduler: Scheduler, repository: Repository) -> None:
        """Load the dialects of the installed plugins.

        Raises ConfigError for a dialect that can't be loaded, and for a path that two dialects serve.
        """
        self._parts: list[FrontPart] = []
        self.handlers: dict[str, HttpHandler] = {}  # HTTP handlers by prefix
        self.methods: dict[str, Any] = {}  # gRPC methods by full name
        self.method_apis: dict[str, str] = {}  # restricted API by full name of the method
        self.open_files = 0  # maximum number of files kept open for clients
        self.open_pages: list[bytes] = []
        self.open_methods: list[str] = []
        self.ports: dict[str, SeparatePort] = {}  # by key in config.yml
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
            self.ports |= part.ports
            self._parts.append(part)

    def openapi(self) -> Mapping[str, Any]:
        """Return the paths of all dialects, as the `paths` object of /openapi.json."""
        return {path: operation for part in self._parts for path, operation in part.openapi().items()}

    def close(self) -> None:
        """Release the resources that the dialects hold for clients. Called when the ports are closed."""
        for part in self._parts:
            part.close()

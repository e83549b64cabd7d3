"""The HTTP routes of KServe v2's shared memory, trace settings and log settings."""

from __future__ import annotations

import re
from typing import Any

from pipeline.api.restrictions import LOGGING, SHARED_MEMORY, TRACE
from pipeline.dialects.kserve import json_fields
from pipeline.dialects.kserve.refusals import KServeRefusal
from pipeline.dialects.kserve_v2.server import V2Server
from pipeline.dialects.kserve_v2.trace_settings import log_settings_in, trace_settings_in
from pipeline.front.http.connection import HttpRequest
from pipeline.front.http.cross_site import refuse_cross_site
from pipeline.front.http.http_handler import Refused, check_method

_SHARED_MEMORY = re.compile(
    r"/v2/(?P<kind>system|cuda)sharedmemory(?:/region/(?P<region>[^/]+))?/"
    r"(?P<action>status|register|unregister)"
)
_TRACE = re.compile(r"/v2(?:/models/(?P<model>[^/]+))?/trace/setting")
_LOG_SETTINGS = "/v2/logging"


def find_extension_api(path: str) -> str | None:
    """Return the API of an extension's path; None for other paths."""
    if _SHARED_MEMORY.fullmatch(path):
        return SHARED_MEMORY
    if _TRACE.fullmatch(path):
        return TRACE
    return LOGGING if path == _LOG_SETTINGS else None


class HttpExtensions:
    """Answers what lies outside of models and repository."""

    def __init__(self, server: V2Server) -> None:
        self._server = server

    def document(self, request: HttpRequest) -> Any:
        """What is answered, None for an empty body. Raises ServingError, Refused for other paths."""
        shared_memory = _SHARED_MEMORY.fullmatch(request.path)
        if shared_memory is not None:
            return self._shared_memory(request, **shared_memory.groupdict())
        trace = _TRACE.fullmatch(request.path)
        if trace is not None:
            return self._trace(request, trace["model"] or "")
        if request.path == _LOG_SETTINGS:
            return self._logging(request)
        raise Refused(404, request)

    def _shared_memory(self, request: HttpRequest, kind: str, region: str | None, action: str) -> Any:
        check_method(request, *(("GET", "HEAD") if action == "status" else ("POST",)))
        memory, name = self._server.memory, region or ""
        if action != "status":
            refuse_cross_site(request)
        memory.admit(request.peer)
        if action == "status":
            return memory.status(name) if kind == "system" else memory.cuda_status(name)
        if action == "unregister":
            if kind == "system":
                memory.unregister(name)
        elif kind == "system":
            memory.register(name, *registered_in(json_fields.parse(request.body)))
        else:
            _check_fields(json_fields.parse(request.body), "raw_handle", "byte_size", "device_id")
            memory.refuse_cuda(name)
        return None

    def _trace(self, request: HttpRequest, model: str) -> Any:
        check_method(request, "GET", "HEAD", "POST")
        if model and not self._server.models.is_ready(model):
            raise KServeRefusal(f"Request for unknown model : {model}")
        if request.method == "POST":
            refuse_cross_site(request)
            given = trace_settings_in(json_fields.parse(request.body))
            self._server.trace.update(given, model)
        return self._server.trace.told(model)

    def _logging(self, request: HttpRequest) -> Any:
        check_method(request, "GET", "HEAD", "POST")
        settings = self._server.logging
        if request.method == "POST":
            refuse_cross_site(request)
            settings.update(log_settings_in(json_fields.parse(request.body), settings.kinds()))
        return settings.told()


def registered_in(document: Any) -> tuple[str, int, int]:
    """Key, offset and size of a JSON request. Raises KServeRefusal."""
    _check_fields(document, "key", "byte_size")
    key = json_fields.as_text(document["key"])
    offset, size = (json_fields.unsigned(document.get(name, 0), "") for name in ("offset", "byte_size"))
    return key, offset, size


def _check_fields(document: Any, *names: str) -> None:
    for name in names:
        if not isinstance(document, dict) or name not in document:
            raise KServeRefusal(f"Shared memory register request has no '{name}' field")

"""FRONT PROCESS: the port of Amazon SageMaker: /ping, /invocations of one model, and /models of several."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

from pipeline.api.restrictions import HEALTH, INFERENCE, MODEL_REPOSITORY
from pipeline.dialects.dialect import SeparatePort
from pipeline.dialects.kserve import json_fields
from pipeline.dialects.kserve.refusals import KServeRefusal
from pipeline.dialects.kserve_v2.http_routes import V2Http
from pipeline.dialects.triton_extensions.repository_api import ModelControl
from pipeline.dialects.triton_extensions.server import V2Server
from pipeline.errors import ConfigError, ServingError
from pipeline.front.dag_run import Request
from pipeline.front.http.connection import HttpRequest
from pipeline.front.http.http_handler import JSON, READING, HandlerApp, check_method, header

PORT = "v2.sagemaker_port"  # key in config.yml
PING, INVOCATIONS = "/ping", "/invocations"
_MODELS = re.compile(r"/models(?:/(?P<model>[^/]+)(?P<invoke>/invoke)?)?")
BINARY_TYPE = "application/vnd.sagemaker-triton.binary+json;json-header-size="
_MODEL = "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
_PING_MODE = "SAGEMAKER_TRITON_PING_MODE"
_INFERENCE_TYPE = "SAGEMAKER_TRITON_INFERENCE_TYPE"
_CHOICES = {_PING_MODE: ("ready", "live"), _INFERENCE_TYPE: ("infer", "generate", "generate_stream")}
CONFLICT = 409


class SageMakerSettings(NamedTuple):
    """Settings of the port for Amazon SageMaker, from Triton's environment variables."""

    model: str  # model of /invocations; empty: the only model of the server
    ping_mode: str  # "ready" or "live"
    inference_type: str  # "infer", "generate" or "generate_stream"


def read_settings(environment: Mapping[str, str]) -> SageMakerSettings:
    """Return the SageMaker settings in environment variables. Raises ConfigError for an unknown value."""
    chosen = {name: environment.get(name) or choices[0] for name, choices in _CHOICES.items()}
    for name, value in chosen.items():
        if value not in _CHOICES[name]:
            raise ConfigError(f"{name} is {value!r}: write {' or '.join(_CHOICES[name])}")
    return SageMakerSettings(environment.get(_MODEL, ""), chosen[_PING_MODE], chosen[_INFERENCE_TYPE])


def open_sagemaker(server: V2Server) -> Mapping[str, SeparatePort]:
    """Return the HTTP port for Amazon SageMaker, by its key in config.yml.

    Raises ConfigError for invalid environment variables.
    """
    handler = SageMakerHttp(server, read_settings(os.environ))
    app = HandlerApp(server.scheduler, handler, handler.parse_request, has_body)
    return {PORT: SeparatePort(app, (PING.encode(),), find_api)}


def find_api(path: str) -> str:
    """Return the API of a path, as Triton's --http-restricted-api names it."""
    if path == PING:
        return HEALTH
    match = _MODELS.fullmatch(path)
    return INFERENCE if match is None or match["invoke"] else MODEL_REPOSITORY


def has_body(path: str) -> bool:
    """Return whether requests to a path of the port may have a body."""
    match = _MODELS.fullmatch(path)
    return path == INVOCATIONS or (match is not None and (not match["model"] or bool(match["invoke"])))


class SageMakerHttp(V2Http):
    """HTTP handler of Amazon SageMaker's paths. Bodies are those of KServe v2, uncompressed.

    If a body has raw tensors, its content type contains the length of its JSON document.
    """

    name = "sagemaker-http"
    decodes = False

    def __init__(self, server: V2Server, settings: SageMakerSettings) -> None:
        super().__init__(server)
        self._settings = settings
        self._forwarded = None  # as in Triton
        self._multi = MultiModel(server.control)

    def parse_request(self, request: HttpRequest) -> Request | None:
        """Parse a request to this port, as `V2Http._read` does for the paths below /v2."""
        if request.path == INVOCATIONS:
            check_method(request, "POST")
            return self._infer(request, self._find_model_name(), "", self._settings.inference_type)
        if (match := _MODELS.fullmatch(request.path)) is not None:
            name = unquote(match["model"] or "")
            if match["invoke"]:
                check_method(request, "POST")
                self._multi.describe_model(name)
                return self._infer(request, name, "", self._settings.inference_type)
            self._answer_about_models(request, name)
            return None
        if request.path != PING:
            raise KServeRefusal(
                f"the port of SageMaker serves {PING}, {INVOCATIONS} and /models, not {request.path}"
            )
        check_method(request, *READING)
        if self._settings.ping_mode == "ready":
            self._readiness()
        self._answer_json(request, None)
        return None

    def _answer_about_models(self, request: HttpRequest, name: str) -> None:
        """Respond to a request to /models or /models/NAME, which list, load or unload models."""
        if not name:
            check_method(request, "GET", "POST")
            if request.method == "POST":
                self._answer_at_end(request, partial(self._multi.add_model, request.body))
            else:
                self._answer_json(request, self._multi.list_models())
            return
        check_method(request, "GET", "DELETE")
        if request.method == "DELETE":
            self._answer_at_end(request, partial(self._multi.remove_model, name))
        else:
            self._answer_json(request, self._multi.describe_model(name))

    def _find_model_name(self) -> str:
        if self._settings.model:
            return self._settings.model
        names = {model.name for model in self._server.models.loaded()}
        if len(names) != 1:
            raise KServeRefusal(
                f"the server has {len(names)} models: set {_MODEL} to the model of {INVOCATIONS}"
            )
        return names.pop()

    def find_api(self, path: str) -> str:
        return find_api(path)

    def _find_action(self, request: HttpRequest) -> str:
        return self._settings.inference_type if find_api(request.path) == INFERENCE else ""

    def _find_length(self, request: HttpRequest) -> str:
        content_type = header(request, b"content-type")
        return content_type.removeprefix(BINARY_TYPE) if content_type.startswith(BINARY_TYPE) else ""

    def _encode_binary_head(self, length: int) -> bytes:
        return f"content-type: {BINARY_TYPE}{length}\r\n".encode()

    def _get_error_type(self, request: HttpRequest, error: ServingError) -> bytes:
        return JSON


class MultiModel:
    """Models that SageMaker has loaded from folders outside the model repository, by name."""

    def __init__(self, control: ModelControl) -> None:
        self._control = control
        self._urls: dict[str, str] = {}

    def list_models(self) -> dict[str, Any]:
        """Return the JSON document of `GET /models`."""
        return {"models": [self.describe_model(name) for name in sorted(self._urls)]}

    def describe_model(self, name: str) -> dict[str, str]:
        """Return the JSON document of `GET /models/NAME`. Raises KServeRefusal (404) for an unknown model."""
        if name not in self._urls:
            raise KServeRefusal(f"model '{name}' is not loaded", "NOT_FOUND")
        return {"modelName": name, "modelUrl": self._urls[name]}

    async def add_model(self, body: bytes) -> None:
        """Load the model that a `POST /models` names. Raises KServeRefusal (409) if it is already loaded."""
        document = json_fields.parse_json(body)
        fields = document if isinstance(document, dict) else {}
        name, url = fields.get("model_name"), fields.get("url")
        if not isinstance(name, str) or not isinstance(url, str):
            raise KServeRefusal('the body of POST /models is {"model_name": NAME, "url": FOLDER}')
        if name in self._urls:
            error = KServeRefusal(f"model '{name}' is loaded", "ALREADY_EXISTS")
            error.http_status = CONFLICT
            raise error
        self._control.register(name, url)
        self._urls[name] = url
        try:
            await self._control.load(name, {})
        except BaseException:
            self._forget(name)
            raise

    async def remove_model(self, name: str) -> None:
        """Unload the model of a `DELETE /models/NAME`. Raises KServeRefusal (404) for an unknown model."""
        self.describe_model(name)
        await self._control.unload(name, {})
        self._forget(name)

    def _forget(self, name: str) -> None:
        self._urls.pop(name, None)
        self._control.unregister(name)

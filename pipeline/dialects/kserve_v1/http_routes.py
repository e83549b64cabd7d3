"""The HTTP routes of KServe v1."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import msgspec

from pipeline.api.examples import MAX_EXAMPLE_CHARS, build_row
from pipeline.api.request_options import RequestOptions
from pipeline.api.restrictions import HEALTH, INFERENCE, METADATA
from pipeline.dialects.json_outline import Outline, outline_aside
from pipeline.dialects.kserve.json_fields import checked_parameter, sendable
from pipeline.dialects.kserve.models import KServeModel, KServeModels
from pipeline.dialects.kserve.refusals import error_body
from pipeline.dialects.kserve.unread import as_message
from pipeline.dialects.kserve_v1.instances import MAX_ELEMENTS, parse
from pipeline.dialects.kserve_v1.response_options import AS_ANSWERED, V1ResponseOptions
from pipeline.dialects.kserve_v1.response_options import JSON as JSON_FORM
from pipeline.errors import ServingError
from pipeline.front.dag_run import Request
from pipeline.front.http.connection import HttpRequest
from pipeline.front.http.http_handler import (
    JSON,
    SMALL_BYTES,
    HttpHandler,
    Refused,
    check_method,
    raw_input,
    refusal_headers,
)
from pipeline.front.scheduler.scheduler import Scheduler

_MODEL = re.compile(r"/v1/models/(?P<model>[^/]+?)(?:/versions/(?P<version>\d+))?(?P<verb>:[a-z]+)?")
_LIST = "/v1/models"
_ROUTES = "GET /v1/models, GET /v1/models/{name}, POST /v1/models/{name}:predict"
_CLIENTS_MISTAKES = (400, 413)
_json = msgspec.json.encode


class V1Http(HttpHandler):
    """Answers every request below /v1."""

    name = "v1-http"

    def __init__(self, scheduler: Scheduler, models: KServeModels) -> None:
        super().__init__(scheduler)
        self._models = models
        self._limits = scheduler.app.config.limits
        self._created = int(time.time())

    def _read(self, request: HttpRequest) -> Request | None:
        match = _MODEL.fullmatch(request.path)
        if match is not None and match["verb"] == ":predict":
            check_method(request, "POST", list_allowed=True)
            model = self._models.find(match["model"], match["version"] or "")
            return self._asked(request, model, match["version"] or "")
        if request.path == _LIST:
            check_method(request, "GET", "HEAD", list_allowed=True)
            names = list(dict.fromkeys(model.name for model in self._models.all()))
            listed = {"object": "list", "data": [self._openai_model(name) for name in names]}
            request.respond(200, JSON, _json({"models": names, **listed}))
        elif match is not None and not match["verb"]:
            check_method(request, "GET", "HEAD", list_allowed=True)
            self._describe_model(request, self._models.find(match["model"], match["version"] or ""))
        else:
            raise Refused(404, request, f"there is nothing at {request.path}; there are {_ROUTES}")
        return None

    def find_api(self, path: str) -> str:
        if path == _LIST:
            return METADATA
        model = _MODEL.fullmatch(path)
        return INFERENCE if model is None or model["verb"] else HEALTH

    def _describe_model(self, request: HttpRequest, model: KServeModel) -> None:
        ready = self._models.ready(model)
        description = {"name": model.name, "ready": ready, **self._openai_model(model.name)}
        request.respond(200 if ready else 503, JSON, _json(description))

    def _openai_model(self, name: str) -> dict[str, Any]:
        """Return a model as OpenAI's clients parse it. KServe's clients ignore these members."""
        return {"id": name, "object": "model", "created": self._created, "owned_by": "paddlewheel"}

    def _asked(
        self, request: HttpRequest, model: KServeModel, version: str, outline: Outline | None = None
    ) -> Request | None:
        """Return the request in a body, or None while a large body is scanned."""
        raw = None if request.body[:1] == b"{" else self._raw(request, model)
        if raw is None and outline is None and len(request.body) > SMALL_BYTES:
            outline_aside(
                request.body,
                self._limits,
                lambda done: self.handle(
                    request, lambda: self._asked(request, model, version, done.result())
                ),
                MAX_ELEMENTS,
            )
            return None
        prediction = self._parsed(request, model, outline) if raw is None else _of_raw(raw, model)
        prediction.model, prediction.model_version = model.key, model.version
        prediction.deadline = self._scheduler.deadline(began=request.began)
        prediction.version = version
        return prediction

    def _raw(self, request: HttpRequest, model: KServeModel) -> dict[str, Any] | None:
        takes = not model.op and not model.takes_messages
        return raw_input(request, self._scheduler.app.raw_bodies if takes else {})

    def _parsed(self, request: HttpRequest, model: KServeModel, outline: Outline | None) -> Request:
        instances = parse(request.body, model.signature, self._limits, outline)
        inputs: dict[str, Any] = dict(instances.fields)
        if model.takes_messages:
            inputs = as_message(model.name, inputs)
        prediction = Request(model.name, "predict", inputs, form=JSON_FORM)
        prediction.wish = V1ResponseOptions(instances.rows, instances.by_columns)
        prediction.rows = max(1, instances.rows)
        if instances.parameters:
            parameters = {sendable(n): checked_parameter(n, v) for n, v in instances.parameters.items()}
            prediction.options = RequestOptions(parameters=parameters)
        return prediction

    def _usage(self, path: str) -> str:
        """A body that the model at this path takes, for who sent another."""
        match = _MODEL.fullmatch(path)
        if match is None or not match["verb"]:
            return ""
        try:
            model = self._models.find(match["model"], match["version"] or "")
        except ServingError:  # that is what it was refused for
            return ""
        examples = self._scheduler.app.examples
        if model.signature.open:
            row: dict[str, Any] | None = examples.key_values or {"...": "..."}
        else:
            row = build_row(model.signature, {} if model.op else examples.row)
        example = {"instances": [row]}
        body = row and json.dumps(
            example if model.op else examples.add_parameters(example), ensure_ascii=False
        )
        if not body or len(body) > MAX_EXAMPLE_CHARS:
            return (
                f"; the fields of an instance are {', '.join(spec.name for spec in model.signature.inputs)}"
            )
        return f"; a valid body: {body}"

    def refusal(self, error: ServingError) -> tuple[bytes, bytes]:
        return JSON, error_body(error.message)

    def refuse(self, request: HttpRequest, error: ServingError, head: bytes = b"") -> None:
        self._access_log.refused(self.name, error, request.peer)
        head += JSON + refusal_headers(error)
        message = error.message
        if error.http_status in _CLIENTS_MISTAKES:
            message += self._usage(request.path)
        request.respond(error.http_status, head, error_body(message))


def _of_raw(inputs: dict[str, Any], model: KServeModel) -> Request:
    """The request whose body is an input as a whole, of as many instances as its answer has rows."""
    response_options = V1ResponseOptions(AS_ANSWERED if model.signature.has_rows else 0, by_columns=False)
    return Request(model.name, "predict", inputs, form=JSON_FORM, wish=response_options)

"""FRONT PROCESS: the HTTP routes of KServe v1, and their description in /openapi.json."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from pipeline.api.app import App
from pipeline.api.examples import MAX_EXAMPLE_CHARS
from pipeline.api.request_options import NO_OPTIONS
from pipeline.api.restrictions import HEALTH, INFERENCE, METADATA
from pipeline.dialects.json_outline import Outline, outline_aside
from pipeline.dialects.kserve.json_fields import check_parameter, replace_surrogates
from pipeline.dialects.kserve.models import (
    ERROR,
    KServeModel,
    KServeModels,
    describe_model,
    describe_model_zh,
    example_row,
    get_description,
    get_parameter_schema,
)
from pipeline.dialects.kserve.refusals import error_body
from pipeline.dialects.kserve.unread import as_message
from pipeline.dialects.kserve_v1.answers import AS_ANSWERED, V1ResponseOptions
from pipeline.dialects.kserve_v1.answers import JSON as JSON_FORM
from pipeline.dialects.kserve_v1.instances import MAX_ELEMENTS, parse_instances
from pipeline.dialects.sequence_keys import pop_sequence_options
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
from pipeline.front.http.openapi import Schema, content, get, operation, refusals, upload_form
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.models.tensor_spec import Signature, TensorSpec

_MODEL = re.compile(r"/v1/models/(?P<model>[^/]+?)(?:/versions/(?P<version>\d+))?(?P<verb>:[a-z]+)?")
_LIST = "/v1/models"
_ROUTES = "GET /v1/models, GET /v1/models/{name}, POST /v1/models/{name}:predict"
_CLIENT_ERRORS = (400, 413)
_json = msgspec.json.encode
_BASE64: Schema = {
    "type": "object",
    "properties": {"b64": {"type": "string", "contentEncoding": "base64"}},
    "required": ["b64"],
}
_ELEMENTS: dict[str, Schema] = {
    "BYTES": {"anyOf": [{"type": "string"}, _BASE64]},
    "BOOL": {"type": "boolean"},
    "FP16": {"type": "number"},
    "BF16": {"type": "number"},
    "FP32": {"type": "number"},
    "FP64": {"type": "number"},
}
# JSON has no NaN and no infinity: they are null in responses.
_RESPONSE_ELEMENTS: dict[str, Schema] = {
    **_ELEMENTS,
    **{datatype: {"type": ["number", "null"]} for datatype in ("FP16", "BF16", "FP32", "FP64")},
}


class V1Http(HttpHandler):
    """HTTP handler of KServe v1: predictions, list of models, and state of a model, at paths below /v1/."""

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
            model = self._models.find_model(match["model"], match["version"] or "")
            return self._build_request(request, model, match["version"] or "")
        if request.path == _LIST:
            check_method(request, "GET", "HEAD", list_allowed=True)
            names = list(dict.fromkeys(model.name for model in self._models.all()))
            listed = {"object": "list", "data": [self._openai_model(name) for name in names]}
            request.respond(200, JSON, _json({"models": names, **listed}))
        elif match is not None and not match["verb"]:
            check_method(request, "GET", "HEAD", list_allowed=True)
            self._describe_model(request, self._models.find_model(match["model"], match["version"] or ""))
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
        """Return the fields with which OpenAI's API describes a model. KServe clients ignore these fields."""
        return {"id": name, "object": "model", "created": self._created, "owned_by": "paddlewheel"}

    def _build_request(
        self, request: HttpRequest, model: KServeModel, version: str, outline: Outline | None = None
    ) -> Request | None:
        """Parse a body to the request for the scheduler; None while a thread scans a large body.

        version: version in the path; empty if there is none. outline: result of the scan; None before the
        scan.
        """
        raw = None if request.body[:1] == b"{" else self._parse_raw(request, model)
        if raw is None and outline is None and len(request.body) > SMALL_BYTES:
            outline_aside(
                request.body,
                self._limits,
                lambda done: self.handle(
                    request, lambda: self._build_request(request, model, version, done.result())
                ),
                MAX_ELEMENTS,
            )
            return None
        prediction = (
            self._parse_body(request, model, outline) if raw is None else _build_raw_request(raw, model)
        )
        prediction.model, prediction.model_version = model.key, model.version
        prediction.deadline = self._scheduler.deadline(began=request.began)
        prediction.version = version
        return prediction

    def _parse_raw(self, request: HttpRequest, model: KServeModel) -> dict[str, Any] | None:
        takes = not model.op and not model.takes_messages
        return raw_input(request, self._scheduler.app.raw_bodies if takes else {})

    def _parse_body(self, request: HttpRequest, model: KServeModel, outline: Outline | None) -> Request:
        instances = parse_instances(request.body, model.signature, self._limits, outline)
        inputs: dict[str, Any] = dict(instances.fields)
        if model.takes_messages:
            inputs = as_message(model.name, inputs)
        prediction = Request(model.name, "predict", inputs, form=JSON_FORM)
        prediction.wish = V1ResponseOptions(instances.rows, instances.by_columns)
        prediction.rows = max(1, instances.rows)
        if instances.parameters:
            parameters = {
                replace_surrogates(n): check_parameter(n, v) for n, v in instances.parameters.items()
            }
            options = NO_OPTIONS
            if self._scheduler.keeps_sequences(model.key):
                options = pop_sequence_options(parameters)
            prediction.options = options._replace(parameters=parameters)
        return prediction

    def _usage(self, path: str) -> str:
        """Return a hint with a valid body for the model in a path, to append to error messages.

        Empty for a path that is not for predictions.
        """
        match = _MODEL.fullmatch(path)
        if match is None or not match["verb"]:
            return ""
        try:
            model = self._models.find_model(match["model"], match["version"] or "")
        except ServingError:  # the error that is being reported
            return ""
        app = self._scheduler.app
        uploads = {} if model.op else app.raw_bodies
        for spec in model.signature.inputs:
            if spec.name in uploads.values() and spec.name not in app.examples.row:
                return f"; send a file: curl -F {spec.name}=@FILE"
        row = example_row(app, model) or ({"...": "..."} if model.signature.open else None)
        body = json.dumps(_example(app, model, row), ensure_ascii=False)
        if not row or len(body) > MAX_EXAMPLE_CHARS:
            names = ", ".join(spec.name for spec in model.signature.inputs)
            return f"; the fields of an instance are {names}"
        return f"; a valid body: {body}"

    def refusal(self, error: ServingError) -> tuple[bytes, bytes]:
        return JSON, error_body(error.message)

    def refuse(self, request: HttpRequest, error: ServingError, head: bytes = b"") -> None:
        self._access_log.refused(self.name, error, request.peer)
        head += JSON + refusal_headers(error)
        message = error.message
        if error.http_status in _CLIENT_ERRORS:
            message += self._usage(request.path)
        request.respond(error.http_status, head, error_body(message))


def _build_raw_request(inputs: dict[str, Any], model: KServeModel) -> Request:
    """Build the request for a body that is a file (such as an image) or a form, with its parsed inputs.

    The number of instances is the number of rows in the response.
    """
    response_options = V1ResponseOptions(AS_ANSWERED if model.signature.has_rows else 0, by_columns=False)
    return Request(model.name, "predict", inputs, form=JSON_FORM, wish=response_options)


def v1_paths(app: App, models: KServeModels) -> dict[str, Any]:
    """Return the descriptions of KServe v1's paths for /openapi.json, by path."""
    paths: dict[str, Any] = {}
    for model in models.all():
        below = f"/v1/models/{quote(model.name)}"
        paths[f"{below}:predict"] = {"post": _predict(app, model)}
        paths[below] = get("v1", "Whether the model is ready", "模型是否就绪", model=model.name)
    paths["/v1/models"] = get("v1", "Names of the models", "模型名称")
    return paths


def _predict(app: App, model: KServeModel) -> dict[str, Any]:
    row = example_row(app, model)
    bodies = {} if model.op else app.examples.bodies
    uploads = {} if model.op or model.takes_messages else app.raw_bodies
    form = upload_form(uploads, (spec.name for spec in model.signature.inputs))
    body = content(_request_schema(app, model), _example(app, model, row), bodies, form)
    summary = f"Predict with {describe_model(model)}: an object for each instance"
    zh = f"用{describe_model_zh(model)}推理：每个实例一个对象"
    row_schema = {} if model.op else get_description(app).get("row")
    answer = _response_schema(model.signature, row_schema)
    description = operation("v1", summary, zh, body, answer, model=model.name)
    description["responses"] |= refusals(ERROR)
    return description


def _example(app: App, model: KServeModel, row: Any) -> Any:
    if not row:
        return None
    return {"instances": [row]} if model.op else app.examples.add_parameters({"instances": [row]})


def _request_schema(app: App, model: KServeModel) -> Schema:
    signature = model.signature
    instances: Schema = {
        "type": "array",
        "minItems": 1,
        "items": _instance_schema(signature.inputs, signature.has_rows),
    }
    if signature.max_batch_size or not signature.has_rows:
        instances["maxItems"] = signature.max_batch_size or 1
    return {
        "type": "object",
        "properties": {"instances": instances, "parameters": get_parameter_schema(app, model)},
        "required": ["instances"],
    }


def _response_schema(signature: Signature, row_schema: Schema | None) -> Schema:
    prediction = row_schema or _instance_schema(signature.outputs, signature.has_rows, _RESPONSE_ELEMENTS)
    return {"type": "object", "properties": {"predictions": {"type": "array", "items": prediction}}}


def _instance_schema(
    specs: Sequence[TensorSpec], rows: bool, elements: Mapping[str, Schema] = _ELEMENTS
) -> Schema:
    if not specs:
        return {"type": "object"}
    return {
        "type": "object",
        "properties": {
            spec.name: _tensor_schema(spec, spec.shape[1:] if rows else spec.shape, elements)
            for spec in specs
        },
        "required": [spec.name for spec in specs],
        "additionalProperties": False,
    }


def _tensor_schema(spec: TensorSpec, shape: Sequence[int], elements: Mapping[str, Schema]) -> Schema:
    schema = elements.get(spec.datatype, {"type": "integer"})
    if spec.nullable:
        choices = schema.get("anyOf")
        null: Schema = {"type": "null"}
        schema = {"anyOf": [*choices, null]} if choices else {"type": [schema["type"], "null"]}
    for length in reversed(shape):
        schema = {"type": "array", "items": schema}
        if length != -1:
            schema |= {"minItems": length, "maxItems": length}
    return {**schema, "description": f"{spec.datatype} {list(shape)}" if shape else spec.datatype}

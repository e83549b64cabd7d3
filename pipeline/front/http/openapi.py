"""The OpenAPI document of a running service: its doors over HTTP, with requests that are answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from pipeline.api.app import App
from pipeline.api.examples import row_of, v2_inputs
from pipeline.dialects.kserve_v2.extensions import SERVER_VERSION
from pipeline.dialects.kserve_v2.v2_models import V2Model, V2Models
from pipeline.front.http import openapi_schemas as schemas
from pipeline.front.http.openapi_schemas import Schema

_JSON = "application/json"
_ANY: Schema = {"type": "object"}
_TEXT: Schema = {"type": "string"}


def openapi(app: App, models: V2Models) -> dict[str, Any]:
    """OpenAPI 3.1. A path has a member for its method, and `x-summary-zh` beside each summary."""
    name = app.name
    paths: dict[str, Any] = {f"/{quote(name)}/prediction": {"post": _key_value(app)}}
    for model in models.all():
        below = f"/v1/models/{quote(model.name)}"
        paths[f"{below}:predict"] = {"post": _predict(app, model)}
        paths[below] = _get("v1", "Whether the model is ready", "模型是否就绪")
    paths["/v1/models"] = _get("v1", "Names of the models", "模型名称")
    for model in models.all():
        below = f"/v2/models/{quote(model.name)}"
        paths[f"{below}/infer"] = {"post": _infer(app, model)}
        if _may_generate(model):
            paths[f"{below}/generate"] = {"post": _generate(app, model)}
        paths[below] = _get("v2", "Inputs and outputs of the model", "模型的输入与输出")
        paths[f"{below}/ready"] = _get("v2", "200 when the model is ready", "就绪时返回 200", None)
        paths[f"{below}/config"] = _get("v2", "Configuration of the model", "模型配置")
        paths[f"{below}/stats"] = _get("v2", "Statistics of the model", "模型统计")
    paths |= {
        "/v2": _get("v2", "Name, version and extensions of the server", "服务器的名称、版本与扩展"),
        "/v2/health/live": _get("v2", "200 while the server answers", "服务器存活时返回 200", None),
        "/v2/health/ready": _get("v2", "200 when all models are ready", "全部模型就绪时返回 200", None),
        "/v2/models/stats": _get("v2", "Statistics of all models", "全部模型的统计"),
        "/v2/repository/index": {
            "post": _operation(
                "v2", "Models and their states", "模型及其状态", _content(_ANY, {}), {"type": "array"}
            )
        },
        "/health/live": _get("health", "The process answers", "进程存活"),
        "/health/ready": _get(
            "health", "Every Op has a ready instance; 503 before", "每个 Op 都有就绪实例，否则 503"
        ),
        "/metrics": _get(
            "health", "Figures for Prometheus", "Prometheus 指标", {"type": "string"}, "text/plain"
        ),
    }
    title = {"title": name, "version": SERVER_VERSION, "description": "Served by Paddlewheel."}
    document = {"openapi": "3.1.0", "info": title, "paths": paths}
    if app.config.security.api_keys is None:
        return document
    schemes = {"key": {"type": "http", "scheme": "bearer"}}
    return {**document, "components": {"securitySchemes": schemes}, "security": [{"key": []}]}


def _key_value(app: App) -> dict[str, Any]:
    given = app.examples.key_values
    example = {"key": list(given), "value": list(given.values())} if given else None
    body = _content(schemas.KEY_VALUE, example)
    operation = _operation(
        "key/value", "Predict: a text under each key", "推理：每个键一条文本", body, schemas.KEY_VALUE_ANSWER
    )
    if app.config.dag.http_errors == "status":
        operation["responses"] |= _refusals(schemas.KEY_VALUE_ANSWER)
    return operation


def _predict(app: App, model: V2Model) -> dict[str, Any]:
    row = _row(app, model)
    body = _content(schemas.v1_request(model.signature), {"instances": [row]} if row else None)
    summary = f"Predict with {_called(model)}: an object for each instance"
    zh = f"用{_called_zh(model)}推理：每个实例一个对象"
    operation = _operation("v1", summary, zh, body, schemas.v1_answer(model.signature))
    operation["responses"] |= _refusals(schemas.ERROR)
    return operation


def _infer(app: App, model: V2Model) -> dict[str, Any]:
    row = _row(app, model)
    inputs = v2_inputs(model.signature, row) if row else None
    body = _content(schemas.v2_request(model.signature), {"inputs": inputs} if inputs else None)
    summary, zh = f"Infer with {_called(model)}: tensors", f"用{_called_zh(model)}推理：张量"
    operation = _operation("v2", summary, zh, body, schemas.v2_answer(model.signature))
    operation["responses"] |= _refusals(schemas.ERROR)
    return operation


def _may_generate(model: V2Model) -> bool:
    """Whether each input is one element or a flat list of them, with nothing but a batch in front."""
    rank = 1 + bool(model.signature.max_batch_size)
    return all(len(spec.shape) == rank for spec in model.signature.inputs)


def _generate(app: App, model: V2Model) -> dict[str, Any]:
    row = _row(app, model)
    flat = row and all(
        isinstance(element, str | int | float)
        for value in row.values()
        for element in (value if isinstance(value, list) else [value])
    )
    halves = any(spec.datatype in ("FP16", "BF16") for spec in model.signature.inputs)
    body = _content(_ANY, row if flat and not halves else None)
    summary = f"Infer with {_called(model)}: an element or a list of them for each input"
    zh = f"用{_called_zh(model)}推理：每个输入一个元素或一个列表"
    operation = _operation("v2", summary, zh, body, _ANY)
    operation["responses"] |= _refusals(schemas.ERROR)
    return operation


def _row(app: App, model: V2Model) -> Mapping[str, Any] | None:
    """An instance that the model takes, as far as one is known."""
    if model.signature.open:
        return app.examples.key_values
    return row_of(model.signature, {} if model.op else app.examples.row)


def _called(model: V2Model) -> str:
    return f"the model of Op {model.op}" if model.op else "the service"


def _called_zh(model: V2Model) -> str:
    return f" Op {model.op} 的模型" if model.op else "服务"


def _get(
    tag: str, summary: str, zh: str, answer: Schema | None = _ANY, content: str = _JSON
) -> dict[str, Any]:
    return {"get": _operation(tag, summary, zh, None, answer, content)}


def _operation(
    tag: str, summary: str, zh: str, body: Schema | None, answer: Schema | None, content: str = _JSON
) -> dict[str, Any]:
    good: Schema = {"description": "Answered"}
    if answer is not None:
        good["content"] = {content: {"schema": answer}}
    operation = {"tags": [tag], "summary": summary, "x-summary-zh": zh, "responses": {"200": good}}
    return operation if body is None else {**operation, "requestBody": {"required": True, "content": body}}


def _content(schema: Schema, example: Any) -> Schema:
    return {_JSON: {"schema": schema, **({} if example is None else {"example": example})}}


def _refusals(schema: Schema) -> dict[str, Any]:
    content = {_JSON: {"schema": schema}}
    return {
        "4XX": {
            "description": "The request can't be used: what is wrong, and what to send",
            "content": content,
        },
        "5XX": {"description": "The service can't answer now, or failed", "content": content},
    }

"""KServe v2 in /openapi.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from pipeline.api.app import App
from pipeline.api.examples import v2_inputs
from pipeline.dialects.kserve.models import (
    ERROR,
    KServeModel,
    KServeModels,
    called,
    called_zh,
    example_row,
    get_parameter_schema,
)
from pipeline.front.http.openapi import OBJECT, Schema, content, get, operation, refusals
from pipeline.models.dtypes import RAW_ALONE
from pipeline.models.tensor_spec import Signature, TensorSpec


def paths(app: App, models: KServeModels) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for model in models.all():
        below = f"/v2/models/{quote(model.name)}"
        paths[f"{below}/infer"] = {"post": _infer(app, model)}
        if _may_generate(model):
            paths[f"{below}/generate"] = {"post": _generate(app, model)}
        name = model.name
        paths[below] = get("v2", "Inputs and outputs of the model", "模型的输入与输出", model=name)
        paths[f"{below}/ready"] = get("v2", "200 when the model is ready", "就绪时返回 200", None, model=name)
        paths[f"{below}/config"] = get("v2", "Configuration of the model", "模型配置", model=name)
        paths[f"{below}/stats"] = get("v2", "Statistics of the model", "模型统计", model=name)
    return paths | {
        "/v2": get("v2", "Name, version and extensions of the server", "服务器的名称、版本与扩展"),
        "/v2/health/live": get("v2", "200 while the server answers", "服务器存活时返回 200", None),
        "/v2/health/ready": get("v2", "200 when all models are ready", "全部模型就绪时返回 200", None),
        "/v2/models/stats": get("v2", "Statistics of all models", "全部模型的统计"),
        "/v2/repository/index": {"post": _index()},
    }


def _index() -> dict[str, Any]:
    body = content(OBJECT, {})
    index = operation("v2", "Models and their states", "模型及其状态", body, {"type": "array"})
    index["responses"] |= refusals(ERROR)
    return index


def _infer(app: App, model: KServeModel) -> dict[str, Any]:
    row = example_row(app, model)
    inputs = v2_inputs(model.signature, row) if row else None
    example = {"inputs": inputs} if inputs else None
    if example is not None and not model.op:
        example = app.examples.add_parameters(example)
    body = content(_request(app, model), example)
    summary, zh = f"Infer with {called(model)}: tensors", f"用{called_zh(model)}推理：张量"
    infer = operation("v2", summary, zh, body, _answer(model.signature), model=model.name)
    binary = {"schema": {"type": "string", "format": "binary"}}
    infer["responses"]["200"]["content"]["application/octet-stream"] = binary
    infer["responses"] |= refusals(ERROR, as_text=True)  # Triton's errors have no content type
    return infer


def _may_generate(model: KServeModel) -> bool:
    """Whether each input is one element or a flat list of them, with nothing but a batch in front."""
    ranks = (1, 2) if model.signature.max_batch_size else (1,)
    return all(len(spec.shape) in ranks for spec in model.signature.inputs)


def _generate(app: App, model: KServeModel) -> dict[str, Any]:
    row = example_row(app, model)
    flat = row and all(
        isinstance(element, str | int | float)
        for value in row.values()
        for element in (value if isinstance(value, list) else [value])
    )
    halves = any(spec.datatype in RAW_ALONE for spec in model.signature.inputs)
    example = (
        {**row, **({} if model.op else app.examples.parameters)} if row and flat and not halves else None
    )
    body = content(OBJECT, example)
    summary = f"Infer with {called(model)}: an element or a list of them for each input"
    zh = f"用{called_zh(model)}推理：每个输入一个元素或一个列表"
    description = operation("v2", summary, zh, body, OBJECT, model=model.name)
    description["responses"] |= refusals(ERROR)
    return description


def _request(app: App, model: KServeModel) -> Schema:
    signature = model.signature
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "parameters": get_parameter_schema(app, model),
            "inputs": {"type": "array", "items": _tensor(signature.inputs)},
            "outputs": {
                "type": "array",
                "items": {"type": "object", "properties": {"name": _name(signature.outputs)}},
            },
        },
        "required": ["inputs"],
    }


def _answer(signature: Signature) -> Schema:
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "outputs": {"type": "array", "items": _tensor(signature.outputs)},
        },
    }


def _tensor(specs: Sequence[TensorSpec]) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": {
            "name": _name(specs),
            "datatype": {"type": "string"},
            "shape": {"type": "array", "items": {"type": "integer"}},
            "data": {"type": "array", "items": {}},
        },
        "required": ["name", "datatype", "shape"],
    }
    if specs:
        schema["description"] = "; ".join(
            f"{spec.name}: {spec.datatype} {list(spec.shape)}" for spec in specs
        )
    return schema


def _name(specs: Sequence[TensorSpec]) -> Schema:
    return {"type": "string", **({"enum": [spec.name for spec in specs]} if specs else {})}

"""The endpoints of a service of texts: each is asked the same, and what it tells is made alike.

    ENDPOINTS["v2-grpc"](service, {"text": ["a"]}, {"top_k": 2})  # {"label": ["sports"], ...}, or Refused

Inputs have a list of texts each, one for each row. An output has a list for each row, or an element.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tritonclient.grpc as v2_grpc
import tritonclient.http as v2_http

from client.values import parse_value
from tests.support.service_process import ServiceProcess

Inputs = Mapping[str, Sequence[str]]
Outputs = dict[str, Any]
Endpoint = Callable[[ServiceProcess, Inputs, Mapping[str, Any]], Outputs]


class Refused(Exception):
    """The message of an endpoint that refuses."""


def _keys(inputs: Inputs, parameters: Mapping[str, Any]) -> dict[str, str]:
    """As key and value: a text under its name, several under their numbers."""
    keys = {name: texts[0] for name, texts in inputs.items()}
    if len(next(iter(inputs.values()))) > 1:
        (texts,) = inputs.values()
        keys = {str(number): text for number, text in enumerate(texts)}
    return keys | {name: _as_text(value) for name, value in parameters.items()}


def _as_text(value: Any) -> str:
    """As those endpoints take it that have no lists."""
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _as_text(value) if isinstance(value, list) else value for name, value in parameters.items()}


def _values(keys: Sequence[str], values: Sequence[str]) -> Outputs:
    return {key: parse_value(value) for key, value in zip(keys, values, strict=True)}


def key_value_http(service: ServiceProcess, inputs: Inputs, parameters: Mapping[str, Any]) -> Outputs:
    answer = service.ask(_keys(inputs, parameters))
    if answer["err_no"]:
        raise Refused(answer["err_msg"])
    return _values(answer["key"], answer["value"])


def key_value_grpc(service: ServiceProcess, inputs: Inputs, parameters: Mapping[str, Any]) -> Outputs:
    answer = service.rpc(_keys(inputs, parameters))
    if answer.err_no:
        raise Refused(answer.err_msg)
    return _values(answer.key, answer.value)


def v1(service: ServiceProcess, inputs: Inputs, parameters: Mapping[str, Any]) -> Outputs:
    instances = [dict(zip(inputs, row, strict=True)) for row in zip(*inputs.values(), strict=True)]
    body = {"instances": instances, "parameters": dict(parameters)}
    rows = _posted(service, f"/v1/models/{service.name}:predict", body)["predictions"]
    return {name: [row[name] for row in rows] for name in rows[0]}


def generate(service: ServiceProcess, inputs: Inputs, parameters: Mapping[str, Any]) -> Outputs:
    texts = {name: list(many) for name, many in inputs.items()}
    return dict(_posted(service, f"/v2/models/{service.name}/generate", {**texts, **_plain(parameters)}))


def _posted(service: ServiceProcess, path: str, body: Any) -> Any:
    answer = service.http(path, json.dumps(body))
    if answer.status != 200:
        raise Refused(answer.json["error"])
    return answer.json


def _v2(module: Any, port: str) -> Endpoint:
    def ask(service: ServiceProcess, inputs: Inputs, parameters: Mapping[str, Any]) -> Outputs:
        tensors = [module.InferInput(name, [len(texts)], "BYTES") for name, texts in inputs.items()]
        for tensor, texts in zip(tensors, inputs.values(), strict=True):
            tensor.set_data_from_numpy(np.array([text.encode() for text in texts], object))
        with module.InferenceServerClient(f"127.0.0.1:{getattr(service, port)}") as client:
            try:
                answer = client.infer(service.name, tensors, parameters=_plain(parameters))
            except module.InferenceServerException as exc:
                raise Refused(exc.message()) from None
        told = answer.get_response()
        names = [one["name"] for one in told["outputs"]] if isinstance(told, dict) else _names(told)
        return {name: _texts(answer.as_numpy(name).tolist()) for name in names}

    return ask


def _names(told: Any) -> list[str]:
    return [one.name for one in told.outputs]


def _texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_texts(one) for one in value]
    return value.decode() if isinstance(value, bytes) else value


ENDPOINTS: Mapping[str, Endpoint] = {
    "http": key_value_http,
    "grpc": key_value_grpc,
    "v1-http": v1,
    "v2-http": _v2(v2_http, "http_port"),
    "v2-grpc": _v2(v2_grpc, "rpc_port"),
    "generate": generate,
}

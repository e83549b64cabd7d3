"""The OpenAPI document of a running service (/openapi.json), and the page /docs that reads it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipeline import __version__
from pipeline.api.app import App, ServedModel
from pipeline.front.http.multipart import FORM
from pipeline.front.scheduler.scheduler import Scheduler

JSON = "application/json"

Schema = dict[str, Any]

OBJECT: Schema = {"type": "object"}


def openapi(app: App, paths: Mapping[str, Any], models: Mapping[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of a service, as a dict for JSON.

    paths: paths of the dialects, made with `get` and `operation`. models: description of each model, see
    `model_cards`. Extensions for the page /docs: `x-summary-zh` is a summary in Chinese. `x-model` of an
    operation names its model. `x-unavailable` gives, by model name, why a model of the repository can't be
    served. `x-raw-bodies` gives, by media type, the input that gets an uploaded file.
    """
    service_paths = {
        "/health/live": get("health", "The process answers", "进程存活"),
        "/health/ready": get(
            "health", "Every Op has a ready instance; 503 before", "每个 Op 都有就绪实例，否则 503"
        ),
        "/metrics": get(
            "health", "Figures for Prometheus", "Prometheus 指标", {"type": "string"}, "text/plain"
        ),
        "/overview.json": get("health", "Models, Ops, figures, recent errors", "模型、Op、指标、最近的错误"),
    }
    title = {"title": app.name, "version": __version__, "description": "Served by Paddlewheel."}
    document = {
        "openapi": "3.1.0",
        "info": title,
        "paths": {**paths, **service_paths},
        "x-models": models,
        "x-unavailable": {name: why for name, (_, why) in app.unavailable.items()},
        "x-raw-bodies": app.raw_bodies,
        "x-rpc-port": app.config.ports().get("rpc_port"),
    }
    if app.config.security.api_keys is None:
        return document
    schemes = {"key": {"type": "http", "scheme": "bearer"}}
    return {**document, "components": {"securitySchemes": schemes}, "security": [{"key": []}]}


def get(
    tag: str, summary: str, zh: str, answer: Schema | None = OBJECT, content: str = JSON, model: str = ""
) -> dict[str, Any]:
    """Return the OpenAPI path item of an endpoint for GET, without a body. Parameters as in `operation`."""
    return {"get": operation(tag, summary, zh, None, answer, content, model)}


def operation(
    tag: str,
    summary: str,
    zh: str,
    body: Schema | None,
    answer: Schema | None,
    content: str = JSON,
    model: str = "",
) -> dict[str, Any]:
    """Return an OpenAPI operation: one method of an endpoint.

    tag: group of endpoints. zh: the summary in Chinese. body: media types of the request body, see `content`;
    None if there is no body. answer: schema of the response; None if it has no schema. content: media type of
    the response. model: name of the model that responds.
    """
    good: Schema = {"description": "Answered"}
    if answer is not None:
        good["content"] = {content: {"schema": answer}}
    operation = {"tags": [tag], "summary": summary, "x-summary-zh": zh, "responses": {"200": good}}
    if model:
        operation["x-model"] = model
    return operation if body is None else {**operation, "requestBody": {"required": True, "content": body}}


def content(
    schema: Schema, example: Any, bodies: Mapping[str, str] | None = None, form: Schema | None = None
) -> Schema:
    """Return the media types of the body of a POST request, for the parameter `body` of `operation`.

    schema, example: schema and example of the JSON body. bodies: example files in base64, by media type; such
    a file is the whole body. form: the multipart form with files, see `upload_form`.
    """
    media_types: Schema = {JSON: {"schema": schema, **({} if example is None else {"example": example})}}
    for media, encoded in (bodies or {}).items():
        if media.startswith("text/"):
            media_types[media] = {"schema": {"type": "string"}, "example": base64.b64decode(encoded).decode()}
        else:
            media_types[media] = {
                "schema": {"type": "string", "format": "binary"},
                "x-example-base64": encoded,
            }
    if form is not None:
        media_types[FORM] = form
    return media_types


def upload_form(raw_bodies: Mapping[str, str], inputs: Iterable[str]) -> Schema | None:
    """Return the OpenAPI schema of the upload form: a file for each raw input, text for each other input.

    raw_bodies: input name by media type. inputs: names of all inputs. Returns None for a service without raw
    inputs. A CSV file contains whole rows of inputs, so its form has no other field.
    """
    if not raw_bodies:
        return None
    files = list(dict.fromkeys(raw_bodies.values()))
    media = {name: [kind for kind, raw in raw_bodies.items() if raw == name] for name in files}
    names = list(inputs)
    texts = [name for name in names if name not in files] if set(files) <= set(names) else []
    properties: Schema = {
        name: {"type": "string", "format": "binary", "description": f"A file: {', '.join(media[name])}"}
        for name in files
    }
    properties |= {name: {"type": "string"} for name in texts}
    required = [{"required": [name]} for name in files]
    return {
        "schema": {
            "type": "object",
            "properties": properties,
            **(required[0] if len(required) == 1 else {"anyOf": required}),
        },
        "encoding": {name: {"contentType": ", ".join(media[name])} for name in files},
    }


def refusals(schema: Schema, *, as_text: bool = False) -> dict[str, Any]:
    """Return the error responses (4XX and 5XX) of an OpenAPI operation.

    schema: schema of the JSON error. as_text: whether clients may also get errors as text/plain.
    """
    content: Schema = {JSON: {"schema": schema}}
    if as_text:
        content["text/plain"] = {"schema": {"type": "string"}}
    return {
        "4XX": {
            "description": "The request can't be used: what is wrong, and what to send",
            "content": content,
        },
        "5XX": {"description": "The service can't answer now, or failed", "content": content},
    }


def model_cards(scheduler: Scheduler) -> dict[str, Any]:
    """Return a description of each served model by name, for `x-models` of /openapi.json.

    Keys of a description:

    - op: the Op of a single model; empty for a DAG.
    - ops: the Ops of its requests; /health/ready counts their instances.
    - engine, task, labels: present once a worker has reported them.
    - inputs, outputs: present if serving.yml describes them, see `Description.as_dict`.
    - state, reason: of the newest version, in a model repository.
    """
    return {
        model.name: _card(model, scheduler)
        for model in scheduler.app.models
        if accepts_requests(model, scheduler)
    }


def accepts_requests(model: ServedModel, scheduler: Scheduler) -> bool:
    """Return whether the model accepts requests by its name. A script's Op without a model accepts none."""
    return not model.op or model.config is not None or scheduler.pools[model.op].signature is not None


def _card(model: ServedModel, scheduler: Scheduler) -> dict[str, Any]:
    """Return the description of one model for `model_cards`."""
    cards = {op: card for op in model.graph.ops if (card := scheduler.pools[op].card) is not None}
    answering = cards.get(model.answering_op)
    return {
        "op": model.op,
        **_standing(model, scheduler),
        "ops": list(model.graph.ops),
        "version": scheduler.version(model.key),
        **({} if answering is None else answering.as_dict()),
        "engine": "; ".join(dict.fromkeys(card.engine for card in cards.values())),
        **({} if model.op else _described(model, scheduler)),
    }


def _standing(model: ServedModel, scheduler: Scheduler) -> dict[str, str]:
    """Return the state (READY or UNAVAILABLE) and the reason of a model of a repository; otherwise {}."""
    if model.config is None:
        return {}
    if scheduler.model_ready(model.key) and not scheduler.has_unloaded(model.key):
        return {"state": "READY"}
    failures = scheduler.start_failures
    reason = next((failures[op] for op in model.graph.ops if op in failures), "")
    return {"state": "UNAVAILABLE", "reason": reason.partition("\n")[0]}


def _described(model: ServedModel, scheduler: Scheduler) -> dict[str, Any]:
    """Return the inputs and outputs of a DAG: serving.yml describes them for the first Ops and the last Op.

    Empty if one of these Ops has no description.
    """
    graph, described = model.graph, scheduler.app.described
    takers = [graph.nodes[node].op for node in graph.consumers[graph.source]]
    if any(op not in described for op in (*takers, model.answering_op)):
        return {}
    inputs = {name: description for op in takers for name, description in described[op]["inputs"].items()}
    return {"inputs": inputs, "outputs": described[model.answering_op]["outputs"]}


_FOLDER = Path(__file__).with_name("docs_page")
# Joined in this order: each file uses definitions of the files before it.
_SCRIPTS = (
    "words",
    "elements",
    "kept",
    "requests",
    "inputs",
    "answers",
    "card",
    "examples",
    "endpoints",
    "repository",
    "figures",
    "graph",
    "errors",
    "upgrade",
    "live",
    "page",
)


@cache
def docs_page() -> tuple[bytes, bytes]:
    """Return header lines and body of the page at /docs, which sends test requests from a browser.

    The page is one document that loads no other file. Its Content-Security-Policy forbids the browser to run
    any other script. The page reads /openapi.json, /health/ready and /overview.json.
    """
    script = b"\n".join((_FOLDER / f"{name}.js").read_bytes() for name in _SCRIPTS)
    style = (_FOLDER / "page.css").read_bytes()
    body = (_FOLDER / "page.html").read_bytes().replace(b"@style@", style).replace(b"@script@", script)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    head = (
        "content-type: text/html; charset=utf-8\r\n"
        f"content-security-policy: {policy}\r\n"
        "x-content-type-options: nosniff\r\n"
        "referrer-policy: no-referrer\r\n"
        "cache-control: no-cache\r\n"
    )
    return head.encode(), body


def _hash(text: bytes) -> str:
    """Return the hash of an inline script or style, in the notation of a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"

"""FRONT PROCESS: HTTP handler of Text Embeddings Inference (TEI), with its part of /openapi.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from pipeline import __version__
from pipeline.api.restrictions import HEALTH, INFERENCE, METADATA
from pipeline.config.config_file import DEFAULT_BATCH_TOKENS, Limits, OpConfig
from pipeline.dialects.tei.answers import (
    EMBED,
    EMBED_ALL,
    PREDICT,
    RERANK,
    SIMILARITY,
    TOKENIZE,
    TeiResponseOptions,
)
from pipeline.dialects.text_models import (
    CLASSES,
    EMBEDDINGS,
    MAX_TEXTS,
    RANKING,
    TextHttp,
    TextModel,
    TextModels,
    decode_body,
)
from pipeline.dialects.text_values import UnreadTexts
from pipeline.errors import InvalidInput, ServingError, UnknownService
from pipeline.front.dag_run import Request
from pipeline.front.http.connection import HttpRequest
from pipeline.front.http.http_handler import JSON, check_method
from pipeline.front.http.openapi import OBJECT, Schema, content, operation, refusals

ALL_CLASSES = 1000  # TEI returns every class with its score
_ABSENT = msgspec.Raw()
# TEI's statuses: 422 for an invalid request, 413 for one that is too large, 424 for a failing model.
_STATUSES = {400: 422, 500: 424}
_TYPES = {424: "Backend", 429: "Overloaded", 503: "Unhealthy"}

Members = dict[str, Any]
INFO, HEALTH_PAGE, ANY_MODEL = "/info", "/health", "/"
_MODEL_TYPES = {
    EMBEDDINGS: ("/embed", "embedding"),
    RANKING: ("/rerank", "reranker"),
    CLASSES: ("/predict", "classifier"),
}
_NUMBERS: Schema = {"type": "array", "items": {"type": "number"}}
_ERROR: Schema = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "error_type": {"type": "string"}},
    "required": ["error", "error_type"],
}


class _Texts(msgspec.Struct):
    """JSON body of a POST request to /embed or /predict."""

    inputs: msgspec.Raw = _ABSENT
    truncate: bool | None = None
    truncation_direction: str | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    raw_scores: bool = False
    prompt_name: str | None = None
    parameters: Members | None = None  # sent by clients of Hugging Face's inference API


class _Tokenize(msgspec.Struct):
    """JSON body of a POST request to /tokenize."""

    inputs: msgspec.Raw = _ABSENT
    add_special_tokens: bool = True
    prompt_name: str | None = None


class _Rerank(msgspec.Struct):
    """JSON body of a POST request to /rerank."""

    query: msgspec.Raw = _ABSENT
    texts: msgspec.Raw = _ABSENT
    truncate: bool | None = None
    truncation_direction: str | None = None
    raw_scores: bool = False
    return_text: bool = False


class _Sentences(msgspec.Struct, frozen=True):
    """The member `inputs` in the body of a request to /similarity."""

    source_sentence: msgspec.Raw = _ABSENT
    sentences: msgspec.Raw = _ABSENT


class _Similarity(msgspec.Struct):
    """JSON body of a POST request to /similarity."""

    inputs: _Sentences = _Sentences()
    parameters: Members | None = None


class _ModelCall(NamedTuple):
    """A parsed TEI request: the inputs of the model, its parameters, and response options."""

    inputs: dict[str, UnreadTexts]
    options: TeiResponseOptions
    parameters: Mapping[str, Any]


def _embed(document: _Texts, model: TextModel, limits: Limits) -> _ModelCall:
    _check_direction(document)
    parameters = {
        "normalize": document.normalize,
        "dimensions": document.dimensions,
        "truncate": document.truncate,
        "prompt_name": document.prompt_name,
    }
    inputs = {model.text: model.texts(_require(document.inputs, "inputs"), "inputs", limits)}
    return _ModelCall(inputs, TeiResponseOptions(), parameters)


def _embed_all(document: _Texts, model: TextModel, limits: Limits) -> _ModelCall:
    call = _embed(document, model, limits)
    return call._replace(
        parameters={"result": "token_vectors", **call.parameters, "normalize": None, "dimensions": None}
    )


def _tokenize(document: _Tokenize, model: TextModel, limits: Limits) -> _ModelCall:
    inputs = {model.text: model.texts(_require(document.inputs, "inputs"), "inputs", limits)}
    result = "tokens" if document.add_special_tokens else "plain_tokens"
    return _ModelCall(inputs, TeiResponseOptions(), {"result": result, "prompt_name": document.prompt_name})


def _similarity(document: _Similarity, model: TextModel, limits: Limits) -> _ModelCall:
    source = bytes(_require(document.inputs.source_sentence, "inputs.source_sentence"))
    sentences = bytes(_require(document.inputs.sentences, "inputs.sentences")).strip()
    if not (
        source.lstrip().startswith(b'"') and sentences.startswith(b"[") and sentences[1:].strip() != b"]"
    ):
        raise InvalidInput("'inputs' has a text as 'source_sentence' and a list of texts as 'sentences'")
    joined = msgspec.Raw(b"[%b,%b" % (source, sentences[1:]))
    return _ModelCall({model.text: model.texts(joined, "inputs", limits)}, TeiResponseOptions(), {})


def _rerank(document: _Rerank, model: TextModel, limits: Limits) -> _ModelCall:
    _check_direction(document)
    query, texts = _require(document.query, "query"), _require(document.texts, "texts")
    if not bytes(query).lstrip().startswith(b'"'):
        raise InvalidInput("'query' is no text")
    if not bytes(texts).lstrip().startswith(b"["):
        raise InvalidInput("'texts' is no list of texts")
    inputs = {
        model.text: model.texts(query, "query", limits),
        model.pair: model.texts(texts, "texts", limits),
    }
    response_options = TeiResponseOptions(texts=bytes(texts) if document.return_text else b"")
    return _ModelCall(
        inputs, response_options, {"raw_scores": document.raw_scores or None, "truncate": document.truncate}
    )


def _predict(document: _Texts, model: TextModel, limits: Limits) -> _ModelCall:
    _check_direction(document)
    raw = _require(document.inputs, "inputs")
    if document.raw_scores:
        raise InvalidInput("'raw_scores': the service tells scores as its serving.yml says, not raw ones")
    names = (model.text, model.pair) if model.pair else (model.text,)
    inputs = {name: model.texts(raw, "inputs", limits, len(names), part) for part, name in enumerate(names)}
    many = bytes(raw).translate(None, b" \t\r\n").startswith(b"[[")
    parameters_sent = document.parameters or {}
    parameters = {
        "top_k": parameters_sent.get("top_k", ALL_CLASSES),
        "threshold": 0.0,
        "truncate": document.truncate,
    }
    # Clients of Hugging Face's inference API send `parameters`, and expect a list for each text.
    return _ModelCall(inputs, TeiResponseOptions(many=many or document.parameters is not None), parameters)


class _Route(NamedTuple):
    """A path of TEI's API: its kind of model, its response format, and the parser of its bodies."""

    kind: str  # of the models that serve the path
    form: str  # of the response
    body: type[Any]  # type of the decoded body
    parse: Callable[[Any, TextModel, Limits], _ModelCall]  # converts the decoded body to the model's inputs


ROUTES: Mapping[str, _Route] = {
    "/embed": _Route(EMBEDDINGS, EMBED, _Texts, _embed),
    "/embed_all": _Route(EMBEDDINGS, EMBED_ALL, _Texts, _embed_all),
    "/tokenize": _Route(EMBEDDINGS, TOKENIZE, _Tokenize, _tokenize),
    "/similarity": _Route(EMBEDDINGS, SIMILARITY, _Similarity, _similarity),
    "/rerank": _Route(RANKING, RERANK, _Rerank, _rerank),
    "/predict": _Route(CLASSES, PREDICT, _Texts, _predict),
}


class TeiHttp(TextHttp):
    """HTTP handler of the TEI API: the inference paths of ROUTES, `POST /`, /info and /health."""

    name = "tei-http"

    def _read(self, request: HttpRequest) -> Request | None:
        if request.path == HEALTH_PAGE:
            check_method(request, "GET", "HEAD", list_allowed=True)
            request.respond(200 if self._scheduler.ready else 503, b"", b"")
            return None
        if request.path == INFO:
            check_method(request, "GET", "HEAD", list_allowed=True)
            request.respond(200, JSON, msgspec.json.encode(self._describe_server()))
            return None
        check_method(request, "POST", list_allowed=True)
        path = self._find_only_path() if request.path == ANY_MODEL else request.path
        route = ROUTES[path]
        model = self._models.find_model(route.kind)
        call = route.parse(decode_body(request.body, route.body, self._limits), model, self._limits)
        return self._request(request, model, call.inputs, route.form, call.options, call.parameters)

    def serves_root(self) -> bool:
        return any(self._models.all(kind) for kind in _MODEL_TYPES)

    def find_api(self, path: str) -> str:
        return {HEALTH_PAGE: HEALTH, INFO: METADATA}.get(path, INFERENCE)

    def _find_only_path(self) -> str:
        """Return the path that handles `POST /`: that of the first kind of text model in the service.

        Raises UnknownService (HTTP 404) if the service has no text model.
        """
        for kind, (path, _) in _MODEL_TYPES.items():
            if self._models.all(kind):
                return path
        raise UnknownService("no model here has texts as its input")

    def _describe_server(self) -> dict[str, Any]:
        """Return the JSON document of /info, which describes the first kind of text model in the service.

        Raises UnknownService (HTTP 404) if the service has no text model.
        """
        path = self._find_only_path()
        kind, model_type = next((k, name) for k, (p, name) in _MODEL_TYPES.items() if p == path)
        app = self._scheduler.app
        served = self._models.all(kind)[-1].served
        described = app.described.get(served.answering_op, {})
        text_info = described.get("text_info", {})
        labels = [str(label) for label in described.get("labels", ())]
        details: dict[str, Any] = {"pooling": text_info.get("pooling")}
        if kind != EMBEDDINGS:
            details = {
                "id2label": {str(number): label for number, label in enumerate(labels)},
                "label2id": {label: number for number, label in enumerate(labels)},
            }
        return {
            "model_id": served.name,
            "model_sha": None,
            "model_dtype": "float32",
            "model_type": {model_type: details},
            "max_concurrent_requests": app.config.dag.max_pending_requests,
            "max_input_length": text_info.get("max_tokens"),
            "max_batch_tokens": _find_batch_tokens(app.config.op.get(served.answering_op)),
            "max_batch_requests": None,
            "max_client_batch_size": min(MAX_TEXTS, app.config.limits.rows),
            "auto_truncate": False,
            "tokenization_workers": len(app.ops),
            "version": __version__,
            "sha": None,
            "docker_label": None,
        }

    def _status(self, error: ServingError) -> int:
        return _STATUSES.get(error.http_status, error.http_status)

    def _body(self, error: ServingError) -> bytes:
        status = self._status(error)
        kind = _TYPES.get(status, "Validation" if status < 500 else "Backend")
        return msgspec.json.encode({"error": error.message, "error_type": kind})


def _find_batch_tokens(op: OpConfig | None) -> int:
    return (op and op.max_batch_tokens) or DEFAULT_BATCH_TOKENS


def _check_direction(document: _Texts | _Rerank) -> None:
    direction = document.truncation_direction
    if direction is not None and direction.lower() != "right":
        raise InvalidInput(f"'truncation_direction' is {direction[:40]!r}: what is cut of a text is its end")


def _require(raw: msgspec.Raw, name: str) -> msgspec.Raw:
    if not bytes(raw):
        raise InvalidInput(f"'{name}' is missing")
    return raw


class _Operation(NamedTuple):
    """Summaries, example and response schema of a TEI path, for /openapi.json."""

    summary: str
    summary_zh: str
    example: dict[str, Any]
    response: Schema


_OPERATIONS: Mapping[str, _Operation] = {
    "/embed": _Operation(
        "Embeddings of texts", "文本的向量", {"inputs": ["text"]}, {"type": "array", "items": _NUMBERS}
    ),
    "/embed_all": _Operation(
        "A vector for each token of the texts", "每个 token 的向量", {"inputs": ["text"]}, {"type": "array"}
    ),
    "/tokenize": _Operation("Tokens of the texts", "文本的 token", {"inputs": ["text"]}, {"type": "array"}),
    "/similarity": _Operation(
        "Cosines of a text with others",
        "一段文本与其他文本的余弦相似度",
        {"inputs": {"source_sentence": "text", "sentences": ["another text"]}},
        _NUMBERS,
    ),
    "/rerank": _Operation(
        "Texts by their relevance",
        "按相关性排序",
        {"query": "text", "texts": ["another text"]},
        {"type": "array", "items": OBJECT},
    ),
    "/predict": _Operation("Classes of a text", "文本分类", {"inputs": "text"}, {"type": "array"}),
}


def tei_paths(models: TextModels) -> dict[str, Any]:
    """Return the descriptions of those TEI paths for which the service has a model, for /openapi.json."""
    paths = {}
    for path, (summary, summary_zh, example, response) in _OPERATIONS.items():
        path_models = models.all(ROUTES[path].kind)
        if not path_models:
            continue
        if path == "/predict" and path_models[0].pair:
            example = {"inputs": ["text", "another text"]}
        body, model = content(OBJECT, example), path_models[0].served.name
        post = operation("TEI", summary, summary_zh, body, response, model=model)
        post["responses"] |= refusals(_ERROR)
        paths[path] = {"post": post}
    return paths

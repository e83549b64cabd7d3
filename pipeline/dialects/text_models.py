"""FRONT PROCESS: models for embeddings, reranking and classification, as OpenAI's and TEI's APIs use them.

A model belongs to a kind by its declared input and output tensors.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from pipeline.api.app import ServedModel
from pipeline.api.dag import MESSAGE
from pipeline.api.request_options import RequestOptions
from pipeline.config.config_file import Limits
from pipeline.dialects.json_outline import ScanFirst, check_depth
from pipeline.dialects.text_values import UnreadTexts
from pipeline.errors import InvalidInput, MalformedBody, ServingError, UnknownService
from pipeline.front.dag_run import Request
from pipeline.front.http.connection import HttpRequest
from pipeline.front.http.http_handler import JSON, HttpHandler, refusal_headers, sniff_format
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.models.tensor_spec import Signature

EMBEDDINGS, RANKING, CLASSES = "embeddings", "reranking", "classification"
EMBEDDING, SCORE, LABEL, LABELS, SCORES = "embedding", "score", "label", "labels", "scores"
_INT64 = range(-(1 << 63), 1 << 63)
MAX_TEXTS = 2048  # of a request, the limit of OpenAI


class TextModel(NamedTuple):
    """A served model whose inputs are texts: one text, or a pair of texts, for each row."""

    served: ServedModel
    text: str  # name of its first input
    pair: str  # name of its second input; empty for a model with one

    def texts(
        self, raw: msgspec.Raw, name: str, limits: Limits, width: int = 0, part: int = 0
    ) -> UnreadTexts:
        """Return the texts in a member of a JSON body as a model input, which the worker process decodes.

        name: name of the member, for error messages. width: number of texts in each element of TEI's lists of
        texts and pairs; 0 for other bodies. part: index of the text in each pair.
        """
        as_tensor = self.served.config is not None  # models of a repository accept only tensors
        return UnreadTexts(
            bytes(raw), name, min(MAX_TEXTS, limits.rows), limits.text_chars, width, part, as_tensor
        )


class TextModels:
    """Finds a service's models for embeddings, reranking or classification by kind and name."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def all(self, kind: str) -> list[TextModel]:
        """Return the service's models of a kind: EMBEDDINGS, RANKING or CLASSES.

        The list may differ between calls, because a repository loads and unloads models.
        """
        app = self._scheduler.app
        text_models = [
            _text_model(served, served.signature, kind)
            for served in app.models
            if served.signature is not None and not served.op and served.graph.source != MESSAGE
        ]
        files = app.raw_bodies.values()  # an image is BYTES, too
        return [model for model in text_models if model is not None and model.text not in files]

    def find_model(self, kind: str, name: str = "") -> TextModel:
        """Return the newest version of the model of a kind that a request names.

        If the service has a single model of the kind, the name is ignored, because clients send the name that
        they used with another server. An unloaded model is returned only if no loaded model matches. Raises
        UnknownService (HTTP 404).
        """
        all_of_kind = self.all(kind)
        loaded = [m for m in all_of_kind if not self._scheduler.has_unloaded(m.served.key)] or all_of_kind
        for models in (loaded, all_of_kind):
            if named := [model for model in models if model.served.name == name]:
                return named[-1]
        names = list(dict.fromkeys(model.served.name for model in loaded))
        if len(names) == 1:
            return loaded[-1]
        if not names:
            raise UnknownService(f"no model here does {kind}")
        raise UnknownService(f"there is no model {name[:100]!r} for {kind}; there are {', '.join(names)}")


def _text_model(served: ServedModel, signature: Signature, kind: str) -> TextModel | None:
    """Return a served model as a text model of a kind; None if its tensors do not match the kind."""
    inputs, output_names = signature.inputs, {spec.name for spec in signature.outputs}
    kinds = {
        EMBEDDINGS: EMBEDDING in output_names and len(inputs) == 1,
        RANKING: SCORE in output_names and LABEL not in output_names and len(inputs) == 2,
        CLASSES: ({LABEL, SCORE} <= output_names or {LABELS, SCORES} <= output_names)
        and len(inputs) in (1, 2),
    }
    if not kinds[kind] or any(spec.datatype != "BYTES" or len(spec.shape) != 1 for spec in inputs):
        return None
    return TextModel(served, inputs[0].name, inputs[1].name if len(inputs) == 2 else "")


def decode_body(body: bytes, kind: type[Any], limits: Limits) -> Any:
    """Decode a JSON body to the msgspec type `kind`.

    Raises MalformedBody for invalid JSON, InvalidInput for a member of another type, and TooLarge for a body
    that nests deeper than limits.json_depth.
    """
    check_depth(body, limits.json_depth)
    if description := sniff_format(body):
        raise MalformedBody(f"the body is {description}, no JSON")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as exc:
        raise InvalidInput(f"the body can't be used: {exc}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise MalformedBody(f"the body is no JSON: {exc}") from None


class TextHttp(ScanFirst, HttpHandler):
    """Base class of the HTTP handlers for text models: builds requests, sends errors in the API's format.

    The handlers of OpenAI's and TEI's APIs derive from it.
    """

    def __init__(self, scheduler: Scheduler, models: TextModels) -> None:
        super().__init__(scheduler)
        self._models = models
        self._limits = scheduler.app.config.limits

    def _request(
        self,
        request: HttpRequest,
        model: TextModel,
        inputs: dict[str, UnreadTexts],
        form: str,
        response_options: Any,
        parameters: Mapping[str, Any],
    ) -> Request:
        """Build the request for the scheduler, with its model, inputs, deadline and parameters.

        form: name of the response format. response_options: passed to the encoder in the worker. parameters:
        parameters of the request by name; None if absent. Raises InvalidInput for a parameter of an
        unsupported type, and TooLarge for too many texts.
        """
        prediction = Request(model.served.name, "predict", inputs, form=form)
        prediction.wish = response_options
        prediction.model = model.served.key
        prediction.rows = max(texts.count() for texts in inputs.values())
        prediction.deadline = self._scheduler.deadline(began=request.began)
        sent = {
            name: _check_parameter(name, value) for name, value in parameters.items() if value is not None
        }
        if sent:
            prediction.options = RequestOptions(parameters=sent)
        return prediction

    @abstractmethod
    def _status(self, error: ServingError) -> int:
        """Return the HTTP status of an error in this API."""

    @abstractmethod
    def _body(self, error: ServingError) -> bytes:
        """Encode the body of an error response in this API's format."""

    def refusal(self, error: ServingError) -> tuple[bytes, bytes]:
        return JSON, self._body(error)

    def refuse(self, request: HttpRequest, error: ServingError, head: bytes = b"") -> None:
        self._access_log.refused(self.name, error, request.peer)
        request.respond(self._status(error), head + JSON + refusal_headers(error), self._body(error))


def _check_parameter(name: str, value: Any) -> Any:
    if isinstance(value, str | bool | float) or (isinstance(value, int) and value in _INT64):
        return value
    raise InvalidInput(f"'{name}' is {str(value)[:40]}: send a text, a number of 64 bits, true or false")

"""FRONT PROCESS: base of the HTTP handlers that speak another server's API for texts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from pipeline.api.request_options import RequestOptions
from pipeline.dialects.json_outline import ScanFirst
from pipeline.dialects.text_models import TextModel, TextModels
from pipeline.errors import InvalidInput, ServingError
from pipeline.front.http.connection import HttpRequest
from pipeline.front.http.http_handler import JSON, HttpHandler, refusal_headers
from pipeline.front.scheduler.request import Request
from pipeline.front.scheduler.scheduler import Scheduler

_INTEGERS = range(-(1 << 63), 1 << 63)


class TextHttp(ScanFirst, HttpHandler):
    """Makes requests to models of texts, and refusals in the API's own form."""

    def __init__(self, scheduler: Scheduler, models: TextModels) -> None:
        super().__init__(scheduler)
        self._models = models
        self._limits = scheduler.app.config.limits

    def _request(
        self,
        request: HttpRequest,
        model: TextModel,
        inputs: dict[str, Any],
        form: str,
        wish: Any,
        parameters: Mapping[str, Any],
    ) -> Request:
        """What the scheduler is given. parameters: those that are None were not sent.

        Raises InvalidInput for one that no hook is given.
        """
        made = Request(model.served.name, "predict", inputs, form=form)
        made.wish = wish
        made.model = model.served.key
        made.deadline = self._scheduler.deadline(began=request.began)
        sent = {name: _checked(name, value) for name, value in parameters.items() if value is not None}
        if sent:
            made.options = RequestOptions(parameters=sent)
        return made

    @abstractmethod
    def _status(self, error: ServingError) -> int:
        """The HTTP status of a refusal."""

    @abstractmethod
    def _body(self, error: ServingError) -> bytes:
        """The body of a refusal."""

    def refusal(self, error: ServingError) -> tuple[bytes, bytes]:
        return JSON, self._body(error)

    def refuse(self, request: HttpRequest, error: ServingError, head: bytes = b"") -> None:
        self._access_log.refused(self.name, error, request.peer)
        request.respond(self._status(error), head + JSON + refusal_headers(error), self._body(error))


def _checked(name: str, value: Any) -> Any:
    if isinstance(value, str | bool | float) or (isinstance(value, int) and value in _INTEGERS):
        return value
    raise InvalidInput(f"'{name}' is {str(value)[:40]}: send a text, a number of 64 bits, true or false")

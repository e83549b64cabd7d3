"""RpcHandler: the gRPC methods of a dialect. Runs predictions and logs their outcome."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Never

import grpc

from pipeline.errors import OUR_FAULT, Overloaded, ServingError, detach
from pipeline.front.dag_run import Answer, Request
from pipeline.front.grpc.call_context import CallContext
from pipeline.front.scheduler.admission import CALLER, caller, named
from pipeline.front.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)


class RpcHandler(ABC):
    """Base class of the gRPC handlers of dialects."""

    name: ClassVar[str]  # of the endpoint in metrics and log

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._access_log = scheduler.access_log

    @abstractmethod
    async def _refuse(self, context: CallContext, error: ServingError) -> bytes:
        """Return the response for a rejected request, or end the call with a status by `_end`."""

    async def _predict(
        self, method: str, read: Callable[[bytes, CallContext], Request], data: bytes, context: CallContext
    ) -> bytes:
        """Return the response of a unary call.

        method: name for the log. read: builds the request from the message; raises ServingError.
        """
        began = time.monotonic()
        request: Request | None = None
        answer: Answer
        try:
            try:
                request = read(data, context)
            finally:
                data = b""  # free the message of a rejected request
            request.door = self.name
            answer = await self._scheduler.infer(request)
        except ServingError as exc:
            answer = detach(exc)
        except Exception:
            log.exception("A fault of ours in %s", method)
            answer = OUR_FAULT
        if self._access_log.logs_requests:
            error = answer if isinstance(answer, ServingError) else None
            self._access_log.log_request(self.name, named(context.peer(), CALLER.get()), method, began, error)
        if isinstance(answer, ServingError):
            self._access_log.refused(self.name, answer, caller(context.peer()))
            message = await self._refuse(context, answer)
        else:
            self._access_log.answered(self.name)
            message = bytes(answer[0])
        if request is not None and request.timings is not None:
            context.set_trailing_metadata((("server-timing", request.timings.header()),))
        return message

    async def _end(self, context: CallContext, error: ServingError, code: str, message: str) -> Never:
        """End the call with a status. An overload sets `grpc-retry-pushback-ms`, the delay before a retry."""
        if isinstance(error, Overloaded):
            context.set_trailing_metadata((("grpc-retry-pushback-ms", str(int(error.retry_after_s * 1000))),))
        await context.abort(getattr(grpc.StatusCode, code), message)

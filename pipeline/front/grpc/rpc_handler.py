"""RpcHandler: answers gRPC calls in one dialect: begins predictions, and reports their end."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Never

import grpc
import grpc.aio

from pipeline.errors import OUR_FAULT, Overloaded, ServingError, detach
from pipeline.front.dag_run import Answer, Request
from pipeline.front.scheduler.admission import CALLER, caller, named
from pipeline.front.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[bytes, bytes]


class RpcHandler(ABC):
    """Base of the gRPC handlers that dialects bring along.

    name: name of the door in metrics and log.
    """

    name: ClassVar[str]

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._access_log = scheduler.access_log

    @abstractmethod
    async def _refuse(self, context: Context, error: ServingError) -> bytes:
        """The message that tells of a refusal; or, with `_end`, a status in its place."""

    async def _predict(
        self, method: str, read: Callable[[bytes, Context], Request], data: bytes, context: Context
    ) -> bytes:
        """The message that answers a unary call. read: raises ServingError. method: as the log tells it."""
        began = time.monotonic()
        request: Request | None = None
        answer: Answer
        try:
            try:
                request = read(data, context)
            finally:
                data = b""  # a refusal must not keep the message
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

    async def _end(self, context: Context, error: ServingError, code: str, message: str) -> Never:
        """End the call with a status; `grpc-retry-pushback-ms` tells clients when to come again."""
        if isinstance(error, Overloaded):
            context.set_trailing_metadata((("grpc-retry-pushback-ms", str(int(error.retry_after_s * 1000))),))
        await context.abort(getattr(grpc.StatusCode, code), message)

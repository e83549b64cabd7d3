"""Stream: one ModelStreamInfer call, with several requests in flight, answered in their order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from client.protos.kserve_v2_pb2 import ModelInferResponse, ModelStreamInferResponse
from pipeline.dialects.kserve.refusals import for_clients
from pipeline.dialects.kserve_v2.rpc_infer import InferMessage, infer_message
from pipeline.dialects.message_fields import varint
from pipeline.errors import OUR_FAULT, ServingError
from pipeline.front.scheduler.clients import caller
from pipeline.front.scheduler.dag_run import Answer, DagRun
from pipeline.front.scheduler.request import Request
from pipeline.front.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from pipeline.front.grpc.private.call_context import CallContext

log = logging.getLogger(__name__)

_STRICT = ("triton_grpc_error", "true")  # metadata of clients that want a refusal as the end of the stream
IN_FLIGHT = 256  # most requests of one stream; further ones are not read before one of these is answered
_INFER_RESPONSE = b"\x12"  # field 2 of ModelStreamInferResponse
_FINAL = ModelInferResponse()
_FINAL.parameters["triton_final_response"].bool_param = True
_FINAL_BYTES = _FINAL.SerializeToString()  # behind an answer's own fields they add to it

Context = grpc.aio.ServicerContext[bytes, bytes]
Place = asyncio.Future[bytes | ServingError]  # of a request's answer in the stream
RequestOf = Callable[[InferMessage, Context], Request]


class Stream:
    """Reads requests while others are answered; a refusal is a message of the stream, which stays open.

    Messages come in the order of the requests, as Triton's do: what is answered early waits for its turn.
    A client may ask for its end instead, with the refusal's code. When the server stops, the stream ends as
    soon as the requests that it has read are answered.
    """

    def __init__(
        self, scheduler: Scheduler, build_request: RequestOf, context: CallContext, door: str
    ) -> None:
        self._scheduler = scheduler
        self._request_of = build_request
        self._context = context
        self._door = door
        self._dag_runs: set[DagRun] = set()
        self._strict = _STRICT in tuple(context.invocation_metadata() or ())
        self._places: asyncio.Queue[Place | None] = asyncio.Queue()
        self._free = asyncio.Semaphore(IN_FLIGHT)
        self._reader: asyncio.Task[None] | None = None  # while it waits for a message
        self._stopping = False
        self._stopped = False  # the server's stop has ended the reading
        context.on_stop = self._stop

    def _stop(self) -> None:
        self._stopping = True
        if self._reader is not None:
            self._reader.cancel()

    async def run(self) -> None:
        """Until the client has said all and has all answers, or has left: then what is queued is dropped."""
        reading = asyncio.create_task(self._receive_messages(), name="stream-reader")
        try:
            while (place := await self._places.get()) is not None:
                if not place.done():
                    await asyncio.wait((place, reading), return_when=asyncio.FIRST_COMPLETED)
                    if not place.done():
                        break  # reading ends before the last answer only where the client has left
                answer = place.result()
                if isinstance(answer, ServingError):
                    _, code, told = for_clients(answer)
                    await self._context.abort(getattr(grpc.StatusCode, code), told)
                else:
                    await self._context.write(answer)
                self._free.release()
            reading.result()
            if self._stopped:
                await self._context.abort(grpc.StatusCode.UNAVAILABLE, "the service is stopping")
        finally:
            reading.cancel()
            for dag_run in list(self._dag_runs):
                dag_run.leave()

    async def _receive_messages(self) -> None:
        try:
            while (data := await self._next_message()) is not None:
                await self._free.acquire()
                self._begin(data)
            for _ in range(IN_FLIGHT):  # all places are free once every answer is written
                await self._free.acquire()
        finally:
            self._places.put_nowait(None)

    async def _next_message(self) -> Any:
        """The next message; None at the client's end of the stream, and once the server stops."""
        if not self._stopping:
            self._reader = asyncio.current_task()
            try:
                data = await self._context.read()
                return None if data is grpc.aio.EOF else data  # type: ignore[attr-defined]
            except asyncio.CancelledError:
                if self._reader is None or not self._stopping:
                    raise
                self._reader.uncancel()
            finally:
                self._reader = None
        self._stopped = True
        return None

    def _begin(self, data: Any) -> None:
        request_id = ""
        place: Place = asyncio.get_running_loop().create_future()
        self._places.put_nowait(place)
        try:
            message = infer_message(data, self._scheduler.app.config.limits)
            request_id = message.fields.id
            request = self._request_of(message, self._context)
            request.door = self._door
            dag_run = self._scheduler.begin(
                request, lambda answer: self._answered(place, request_id, answer, dag_run)
            )
        except ServingError as exc:
            self._answered(place, request_id, exc)
        except Exception:
            log.exception("A fault of ours in ModelStreamInfer")
            self._answered(place, request_id, OUR_FAULT)
        else:
            self._dag_runs.add(dag_run)

    def _answered(self, place: Place, request_id: str, answer: Answer, dag_run: DagRun | None = None) -> None:
        if dag_run is not None:
            self._dag_runs.discard(dag_run)
        if isinstance(answer, ServingError):
            self._scheduler.access_log.refused(self._door, answer, caller(self._context.peer()))
            if self._strict:
                self._fill(place, answer)
                return
            refusal = ModelStreamInferResponse(error_message=for_clients(answer)[2])
            refusal.infer_response.id = request_id
            self._fill(place, refusal.SerializeToString())
            return
        self._scheduler.access_log.answered(self._door)
        size = len(answer[0]) + len(_FINAL_BYTES)
        parts = [_INFER_RESPONSE, varint(size), answer[0], _FINAL_BYTES]
        self._fill(place, b"".join(parts))

    def _fill(self, place: Place, answer: bytes | ServingError) -> None:
        if place.done():  # cancelled with the call that waited for it
            return
        place.set_result(answer)
        if isinstance(answer, bytes):
            self._context.ready(len(answer))

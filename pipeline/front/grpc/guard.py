"""API keys on the gRPC port: each method asks for one before its handler is called."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import grpc

from pipeline.errors import Unauthenticated
from pipeline.front.grpc.rpc_handler import Context
from pipeline.front.metrics.access_log import AccessLog
from pipeline.front.scheduler.clients import CALLER, KeyRing, caller, shown_key

if TYPE_CHECKING:
    from pipeline.front.grpc.private.calls import Methods


def guarded(methods: Methods, keys: KeyRing, access_log: AccessLog, open_: Collection[str]) -> Methods:
    """The methods behind the keys, but for those that are open; `CALLER` tells their handlers who asks."""

    async def admit(context: Context) -> None:
        shown = shown_key(
            (_bytes(name), _bytes(value)) for name, value in context.invocation_metadata() or ()
        )
        try:
            CALLER.set(keys.find(shown))
        except Unauthenticated as exc:
            access_log.refused("grpc", exc, caller(context.peer()))
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, exc.message)

    return {name: method if name in open_ else _behind(admit, method) for name, method in methods.items()}


def _behind(admit: Callable[[Context], Any], method: Any) -> Any:
    if method.request_streaming:

        async def stream(requests: Any, context: Context) -> Any:
            await admit(context)
            return await method.stream_stream(requests, context)

        return grpc.stream_stream_rpc_method_handler(stream)

    async def unary(data: bytes, context: Context) -> Any:
        await admit(context)
        return await method.unary_unary(data, context)

    return grpc.unary_unary_rpc_method_handler(unary)


def _bytes(given: str | bytes) -> bytes:
    return given if isinstance(given, bytes) else given.encode()

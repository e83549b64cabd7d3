"""API keys and restricted APIs on the gRPC port: checked before a method's handler is called."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from pipeline.errors import RestrictedApi, Unauthenticated
from pipeline.front.grpc.rpc_handler import Context
from pipeline.front.metrics.access_log import AccessLog
from pipeline.front.scheduler.clients import CALLER, KeyRing, caller, shown_key
from pipeline.front.scheduler.restricted_apis import RestrictedApis

if TYPE_CHECKING:
    from pipeline.front.grpc.private.calls import Methods


def guarded(
    methods: Methods,
    keys: KeyRing | None,
    restricted: RestrictedApis,
    apis: Mapping[str, str],
    access_log: AccessLog,
    open_: Collection[str],
) -> Methods:
    """Return the methods behind the API keys and the headers of restricted APIs.

    open_: methods that need no key. apis: the API of each method. Handlers find the caller in `CALLER`.
    """

    async def admit(name: str, context: Context) -> None:
        headers = [(_bytes(key), _bytes(value)) for key, value in context.invocation_metadata() or ()]
        try:
            if keys is not None and name not in open_:
                CALLER.set(keys.find(shown_key(headers)))
            restricted.check(apis[name], headers)
        except (Unauthenticated, RestrictedApi) as exc:
            access_log.refused("grpc", exc, caller(context.peer()))
            await context.abort(getattr(grpc.StatusCode, exc.grpc_code), exc.message)

    return {name: _behind(partial(admit, name), method) for name, method in methods.items()}


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

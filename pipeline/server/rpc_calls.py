"""The gRPC server as we run it: it takes every call by a name that we know, never by the bytes of its path.

grpc.aio decodes the path of each call in the task that accepts calls; one path that is no UTF-8 ends that
task and with it the server. Here each method has a task of its own, in which its name is known, and what was
sent to any other path is answered UNIMPLEMENTED without a look at it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc
from grpc.aio._server import Server

Methods = Mapping[str, "grpc.RpcMethodHandler[bytes, bytes]"]


class RpcCalls(Server):
    """grpc.aio's server of the given methods, by full name."""

    def __init__(self, methods: Methods, options: Sequence[tuple[str, Any]]) -> None:
        # In place of its own constructor, which makes its own kind of AioServer.
        self._loop = cygrpc.get_working_loop()
        self._server = _NamedCalls(self._loop, None, (), None, tuple(options), None)
        self._server.methods = methods
        self._server.add_registered_method_handlers(dict(methods))


class _NamedCalls(cygrpc.AioServer):  # type: ignore[misc]
    """methods: handlers by name, set before the start. running: of its tasks the loop has weak references."""

    methods: Methods

    def _make_request_call_future(self, name: bytes | None) -> asyncio.Task[None]:
        """Called once for each method at the start, and with None for all other paths."""
        self.running: set[asyncio.Task[None]] = getattr(self, "running", set())
        return asyncio.get_running_loop().create_task(self._take_calls(name), name="rpc-calls")

    async def _take_calls(self, name: bytes | None) -> None:
        """Until the server stops, which ends the wait for a call with an exception that it knows."""
        loop = asyncio.get_running_loop()
        told = "" if name is None else name.decode()
        while True:
            call = await (self._request_call() if name is None else self._request_registered_call(name))
            answering = cygrpc._handle_rpc(told, self, (), call, loop, False)
            task = loop.create_task(cygrpc._schedule_rpc_coro(answering, call, loop, told))
            self.running.add(task)
            task.add_done_callback(self.running.discard)

    def resolve_handler(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self.methods.get(details.method)

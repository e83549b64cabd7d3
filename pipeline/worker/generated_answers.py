"""Hooks that are generators: each value that `postprocess` or `process` yields becomes an answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from pipeline.api.op import STREAMED
from pipeline.errors import HookFailed
from pipeline.worker.call import Call
from pipeline.worker.hooks import Hooks
from pipeline.worker.runner import Steps, StepsPart


class GeneratedAnswers:
    """Runs the generators that hooks return for requests, and sends the values they yield as answers.

    The generators of a batch take turns: each yields one value, and others run while an asynchronous
    generator awaits.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._loop: asyncio.AbstractEventLoop | None = None

    def send(self, fetched: Sequence[tuple[Call, Any]]) -> None:
        """Send all answers to these requests. A generator that raises ends its request with the error.

        fetched: requests with the outputs of the model, or with their part of the outputs of a generator.
        """
        if not fetched:
            return
        if self._loop is None:  # in the thread of the instance
            self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._send_all(fetched))

    async def _send_all(self, fetched: Sequence[tuple[Call, Any]]) -> None:
        groups: dict[int, tuple[Steps, list[tuple[Call, int]]]] = {}
        sending = []
        for call, fetch in fetched:
            if isinstance(fetch, StepsPart):
                _, members = groups.setdefault(id(fetch.steps), (fetch.steps, []))
                members.append((call, fetch.number))
            else:
                sending.append(self._send_outputs(call, fetch))
        sending += [self._send_steps(*group) for group in groups.values()]
        await asyncio.gather(*sending)

    async def _send_outputs(self, call: Call, fetch: Any) -> None:
        """Send what `postprocess` yields for the model's outputs."""
        assert call.op is not None
        call.output = STREAMED
        try:
            await self._send_values(call, self._hooks.begin_postprocess(call.op, call.request, fetch))
            call.sender.send(None, last=True)
        except BaseException as exc:
            self._fail(call, exc, "postprocess")

    async def _send_steps(self, steps: Steps, members: Sequence[tuple[Call, int]]) -> None:
        """Send each request's outputs, step by step, as `process` yields values for the whole batch."""
        for call, _ in members:
            call.output = STREAMED
        try:
            async with contextlib.aclosing(_iterate(steps.values)) as values:
                async for value in values:
                    parts = steps.split(self._hooks.check_fetch(value))
                    for call, number in members:
                        await self._send_step(call, parts[number])
                    if all(call.sender.closed or call.sender.is_cancelled() for call, _ in members):
                        break
            for call, _ in members:
                call.sender.send(None, last=True)
        except BaseException as exc:
            for call, _ in members:
                self._fail(call, exc, "process")

    async def _send_step(self, call: Call, fetch: Any) -> None:
        """Send one request's outputs of one step of `process`, after its `postprocess`."""
        if call.sender.closed or call.sender.is_cancelled():
            return
        assert call.op is not None
        try:
            if self._hooks.streams_postprocess:
                await self._send_values(call, self._hooks.begin_postprocess(call.op, call.request, fetch))
            else:
                call.sender.send(self._hooks.postprocess(call.op, call.request, fetch), last=False)
        except BaseException as exc:
            self._fail(call, exc, "postprocess")

    async def _send_values(self, call: Call, generator: Any) -> None:
        async with contextlib.aclosing(_iterate(generator)) as values:
            async for value in values:
                if call.sender.is_cancelled():
                    return
                call.sender.send(self._hooks.check_output(value), last=False)

    def _fail(self, call: Call, exc: BaseException, hook: str) -> None:
        if not call.sender.closed:
            call.sender.send(self._hooks.failure(exc, hook, call.request), last=True)


async def _iterate(generator: Any) -> AsyncGenerator[Any, None]:
    """Yield the values of a generator, plain or asynchronous, and close it at the end.

    After each value of a plain generator, other requests may run.
    """
    if isinstance(generator, AsyncIterator):
        try:
            async for value in generator:
                yield value
        finally:
            await generator.aclose()  # type: ignore[attr-defined]  # of generators
        return
    if not hasattr(generator, "close"):
        raise HookFailed(f"a generator is expected, not {type(generator).__name__}")
    with contextlib.closing(generator):
        for value in generator:
            yield value
            await asyncio.sleep(0)

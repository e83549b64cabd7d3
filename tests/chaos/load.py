"""The load: callers at every endpoint, each with one question at a time, and the checks of the answers."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import sys
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from statistics import median
from typing import Any

import grpc

from tests.chaos.endpoints import ENDPOINTS, OVER_HTTP, Endpoint, KeyValueHttp
from tests.chaos.outcome import HEALTH, Kind, Outcome, Tally
from tests.chaos.questions import Question, Questions
from tests.chaos.world import World

PATIENCE_S = 45.0  # longer than any deadline of the service: who waits longer was forgotten
HEALTH_PATIENCE_S = 5.0
HEALTH_EVERY_S = 0.1
PAUSE_S = 0.05  # after a refusal
_LONE_REQUESTS = 200
_SWITCH_S = 0.0005  # the probe of health gets Python's lock after so long at the latest


class Load:
    """Asks until it is left; `tally` has what became of each question."""

    def __init__(self, world: World, questions: Questions, callers: int) -> None:
        self.world = world
        self.questions = questions
        self.tally = Tally()
        self._callers = callers
        self._stop = False
        self._stopped = threading.Event()  # ends the probe of health

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """`callers` at each endpoint on entry; on exit each has had its last answer."""
        sys.setswitchinterval(_SWITCH_S)
        async with asyncio.TaskGroup() as group:
            for calls in self._list_calls():
                group.create_task(calls)
            group.create_task(asyncio.to_thread(self._watch_health))
            try:
                yield
            finally:
                self._stop = True
                self._stopped.set()
        await self._close()

    def _list_calls(self) -> list[Coroutine[Any, Any, None]]:
        """Return a coroutine for each caller."""
        calls = []
        for kind in ENDPOINTS:
            port = self.world.http_port if kind in OVER_HTTP else self.world.rpc_port
            shared = None if kind in OVER_HTTP else kind(port)  # a channel takes many calls
            calls += [self._call(shared or kind(port)) for _ in range(self._callers)]
        return calls

    async def _close(self) -> None:
        """Close what the callers share."""

    async def alone_s(self) -> float:
        """What a request takes while there is no other: the median."""
        endpoint = KeyValueHttp(self.world.http_port)
        took_s = []
        for _ in range(_LONE_REQUESTS):
            began = time.monotonic()
            await self.ask_alone(endpoint, self.questions.next())
            took_s.append(time.monotonic() - began)
        await endpoint.close()
        return median(took_s)

    async def _call(self, endpoint: Endpoint) -> None:
        while not self._stop:
            outcome = await self.ask(endpoint, self.questions.next())
            if outcome.kind is not Kind.ANSWERED:
                await asyncio.sleep(PAUSE_S)
        await endpoint.close()

    def _watch_health(self) -> None:
        """Probe `/health/live` in a thread of its own, as an orchestrator does from outside.

        In the event loop of the callers a probe would also wait for their work.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.world.http_port, timeout=HEALTH_PATIENCE_S)
        while not self._stopped.wait(HEALTH_EVERY_S):
            began, gone_before = time.monotonic(), self.world.away
            try:
                connection.request("GET", HEALTH)
                response = connection.getresponse()
                response.read()
                if gone_before or self.world.away:  # the probe waited for an ordered restart
                    outcome = Outcome(Kind.REFUSED, "restarting")
                else:
                    answered = Kind.ANSWERED if response.status == 200 else Kind.FAILED
                    outcome = Outcome(answered, f"status {response.status}")
            except (OSError, http.client.HTTPException) as exc:
                away = gone_before or self.world.away
                outcome = Outcome(Kind.REFUSED, "restarting") if away else Outcome(Kind.FAILED, repr(exc))
                connection.close()
            self.tally.note(HEALTH, outcome, began)
        connection.close()

    async def ask(self, endpoint: Endpoint, question: Question) -> Outcome:
        """Ask, compare, and write it down."""
        began = time.monotonic()
        gone_before = self.world.away
        outcome = await self.ask_alone(endpoint, question)
        if outcome.kind is Kind.REFUSED and outcome.reason == "not there":
            if gone_before or self.world.away:
                outcome = Outcome(Kind.REFUSED, "restarting")
            else:
                outcome = Outcome(Kind.FAILED, "nobody was there, though the service was up")
        self.tally.note(endpoint.name, outcome, began)
        return outcome

    async def ask_alone(self, endpoint: Endpoint, question: Question) -> Outcome:
        """Ask and compare; of "not there" the caller judges whether it may be."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer = await endpoint.ask(question.texts)
        except ConnectionRefusedError:
            return Outcome(Kind.REFUSED, "not there")
        except TimeoutError:
            return Outcome(Kind.FAILED, f"no answer in {PATIENCE_S:g} s")
        except (OSError, EOFError, ValueError, KeyError, grpc.RpcError) as exc:
            return Outcome(Kind.FAILED, f"{type(exc).__name__}: {exc}"[:160])
        if isinstance(answer, Outcome):
            return answer
        if not question.answered_by(answer):
            return Outcome(Kind.MISMATCHED, f"{answer} in place of {question.expected}")
        return Outcome(Kind.ANSWERED)


def endpoints(world: World) -> Sequence[Endpoint]:
    """One of each."""
    return [kind(world.http_port if kind in OVER_HTTP else world.rpc_port) for kind in ENDPOINTS]

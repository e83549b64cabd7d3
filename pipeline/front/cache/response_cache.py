"""The response cache of a server: looks requests up, runs identical requests once, and stores responses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from pipeline.errors import ServingError, get_error_text
from pipeline.front.cache.keys import CacheKey, build_request_key, build_step_key
from pipeline.front.cache.local import CachedOutput, LocalCache
from pipeline.front.cache.redis_cache import RedisCache
from pipeline.front.dag_run import Answer, DagRun, Inputs
from pipeline.front.metrics.metrics import CacheFigures
from pipeline.messages.frames import Part
from pipeline.messages.messages import Outcome
from pipeline.process.isolation import log_fault

log = logging.getLogger(__name__)


class Waiter(Protocol):
    """A request, or one step of an ensemble's request, that a cached response can complete."""

    @property
    def wanted(self) -> bool:
        """Whether the request still needs the output."""
        ...

    def accept(self, output: CachedOutput) -> None:
        """Complete the request or the step with a cached output."""
        ...

    def run(self, flight: Flight | None) -> None:
        """Run the request or the step without a cached output.

        flight: stores the output, and completes identical requests that wait; None if the output is not
        cached.
        """
        ...

    def fail(self, error: ServingError) -> None:
        """End the request with an error."""
        ...


class WaitingRequest:
    """A request to a model whose responses are cached."""

    def __init__(self, dag_run: DagRun) -> None:
        self._dag_run = dag_run

    @property
    def wanted(self) -> bool:
        return not self._dag_run.has_ended

    def accept(self, output: CachedOutput) -> None:
        if self.wanted:
            self._dag_run.is_cached = True
            self._dag_run.end(list(output.parts))

    def run(self, flight: Flight | None) -> None:
        if flight is not None:
            self._dag_run.flights[""] = flight
        self._dag_run.begin()

    def fail(self, error: ServingError) -> None:
        self._dag_run.end(error)


class WaitingStep:
    """A step of an ensemble's request whose output may come from the response cache."""

    def __init__(
        self, dag_run: DagRun, node: str, inputs: Inputs, enqueue: Callable[[DagRun, str, Inputs], None]
    ) -> None:
        """Create the step. enqueue: adds the step to the queue of its model."""
        self._dag_run = dag_run
        self._node = node
        self._inputs = inputs
        self._enqueue = enqueue

    @property
    def wanted(self) -> bool:
        return self._dag_run.awaited.get(self._node) is self._inputs

    def accept(self, output: CachedOutput) -> None:
        if not self.wanted:
            return
        dag_run, node = self._dag_run, self._node
        dag_run.awaited[node] = []
        if output.outcome is Outcome.ANSWER:
            dag_run.end(list(output.parts))
        else:
            dag_run.deliver(node, node, list(output.parts))

    def run(self, flight: Flight | None) -> None:
        if flight is not None:
            self._dag_run.flights[self._node] = flight
            self._dag_run.cancels.append(partial(flight.abandon, self))
        self._enqueue(self._dag_run, self._node, self._inputs)

    def fail(self, error: ServingError) -> None:
        self._dag_run.end(error)


class Flight:
    """A running request whose response is not cached yet, and identical requests that wait for the response.

    With a Redis cache, the lookup in Redis is also part of the flight.
    """

    def __init__(
        self, cache: ResponseCache, key: CacheKey, figures: CacheFigures, leader: Waiter, lookup_ns: int = 0
    ) -> None:
        """Create the flight of one key.

        leader: the request that runs. lookup_ns: duration of its cache lookup.
        """
        self._cache = cache
        self._key = key
        self._figures = figures
        self._leader: Waiter | None = leader
        self._lookup_ns = lookup_ns
        self.waiters: deque[Waiter] = deque()

    def succeed(self, outcome: Outcome, parts: Sequence[Part]) -> None:
        """Store the output of the request, and complete the waiting requests with it."""
        output = CachedOutput(outcome, tuple(bytes(part) for part in parts))
        self._land()
        insertion_ns = self._cache.store(self._key, output)
        self._figures.record_miss(self._lookup_ns + insertion_ns)
        self._complete(self.waiters, output)

    def end_lookup(self, began_ns: int, output: CachedOutput | None) -> None:
        """Complete all requests with the output from Redis. If Redis has none, run the first request.

        began_ns: the instant when the lookup began.
        """
        lookup_ns = time.perf_counter_ns() - began_ns
        leader = self._leader
        assert leader is not None, "the leader stays until the lookup has ended"
        if output is None:
            self._lookup_ns = lookup_ns
            self._run_leader(leader)
            return
        self._land()
        self._complete([leader, *self.waiters], output, lookup_ns)

    def _complete(self, waiters: Iterable[Waiter], output: CachedOutput, lookup_ns: int = 0) -> None:
        """Complete requests with an output. lookup_ns: duration of the cache lookup that found the output."""
        loop = asyncio.get_running_loop()
        for waiter in waiters:
            if waiter.wanted:
                self._cache.hits += 1
                self._figures.record_hit(lookup_ns)
                loop.call_soon(waiter.accept, output)

    def fail(self) -> None:
        """Run each waiting request on its own, because the running request has failed.

        The error may concern only the failed request, such as an expired deadline.
        """
        self._land()
        self._figures.record_miss(self._lookup_ns)
        loop = asyncio.get_running_loop()
        for waiter in self.waiters:
            if waiter.wanted:
                self._figures.misses += 1
                loop.call_soon(_run, waiter, None)

    def end(self, answer: Answer | None) -> None:
        """Handle the end of the running request: a response, an error, or None if its client has left."""
        if isinstance(answer, list):
            self.succeed(Outcome.ANSWER, answer)
        elif answer is None:
            self.abandon(self._leader)
        else:
            self.fail()

    def abandon(self, leader: Waiter | None) -> None:
        """Run the next waiting request, because the client of `leader` has left.

        Does nothing after the flight's end.
        """
        if self._leader is None or leader is not self._leader:
            return
        while self.waiters:
            self._leader = self.waiters.popleft()
            if self._leader.wanted:
                asyncio.get_running_loop().call_soon(self._run_leader, self._leader)
                return
        self._figures.record_miss(self._lookup_ns)
        self._land()

    def _run_leader(self, leader: Waiter) -> None:
        if not leader.wanted:
            self.abandon(leader)
            return
        self._figures.misses += 1
        _run(leader, self)

    def _land(self) -> None:
        """End the flight: later requests with the same key start a new flight."""
        self._leader = None
        self._cache.remove_flight(self._key)


def _run(waiter: Waiter, flight: Flight | None) -> None:
    """Run a request that has waited for the cache.

    If the front end's own code raises, the request ends with an error.
    """
    try:
        waiter.run(flight)
    except Exception as exc:
        log_fault(waiter.run)
        waiter.fail(ServingError(f"the request can't be run: {get_error_text(exc)}"))


class ResponseCache:
    """The response cache of models with `response_cache { enable: true }`, keyed by model and raw inputs.

    A hit needs no worker. Identical requests in flight run once. Requests of sequences, streams and decoupled
    models, and requests with outputs in shared memory, bypass the cache. Steps of ensembles are looked up in
    the local cache only.
    """

    def __init__(self, store: LocalCache | RedisCache) -> None:
        self.store_bytes = store.max_bytes
        self.outputs = store
        self.lookups = 0
        self.hits = 0
        self.oversized = 0  # responses that were larger than the cache
        self._flights: dict[CacheKey, Flight] = {}

    def begin(self, dag_run: DagRun, domain: bytes, figures: CacheFigures) -> None:
        """Answer a request from the cache, or run it.

        domain: bytes that identify the loaded model in the key.
        """
        waiter = WaitingRequest(dag_run)
        if not _is_cacheable(dag_run):
            waiter.run(None)
            return
        began_ns = time.perf_counter_ns()
        key = build_request_key(domain, dag_run.request, self.store_bytes)
        self._serve(key, waiter, figures, began_ns)

    def begin_step(
        self,
        enqueue: Callable[[DagRun, str, Inputs], None],
        domain: bytes,
        figures: CacheFigures,
        dag_run: DagRun,
        node: str,
        inputs: Inputs,
    ) -> None:
        """Complete a step of an ensemble from the cache, or add it to the queue of its model by `enqueue`."""
        waiter = WaitingStep(dag_run, node, inputs, enqueue)
        # Outputs of steps may be pickled, and pickles never come from the network.
        if isinstance(self.outputs, RedisCache) or not _is_cacheable(dag_run):
            waiter.run(None)
            return
        began_ns = time.perf_counter_ns()
        key = build_step_key(domain, dag_run, node, inputs, self.store_bytes)
        self._serve(key, waiter, figures, began_ns)

    def _serve(self, key: CacheKey | None, waiter: Waiter, figures: CacheFigures, began_ns: int) -> None:
        self.lookups += 1
        if key is None:
            figures.misses += 1
            figures.record_miss(time.perf_counter_ns() - began_ns)
            waiter.run(None)
            return
        if (flight := self._flights.get(key)) is not None:
            flight.waiters.append(waiter)
            return
        if isinstance(self.outputs, RedisCache):
            flight = self._flights[key] = Flight(self, key, figures, waiter)
            self.outputs.find(key, partial(flight.end_lookup, began_ns))
            return
        output = self.outputs.find(key)
        took_ns = time.perf_counter_ns() - began_ns
        if output is not None:
            self.hits += 1
            figures.record_hit(took_ns)
            # Later, for the admission of the request has not returned yet.
            asyncio.get_running_loop().call_soon(waiter.accept, output)
            return
        figures.misses += 1
        flight = self._flights[key] = Flight(self, key, figures, waiter, took_ns)
        waiter.run(flight)

    def store(self, key: CacheKey, output: CachedOutput) -> int:
        """Store a response, and return the nanoseconds that it took.

        A response that is larger than the cache is counted, and not stored.
        """
        began_ns = time.perf_counter_ns()
        if not self.outputs.store(key, output):
            self.oversized += 1
            if self.oversized == 1:
                log.warning(
                    "A response of %d bytes is larger than the response cache (%d bytes) and is not cached; "
                    "raise size in --cache-config=local",
                    output.size, self.outputs.max_bytes,
                )  # fmt: skip
        return time.perf_counter_ns() - began_ns

    async def close(self) -> None:
        """Close the connections to Redis."""
        if isinstance(self.outputs, RedisCache):
            await self.outputs.close()

    def remove_flight(self, key: CacheKey) -> None:
        """Forget a flight that has ended, so that later requests with its key start a new flight."""
        self._flights.pop(key, None)


def _is_cacheable(dag_run: DagRun) -> bool:
    """Return whether the response to a request may come from the cache, and may be stored in it."""
    request = dag_run.request
    options = request.options
    return (
        not request.decoupled
        and request.stream is None
        and not dag_run.turns
        and (request.finish is None or request.finish.is_cacheable)
        and (options is None or not (options.correlation_id or options.flags))
    )

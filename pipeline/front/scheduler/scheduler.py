"""The scheduler of a service: admits requests, runs them through the DAG of Ops, and owns the worker pools.

HTTP and gRPC listeners call it. It contains no code of a protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from pipeline.api.app import App, ServedModel
from pipeline.api.cache_settings import CacheSettings, LocalSettings
from pipeline.api.dag import JOINT, MESSAGE, build_joint_dag
from pipeline.errors import (
    NotReady,
    Overloaded,
    ServingError,
    StartFailed,
    UnknownService,
    UnprintableAnswer,
)
from pipeline.front.cache.keys import get_model_domain, get_shared_domain, get_step_domain
from pipeline.front.cache.local import LocalCache
from pipeline.front.cache.redis_cache import RedisCache
from pipeline.front.cache.response_cache import ResponseCache
from pipeline.front.dag_run import Answer, Client, DagRun, Entry, FairQueue, Inputs, OpQueue, Request
from pipeline.front.metrics.access_log import AccessLog, Tracer
from pipeline.front.metrics.growth import Totals, add_metrics_growth
from pipeline.front.metrics.latencies import ModelLatencies
from pipeline.front.metrics.metrics import (
    CacheFigures,
    Distribution,
    Failures,
    Metrics,
    OpFigures,
    RequestFigures,
    RequestTimings,
    custom_metrics,
)
from pipeline.front.metrics.recent_errors import RecentErrors
from pipeline.front.pool.outputs import Outputs
from pipeline.front.pool.plan import Plan, plan
from pipeline.front.pool.scaling import Scaling
from pipeline.front.pool.shards import Shards
from pipeline.front.pool.upkeep import AbandonedCalls, Upkeep
from pipeline.front.pool.worker_pool import PoolServices, Starts, WorkerPool
from pipeline.front.pool.worker_process import WorkerProcess
from pipeline.front.scheduler.admission import Admission, KeyRing, Peers
from pipeline.front.scheduler.batcher import Batcher
from pipeline.front.scheduler.gauges import register_gauges, watch_shards, watch_traces
from pipeline.front.scheduler.run_limiter import RunLimiter
from pipeline.front.scheduler.sequences import end_turns
from pipeline.front.tracing.traces import Traces
from pipeline.messages.messages import STOP_HANDLER_S
from pipeline.models.serving_model import UNVERSIONED
from pipeline.process.environment import usable_cores
from pipeline.process.isolation import isolated, run_isolated


def _open_cache(settings: CacheSettings) -> ResponseCache:
    if isinstance(settings, LocalSettings):
        return ResponseCache(LocalCache(settings.size))
    return ResponseCache(RedisCache(settings))


def _stop_expiry(batchers: Iterable[Batcher]) -> None:
    """Stop batchers that get no new requests from expiring sequences and from waiting for resources."""
    for batcher in batchers:
        if batcher.limited is not None:
            batcher.limited.close()
        if batcher.sequences is not None:
            batcher.sequences.stop()


class AwaitedEnds:
    """Waits until all requests of some models that began before an instant have ended.

    Used before models are unloaded or replaced.
    """

    def __init__(self, began_before: float, entries: Iterable[Entry]) -> None:
        """Start to count. began_before: instant of time.monotonic(). entries: the states of the models."""
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._began_before = began_before
        self._entries = set(entries)
        self._open = sum(entry.pending for entry in self._entries)  # requests that have not ended yet

    def record(self, dag_run: DagRun) -> None:
        """Count a request that has ended, if it is one of the awaited requests."""
        if dag_run.began < self._began_before and dag_run.entry in self._entries:
            self._open -= 1
            if self._open == 0 and not self._over.done():
                self._over.set_result(None)

    async def over(self, timeout_s: float) -> None:
        """Wait until all awaited requests have ended, but at most `timeout_s` seconds."""
        if self._open:
            await asyncio.wait({self._over}, timeout=timeout_s)


log = logging.getLogger(__name__)

_Figures = TypeVar("_Figures", OpFigures, RequestFigures)

WORKER_GRACE_S = 5.0  # time for the end of workers after the drain
TICKS_PER_S = 100  # resolution of `Deadlines`: buckets cost less than a timer for each request


class Tap(Protocol):
    """Interface of a model upgrade: copies or redirects an Op's requests to another version's workers."""

    def pass_on(
        self, enqueue: Callable[[DagRun, str, Inputs], None], dag_run: DagRun, node: str, inputs: Inputs
    ) -> None:
        """Queue a task for the served version or the other version, and copy it if the versions are compared.

        enqueue: queues a task for the served version.
        """
        ...


class Deadlines:
    """Timer for the deadlines of requests: ends expired requests with DeadlineExceeded (HTTP 504).

    Its resolution is ten milliseconds.

    Requests that expire in the same tick share a bucket, and only the earliest bucket has a timer. An
    answered request is removed from its bucket. While all requests are answered in time, the timer fires
    about once per `request_timeout`.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, dict[DagRun, None]] = {}  # in the order of their arrival
        self._timer: asyncio.TimerHandle | None = None
        self._timer_key = 0

    def expire_at(self, dag_run: DagRun, deadline: float) -> int:
        """Let a request expire at `deadline`, an instant of time.monotonic().

        Return the key for `discard`.
        """
        key = int(deadline * TICKS_PER_S) + 1
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = {}
            if self._timer is None or key < self._timer_key:
                self._arm(key)
        bucket[dag_run] = None
        return key

    def discard(self, dag_run: DagRun, key: int) -> None:
        """Remove a request that has ended. key: the result of `expire_at`."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.pop(dag_run, None)
            if not bucket:
                del self._buckets[key]

    def stop(self) -> None:
        """Stop the timer: no further request expires."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, key: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_key = key
        wait_s = max(0.0, key / TICKS_PER_S - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = time.monotonic()
        for key in [key for key in self._buckets if key <= int(now * TICKS_PER_S)]:
            for dag_run in self._buckets.pop(key):
                run_isolated(self._expire_run, dag_run, now)
        if self._buckets:
            self._arm(min(self._buckets))

    def _expire_run(self, dag_run: DagRun, now: float) -> None:
        """End an expired request. If it has sent the first of several answers, await its new deadline."""
        if dag_run.answered_at and (deadline := dag_run.get_deadline()) > now:
            dag_run.due_key = self.expire_at(dag_run, deadline)
        else:
            dag_run.expire()


class Scheduler:
    """Core of a running service: admission, the queues and workers of its Ops, and requests in flight.

    takes_messages: whether the app's own RequestOp parses the request; its inputs are then the raw bytes.
    recorded: called with path and body of each answered HTTP request; None while requests are not recorded.

    shards: worker processes that serve HTTP connections themselves; None if the service has none.
    """

    def __init__(
        self,
        app: App,
        metrics: Metrics,
        outputs: Outputs,
        *,
        create_plan: Callable[[App, str], Plan] | None = None,
        create_process: Callable[..., WorkerProcess] | None = None,
    ) -> None:
        """Create the queues and worker pools of all Ops. The context manager `running` starts the workers.

        create_plan, create_process: create the plan and the processes of an Op's workers. A shard runs its Op
        in threads of its own process.
        """
        config = app.config.dag
        self.app = app
        self.metrics = metrics
        self.outputs = outputs
        self.access_log = AccessLog(metrics)
        self.recent_errors = RecentErrors()
        self.fatal: asyncio.Future[StartFailed] = asyncio.get_running_loop().create_future()
        self.takes_messages = app.default is not None and app.default.graph.source == MESSAGE
        starts = Starts((app.repository and app.repository.starts) or usable_cores())
        self.shards: Shards | None = None
        if create_process is None:
            if app.config.shards > 1:
                self.shards = Shards(app.config.limits.max_connections, self._add_growth)
            create_process = partial(WorkerProcess, shards=self.shards)
        self._create_plan = create_plan or plan
        self._services = PoolServices(
            starts,
            outputs,
            self._check_all_ready,
            self._fail_start,
            create_process,
            0 if app.repository is None else app.repository.load_retries,
        )
        self.recorded: Callable[[str, bytes], None] | None = None
        self.traces = Traces(app.config.trace)
        self._deadlines = Deadlines()
        self._anyone = Client()  # stands for clients that a listener can't distinguish
        self._tracer = Tracer(metrics, app.ops, config.tracer.interval_s)
        self._has_summaries = app.repository is not None and app.repository.metrics.summary_latencies
        self._batchers: dict[str, Batcher] = {}
        self._max_pending = config.max_pending_requests
        self._admission = Admission(self._batchers, self._max_pending, config.max_pending_rows)
        self._taps: dict[str, Tap] = {}  # by Op with an upgrade
        limits = app.repository and app.repository.resource_limits
        self._limiter = None if limits is None else RunLimiter(limits)
        self._update_limiter()
        for op in (*app.ops, *app.joint_ops):
            figures = metrics.of_ops[op] = self._create_figures(OpFigures)
            self._batchers[op] = self._create_batcher(op, app, figures)
        self._pools = {op: batcher.pool for op, batcher in self._batchers.items()}
        settings = app.repository and app.repository.cache
        self._cache = _open_cache(settings) if settings else None
        self._entries: dict[str, Entry] = {}
        self._former_entries: list[Entry] = []  # of models before a load, while they have requests
        self._renew_entries()
        self._most_bytes = app.config.limits.response_bytes
        self._timeout_s = config.request_timeout or math.inf
        self._profiles = config.use_profile
        self._pending = 0
        self._drained = asyncio.Event()
        self._became_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._accepting = True
        self._unloaded: set[str] = set()
        self._keepers: dict[WorkerPool, contextlib.AsyncExitStack] = {}
        self.start_failures: dict[str, str] = {}  # by Op, until it is loaded
        self._awaited_ends: list[AwaitedEnds] = []
        security = app.config.security
        self.peers = Peers()
        self.keys = None if security.api_keys is None else KeyRing(security)
        register_gauges(metrics, self._batchers, lambda: self._pending, self.keys, app.config, self.shards)
        if self.shards is not None:
            watch_shards(metrics, self.shards)
        if self.traces.is_possible:
            watch_traces(metrics, self.traces)
        metrics.add(
            lambda: custom_metrics(p.own_metrics for pool in self._pools.values() for p in pool.processes)
        )

    def batcher(self, op: str, app: App) -> Batcher:
        """Create a batcher, with its worker pool, for a pipeline step (Op) of a new or reloaded app.

        The batcher gets requests after `replace_app`.
        """
        figures = self.metrics.of_ops.setdefault(op, self._create_figures(OpFigures))
        return self._create_batcher(op, app, figures)

    def _create_figures(self, kind: type[_Figures]) -> _Figures:
        """Create the metrics of an Op or of a model with several Ops.

        They include latency summaries if the server has them.
        """
        if not self._has_summaries:
            return kind()
        latencies = ModelLatencies()
        return kind(cache=CacheFigures(latencies=latencies), latencies=latencies)

    def _create_batcher(self, op: str, app: App, figures: OpFigures) -> Batcher:
        fair_queue, update_paces = self._admission.fair_queue, self._admission.update_paces
        plan = self._create_plan(app, op)
        of_steps = self.metrics.of_ops if op in app.joint_ops else None
        return Batcher(
            op,
            app.config,
            plan,
            figures,
            fair_queue,
            update_paces,
            self._services,
            of_steps,
            self._limiter,
        )

    def create_batcher_beside(self, op: str, plan: Plan, live_op: str = "") -> Batcher:
        """Create a batcher, with its worker pool, for another version of a model beside the served version.

        A failure of the workers has no effect on the service. The workers are no shards.

        live_op: the Op whose requests run here and are counted in the Op's metrics and fair queue. Empty for
        copies of requests, which no metric counts.
        """
        services = self._services._replace(pool_ready=lambda: None, start_failed=lambda pool: None)
        if self.shards is not None:
            services = services._replace(create_process=WorkerProcess)
        figures = self.metrics.of_ops[live_op] if live_op else OpFigures()
        fair_queue = self._admission.fair_queue if live_op else FairQueue()
        return Batcher(op, plan.app.config, plan, figures, fair_queue, lambda: None, services)

    def mirror(self, op: str, tap: Tap | None) -> None:
        """Pass the requests for a pipeline step (Op) through `tap`.

        With None, stop passing them through a tap.
        """
        if tap is None:
            self._taps.pop(op, None)
        else:
            self._taps[op] = tap
        self._renew_entries()

    def is_idle(self, op: str) -> bool:
        """Return whether the pipeline step (Op) has an instance without work, and no request is queued."""
        batcher = self._batchers.get(op)
        return batcher is not None and batcher.idle

    def _update_limiter(self) -> None:
        """Tell the rate limiter the resource needs of all instances of the served models."""
        if self._limiter is not None:
            app = self.app
            self._limiter.update_models(need for op in app.ops for need in app.get_run_needs(op))

    def limit_batches(self, op: str, requests: int) -> None:
        """Set the maximum number of requests in one execution of this Op's model."""
        self._batchers[op].limit_batches(requests)

    def _queue(self, op: str) -> OpQueue:
        batcher = self._batchers[op]
        return OpQueue(self._find_enqueue(op), batcher.record_error)

    def _find_enqueue(self, op: str) -> Callable[[DagRun, str, Inputs], None]:
        """Return the function that queues a task for an Op. During an upgrade, the function calls its tap."""
        tap, enqueue = self._taps.get(op), self._batchers[op].enqueue
        return enqueue if tap is None else partial(tap.pass_on, enqueue)

    def _step_queue(self, op: str) -> OpQueue:
        """Return the queue of an Op for the steps of ensembles, with the response cache in front of it."""
        batcher = self._batchers[op]
        if self._cache is None or not any(model.op == op and model.uses_cache for model in self.app.models):
            return self._queue(op)
        domain, figures = get_step_domain(op, batcher.number), self.metrics.of_ops[op].cache
        return OpQueue(
            partial(self._cache.begin_step, self._find_enqueue(op), domain, figures), batcher.record_error
        )

    def _entry(self, model: ServedModel, requests: RequestFigures | None = None) -> Entry:
        """Return the state that all requests of a model share: its DAG, queues, limits and metrics.

        requests: totals of the model's requests so far.
        """
        graph, config = model.graph, self.app.config.dag
        with_version = [op for op in graph.ops if self._pools[op].plan.version and not model.version]
        requests = None if model.op else requests or self._create_figures(RequestFigures)
        get_queue = self._queue if model.op else self._step_queue
        entry = Entry(
            model.key,
            graph,
            {node.name: get_queue(node.op) for node in graph.nodes.values()},
            self._ended,
            config.max_hops,
            config.retry,
            model.describe_step if model.is_ensemble else None,
            version=model.version or UNVERSIONED,
            versioned=with_version[0] if len(with_version) == 1 else "",
            requests=requests,
            max_branches=model.max_inflight_requests,
            max_answer_bytes=self.app.config.limits.response_bytes,
            load_hint=model.load_hint,
            sequences=tuple(filter(None, (self._batchers[op].sequences for op in graph.ops))),
            failures=self.metrics.of_ops[model.op].failures if requests is None else requests.failures,
            step_ops={node.name: node.op for node in graph.nodes.values()},
            first_response_ms=self._create_histogram(model, requests),
        )
        if self._cache is not None and model.uses_cache:
            figures = self.metrics.of_ops[model.op].cache if requests is None else requests.cache
            domain = self._get_cache_domain(model, self._cache)
            entry.begin_cached = partial(self._cache.begin, domain=domain, figures=figures)
        if model.joint_op:
            queues = {**entry.queues, JOINT: self._queue(model.joint_op)}
            entry.joint = msgspec.structs.replace(entry, dag=build_joint_dag(model.joint_op), queues=queues)
        return entry

    def _get_cache_domain(self, model: ServedModel, cache: ResponseCache) -> bytes:
        """Return the part of a response's key that identifies the loaded model."""
        ops = model.graph.ops
        if isinstance(cache.outputs, RedisCache):
            return get_shared_domain(model, {file for op in ops for file in self._pools[op].plan.files})
        return get_model_domain(model, [self._batchers[op].number for op in ops])

    def _create_histogram(self, model: ServedModel, requests: RequestFigures | None) -> Distribution | None:
        """Return the histogram of a decoupled model's time to the first response. A reload keeps its counts.

        requests: totals of the model's requests. Returns None if the server has no histograms, and for a
        model with exactly one response per request.
        """
        repository = self.app.repository
        if repository is None or not repository.metrics.histogram_latencies or not model.is_decoupled:
            return None
        figures = self.metrics.of_ops[model.op] if requests is None else requests
        bounds = model.first_response_buckets
        if figures.first_response_ms is None or figures.first_response_ms.bounds != bounds:
            figures.first_response_ms = Distribution(bounds)
        return figures.first_response_ms

    @property
    def cache(self) -> ResponseCache | None:
        """The response cache; None if the server has none."""
        return self._cache

    def is_cached(self, model: str) -> bool:
        """Return whether a model's responses may come from the response cache. model: the model's key."""
        return self._entries[model].begin_cached is not None

    def keeps_sequences(self, model: str) -> bool:
        """Return whether the requests of a model belong to sequences. model: its key."""
        return bool(self._entries[model].sequences)

    def serves_sequences(self) -> bool:
        """Return whether the requests of any model belong to sequences."""
        return self._serves_sequences

    @property
    def batchers(self) -> Mapping[str, Batcher]:
        """The queue of each pipeline step (Op), by the Op's name."""
        return self._batchers

    @property
    def pending(self) -> int:
        """Number of admitted requests without an answer."""
        return self._pending

    @property
    def pools(self) -> Mapping[str, WorkerPool]:
        """The worker pool of each pipeline step (Op), by the Op's name."""
        return self._pools

    def version(self, model: str) -> str:
        """Return the version of a model for its responses. model: key of the model, as in all methods here.

        If not exactly one Op of the model has versions, the result is constant.
        """
        entry = self._entries[model]
        return self._pools[entry.versioned].plan.version if entry.versioned else entry.version

    @property
    def ready(self) -> bool:
        """Whether the service passes its readiness check.

        Every Op needs a warmed instance that seems to work, and the service must not be stopping.
        """
        if not self.app.exit_on_error:
            return self.server_ready
        is_settled = self._became_ready.done() and not self._unloaded
        return is_settled and all(map(self.op_ready, self.app.ops))

    def model_ready(self, model: str) -> bool:
        """Return whether a model is ready: each pipeline step (Op) has a worker that seems to work.

        If a Python model has a method `is_ready`, it must also return true.
        """
        ops = self._entries[model].dag.ops
        return all(self.op_ready(op) and self._pools[op].is_model_ready for op in ops)

    @property
    def server_ready(self) -> bool:
        """Whether the server as a whole is ready, for KServe's server readiness.

        Every Op needs an instance that seems to work, except Ops that were unloaded by request. After the
        start, Ops that run all steps of an ensemble in one worker don't count, because the Ops of the steps
        can serve the ensemble.
        """
        return (
            self._accepting
            and not self.app.repository_error
            and self._became_ready.done()
            and not (self.app.requires_all_models and (self.start_failures or self.app.has_failed_models))
            and all(map(self.op_ready, self._pools.keys() - self._unloaded.union(self.app.joint_ops)))
        )

    def op_ready(self, op: str) -> bool:
        """Return whether the pipeline step (Op) accepts requests, and has a worker that seems to work."""
        return self._accepting and op not in self._unloaded and self._batchers[op].sound > 0

    def waiting(self, op: str) -> int:
        """Return the number of requests in the queue of the pipeline step (Op)."""
        return self._batchers[op].waiting

    def readiness(self) -> dict[str, dict[str, int]]:
        """Return the numbers of ready and of configured workers by pipeline step, for /health/ready."""
        return {op: {"ready": b.sound, "instances": b.pool.size} for op, b in self._batchers.items()}

    def failures(self, model: str) -> Failures:
        """Return the counts of a model's failed requests by reason.

        A model of a single Op has the counts of that Op.
        """
        return self._entries[model].failures

    def requests(self, model: str) -> RequestFigures | None:
        """Return the totals of a model's requests: counts, rows and seconds.

        Returns None for a model of a single Op, because the metrics of the Op count its requests.
        """
        return self._entries[model].requests

    def request_figures(self) -> dict[str, RequestFigures]:
        """Return the request totals of each model with several Ops, by the model's key."""
        return {entry.model: entry.requests for entry in self._entries.values() if entry.requests is not None}

    def _add_growth(self, now: Totals, before: Totals | None) -> None:
        add_metrics_growth(self.metrics, self.request_figures(), now, before)

    def deadline(self, timeout_s: float = math.inf, began: float = 0.0) -> float:
        """Return the deadline of a request as an instant of time.monotonic(); infinite if there is no limit.

        timeout_s: the client's timeout; `request_timeout` is the maximum. began: arrival of the request; 0
        for now.
        """
        least_s = timeout_s if timeout_s < self._timeout_s else self._timeout_s
        return (began or time.monotonic()) + least_s

    @isolated(None)
    def begin_trace(self, request: Request, protocol: str, received_at: float, traceparent: str) -> None:
        """Decide whether a request is traced, and begin its trace. Call this only if `traces.is_on` is set.

        protocol: HTTP or GRPC. received_at: instant of time.monotonic(). traceparent: value of the header
        `traceparent`; empty if it is missing.
        """
        entry = self._entries.get(request.model)
        trace = None if entry is None else self.traces.sample(request.service, traceparent)
        if entry is None or trace is None:
            return
        request_id = "" if request.options is None else request.options.id
        version = self.version(request.model)
        is_single = len(entry.dag.nodes) == 1 and entry.describe_step is None
        trace.begin(protocol, received_at, request.service, version, request_id, is_single=is_single)
        request.trace = trace

    def begin_request(self, request: Request, answered: Callable[[Answer], None]) -> DagRun:
        """Admit a request and start it. `answered` is called once, later, with the response body or an error.

        Returns the running request. Its method `leave` drops queued work after the client has disconnected.
        Raises ServingError for a request that is not admitted.
        """
        if not self._became_ready.done():
            raise NotReady("the service is starting; ask /health/ready")
        entry = self._entries.get(request.model)
        if entry is None:  # unloaded since it was looked up, or none is meant where a request names none
            raise UnknownService(f"there is no model {request.model!r}")
        if entry.joint is not None and self._pools[entry.joint.dag.ops[0]].ready:
            entry = entry.joint
        if self._unloaded and self.has_unloaded(entry.model):
            ops = self._unloaded.intersection(entry.dag.ops)
            subject = f"Op {min(ops)}" if ops else f"model {entry.model}"
            raise NotReady(f"{subject} is unloaded; {entry.load_hint}")
        try:
            for sequences in entry.sequences:
                sequences.check(request)
            client = request.client or self._anyone
            request.turn = self._admission.admit(request, entry.dag, client, self._pending)
        except ServingError as exc:
            entry.failures.count(exc)
            if request.trace is not None:
                request.trace.end_without_response(exc.message)
            raise
        if self._profiles or (entry.requests is not None and entry.requests.latencies is not None):
            request.timings = RequestTimings(is_sent=self._profiles)
        if request.finish is not None:
            request.finish.begin()
        dag_run = DagRun(request, answered, time.monotonic(), entry, entry.max_hops, entry.tries)
        for sequences in entry.sequences:
            dag_run.turns[sequences.op] = sequences.join(request)
        self._pending += 1
        entry.pending += 1
        if request.deadline < math.inf:
            dag_run.due_key = self._deadlines.expire_at(dag_run, request.deadline)
        try:
            if entry.begin_cached is None:
                dag_run.begin()
            else:
                entry.begin_cached(dag_run)
        except Exception:
            dag_run.leave()
            raise
        return dag_run

    def find_overload(self, client: Client) -> Overloaded | None:
        """Return the error that any request of this client to the default model would get now.

        The request then need not be parsed. Returns None if only `begin_request` can decide. The error is
        counted, and must not be raised, because it is shared.
        """
        if self._pending < self._max_pending or self.traces.is_on or self._unloaded:
            return None
        entry = self._entries.get("")
        if entry is None or not self._became_ready.done():
            return None
        error = self._admission.find_overload(entry.dag, client, self._pending)
        if error is not None:
            entry.failures.count(error)
        return error

    async def infer(self, request: Request) -> Answer:
        """Run a request to its end. Return the response body, or a ServingError if the request fails.

        Raises ServingError for a request that is not admitted. Cancelling the call drops the request.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def answered(answer: Answer) -> None:
            if not future.done():  # else the caller has left, and the cancellation is on its way
                future.set_result(answer)

        dag_run = self.begin_request(request, answered)
        try:
            return await future
        except asyncio.CancelledError:
            dag_run.leave()
            raise

    def _ended(self, dag_run: DagRun, answer: Answer | None) -> None:
        """Remove a finished request from all counts, and pass its answer to its listener.

        answer: None if the client has left.
        """
        request, took_s = dag_run.request, time.monotonic() - dag_run.began
        if dag_run.due_key is not None:
            self._deadlines.discard(dag_run, dag_run.due_key)
        self._admission.end_request(request, request.client or self._anyone)
        self._pending -= 1
        dag_run.entry.pending -= 1
        if self._awaited_ends or not self._accepting:
            self._notify_of_end(dag_run)
        if isinstance(answer, list):
            size = sum(map(len, answer))
            if size > self._most_bytes:
                answer = UnprintableAnswer(
                    f"the answer has {size} bytes, limits.response_bytes allows {self._most_bytes}"
                )
        if dag_run.flights and (flight := dag_run.flights.pop("", None)) is not None:
            run_isolated(flight.end, answer)
        if request.finish is not None:
            answer = request.finish.end(answer)
        if dag_run.turns:
            answer = end_turns(dag_run.turns.values(), answer)
        run_isolated(self._record_end, dag_run, answer, took_s)
        if answer is not None:
            run_isolated(dag_run.answered, answer)
        elif request.trace is not None:
            request.trace.end_without_response("the client has left")

    def _record_end(self, dag_run: DagRun, answer: Answer | None, took_s: float) -> None:
        """Add a finished request to the metrics of its protocol and of its model.

        took_s: seconds from admission to response.
        """
        if dag_run.is_passed_on:
            return
        request, entry = dag_run.request, dag_run.entry
        self.metrics.request_s[request.endpoint].observe(took_s)
        if isinstance(answer, ServingError):
            self._record_error(dag_run, answer)
        if answer is None:
            entry.failures.canceled += 1
        elif entry.requests is not None:
            is_error = not isinstance(answer, list)
            rows = 0 if dag_run.is_cached else request.rows
            entry.requests.count(took_s, rows, failed=is_error)
            if isinstance(answer, ServingError):
                entry.requests.failures.count(answer)
            elif (latencies := entry.requests.latencies) is not None and not dag_run.is_cached:
                assert request.timings is not None
                latencies.observe(took_s, request.timings.get_totals())

    def _record_error(self, dag_run: DagRun, error: ServingError) -> None:
        request, options = dag_run.request, dag_run.request.options
        self.recent_errors.record_error(
            error,
            model=dag_run.entry.model,
            endpoint=request.endpoint,
            number=dag_run.data_id,
            client_id=(options.id if options is not None else "") or request.log_id,
        )

    def _notify_of_end(self, dag_run: DagRun) -> None:
        """Report the end of a request to the unload, reload or drain that waits for it."""
        for ends in self._awaited_ends:
            ends.record(dag_run)
        if self._pending == 0 and not self._accepting:
            self._drained.set()

    async def withdraw(self, ops: Collection[str], timeout_s: float) -> None:
        """Reject new requests for these pipeline steps (Ops), and wait for the admitted requests.

        timeout_s: maximum wait in seconds.
        """
        if self.shards is not None and not self._unloaded:
            self.shards.pause()
        self._unloaded.update(ops)
        await self._admitted_end(ops, timeout_s)

    async def _admitted_end(self, parts: Collection[str], timeout_s: float) -> None:
        """Wait up to `timeout_s` seconds until the current requests for these Ops and models have ended."""
        entries = {*self._entries.values(), *self._former_entries}
        ends = AwaitedEnds(time.monotonic(), [entry for entry in entries if entry.needs(parts)])
        self._awaited_ends.append(ends)
        try:
            await ends.over(timeout_s)
        finally:
            self._awaited_ends.remove(ends)

    def check_settled(self) -> None:
        """Raise NotReady (HTTP 503) while the service starts or stops."""
        if not self._became_ready.done():
            raise NotReady("the service is starting; ask /health/ready")
        if not self._accepting:
            raise NotReady("the service is stopping")

    def has_unloaded(self, model: str) -> bool:
        """Return whether a model is unavailable, because the model itself or one of its Ops is unloaded."""
        unloaded = self._unloaded
        return bool(unloaded) and (model in unloaded or not unloaded.isdisjoint(self._entries[model].dag.ops))

    def is_unloaded(self, part: str) -> bool:
        """Return whether this Op or model was unloaded itself, and not only an Op that the model uses.

        part: name of the Op, or key of the model.
        """
        return part in self._unloaded

    def offer(self, op: str) -> None:
        """Accept requests again for an Op or model that was unloaded.

        op: name of the Op, or key of the model.
        """
        if self.shards is not None and self._unloaded == {op}:
            self.shards.resume()
        self._unloaded.discard(op)
        self.start_failures.pop(op, None)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Context manager: start the workers on entry, and end them on exit."""
        try:
            for pool in self._pools.values():
                pool.start()
            async with contextlib.AsyncExitStack() as stack:
                stack.enter_context(self.outputs.watched())
                await stack.enter_async_context(self._tracer.log_in_background())
                stack.push_async_callback(self._stop_upkeep)
                if self._cache is not None:
                    stack.push_async_callback(self._cache.close)
                for pool in self._pools.values():
                    await self._start_upkeep(pool)
                if not self._pools:  # models are loaded later
                    self._check_all_ready()
                yield
        finally:
            self._deadlines.stop()
            _stop_expiry(self._batchers.values())
            grace_s = WORKER_GRACE_S
            if any(pool.request_stop_handler() for pool in self._pools.values()):  # of one worker alone
                grace_s += STOP_HANDLER_S
            await asyncio.gather(*(pool.stop(grace_s) for pool in self._pools.values()))

    async def _start_upkeep(self, pool: WorkerPool) -> None:
        """Start the background checks of a worker pool: probes, replacement, scaling."""
        stack = self._keepers[pool] = contextlib.AsyncExitStack()
        section = self.app.config.op[pool.op]
        await stack.enter_async_context(Upkeep(pool, section).check_in_background())
        await stack.enter_async_context(AbandonedCalls(pool).replace_in_background())
        if section.max_concurrency is not None:
            get_wait_s = self._batchers[pool.op].expect_wait_s
            scaling = Scaling(pool, section.max_concurrency, section.scale_wait, get_wait_s)
            await stack.enter_async_context(scaling.scale_in_background())

    async def _stop_upkeep(self, *pools: WorkerPool) -> None:
        """Stop the background checks of the given worker pools; without arguments, of all pools."""
        for pool in pools or tuple(self._keepers):
            if keeper := self._keepers.pop(pool, None):
                await keeper.aclose()

    async def replace_app(self, app: App, batchers: Mapping[str, Batcher]) -> list[Batcher]:
        """Serve the models of this app from now on, after models were loaded, changed or removed.

        batchers: the batchers of the changed Ops, with ready workers. Returns the former batchers, which get
        no new requests; pass them to `retire`.
        """
        gone = [op for op in self._batchers if op not in (*app.ops, *app.joint_ops)]
        former = [self._batchers[op] for op in (*gone, *batchers) if op in self._batchers]
        for op in gone:
            del self._batchers[op], self._pools[op]
        self.app = app
        self._update_limiter()
        for op, batcher in batchers.items():
            self._batchers[op], self._pools[op] = batcher, batcher.pool
            self.offer(op)
            await self._start_upkeep(batcher.pool)
        for pool in self._pools.values():
            pool.answer_for(app.models)
        self._renew_entries()
        return former

    def _renew_entries(self) -> None:
        """Replace the request states of all models by new ones. Pending requests keep the former states."""
        former = {*self._former_entries, *self._entries.values()}
        self._former_entries = [entry for entry in former if entry.pending]
        self._entries = {model.key: self._renewed(model) for model in self.app.models}
        if self.app.default is not None:
            self._entries[""] = self._entries[self.app.default.key]
        self._serves_sequences = any(entry.sequences for entry in self._entries.values())

    def _renewed(self, model: ServedModel) -> Entry:
        """Return a new request state of a model, which keeps the request totals of the former state."""
        former = self._entries.get(model.key)
        return self._entry(model, None if former is None else former.requests)

    async def retire(self, batchers: Collection[Batcher], timeout_s: float) -> None:
        """End the workers of replaced batchers after their last request, or after `timeout_s` seconds."""
        await self._admitted_end([batcher.pool.op for batcher in batchers], timeout_s)
        _stop_expiry(batchers)
        await self._stop_upkeep(*(batcher.pool for batcher in batchers))
        await asyncio.gather(*(batcher.pool.unload() for batcher in batchers))

    async def until_ready(self) -> None:
        """Wait until every pipeline step (Op) has a ready worker; of a model repository, all its workers.

        Raises StartFailed if an Op can't be started.
        """
        either: set[asyncio.Future[Any]] = {self._became_ready, self.fatal}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self.fatal.done():
            raise self.fatal.result()

    def mark_unready(self) -> None:
        """Fail the readiness check from now on, so that load balancers send no more requests.

        Requests are still served.
        """
        self._accepting = False
        if self._pending == 0:
            self._drained.set()

    async def drain(self, timeout_s: float) -> bool:
        """Wait until all admitted requests are answered.

        Returns False if requests remain after `timeout_s` seconds.
        """
        if self._pending == 0:
            return True
        self._drained.clear()
        try:
            await asyncio.wait_for(self._drained.wait(), timeout_s)
        except TimeoutError:
            log.error("%d requests were not answered in drain_timeout (%g s)", self._pending, timeout_s)
            return False
        return True

    def _fail_start(self, pool: WorkerPool) -> None:
        """Handle a pipeline step (Op) whose workers can't be started.

        Depending on the app, the service ends, or it rejects requests for the Op until the Op is loaded
        again. Workers that are started for a load are ignored here: the load itself fails, and the pool that
        serves the Op stays.
        """
        op, reason = pool.op, pool.given_up_reason
        if self._pools.get(op) is not pool:
            return
        if self.app.exit_on_error and op not in self.app.joint_ops:
            self.fail_service(StartFailed(f"Op {op} can't be started: {reason.partition(chr(10))[0]}"))
            return
        if op in self.app.joint_ops:  # the Ops of the steps serve its ensemble
            log.warning("Op %s can't be started, so that the front dispatches each step: %s", op, reason)
        else:
            self.start_failures[op] = reason
            self._unloaded.add(op)
        self._check_all_ready()

    def fail_service(self, reason: StartFailed) -> None:
        """End the service with this error. Only the first call has an effect."""
        if not self.fatal.done():
            self.fatal.set_result(reason)

    def _check_all_ready(self) -> None:
        """Mark the start as complete once every pipeline step (Op) has started, or failed to start."""
        if not self._became_ready.done() and all(map(self._is_start_over, self._pools.values())):
            self._became_ready.set_result(None)

    def _is_start_over(self, pool: WorkerPool) -> bool:
        """Return whether the start of the service no longer waits for this worker pool.

        An Op of a script needs one ready worker. As in Triton, a model of a repository needs all its workers,
        unless they run on other nodes, which may lack resources for all of them.
        """
        needs_all = self.app.repository is not None and self.app.config.nodes is None
        return pool.given_up or (pool.ready > 0 and (pool.is_complete or not needs_all))

"""Load test that compares configurations of one model: `python -m pipeline.front.trial FD`.

Each candidate (engine, precision and placement) gets real worker instances. A `TrialOrder` is read from
standard input as JSON. Progress and results are written to the descriptor FD as JSON lines. Requests pass
admission, batcher, sockets and predictor, as in a service. A port of the loopback address is opened only to
compare shards. User code runs only if the order has a service with sample bodies; else the requests are input
tensors of the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import uvloop

from pipeline.api.app import App, ServedModel
from pipeline.api.dag import Dag, Edge, Node
from pipeline.api.examples import Examples
from pipeline.api.op import REQUEST_OP
from pipeline.config.config_file import DagConfig, Limits, LoggingConfig, ServiceConfig, TracerConfig
from pipeline.config.op_section import OpConfig
from pipeline.dialects.front_parts import Dialects
from pipeline.dialects.key_value.answers import JSON
from pipeline.dialects.key_value.front import parse_http
from pipeline.dialects.kserve_v2.answers import PROTO, ResponseOptions
from pipeline.errors import ServingError
from pipeline.front.dag_run import Answer, Request
from pipeline.front.http.http_handler import HttpApp, Routes
from pipeline.front.http.http_server import HttpServer
from pipeline.front.metrics.metrics import Metrics
from pipeline.front.pool.outputs import Outputs
from pipeline.front.repository import Repository
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.models.serving_model import ServingModel
from pipeline.models.tensor_spec import BY_NAME
from pipeline.models.variants import load_for_engine
from pipeline.plugins import DIALECTS, find
from pipeline.process.environment import available_memory
from pipeline.process.log import set_up_logging
from pipeline.process.processes import proportional_bytes
from pipeline.triton.ensemble import build_model_dag
from pipeline.triton.service import __file__ as service_file
from pipeline.tuning.choice import Choice
from pipeline.tuning.closed_loop import Load as HttpLoad
from pipeline.tuning.closed_loop import LoadGenerator, build_http_request
from pipeline.tuning.cpu_meter import CpuMeter
from pipeline.tuning.duel import Load
from pipeline.tuning.real_rows import single_rows
from pipeline.tuning.trials import Candidate, Race, TrialFailed, TrialOrder, TrialReport
from pipeline.wire.v2_tensors import to_raw

_NAME = "trial"
_OP = "trial:1"
_UNUSED_PORT = 1024  # a configuration names one; nothing listens
_START_S = 60.0
_WARM_SHARE = 0.2  # of a loop, before answers count
_MIN_ROUNDS = 2  # answers that each caller needs for a rate
_MAX_LOOP_S = 10.0  # without enough answers
_CONNECT_S = 0.05  # of a loop over HTTP, before answers count
_MIN_CPU_S = 1e-7  # of a request
_POLL_S = 0.01
_INSTANCE_BYTES = 150 << 20  # of libraries, beside the weights
_RESERVE_BYTES = 64 << 20  # a loop that leaves less memory ends the candidate, not another process


class Requests(NamedTuple):
    """The requests that simulated clients send: inputs, format of the responses, and response options."""

    inputs: Sequence[Mapping[str, Any]]
    form: str
    options: Any = None
    messages: Sequence[bytes] = ()  # the same requests in HTTP; empty if no candidate is measured over HTTP


class RunningTrial:
    """The running workers of one candidate configuration, and simulated clients that put load on them.

    app: contains one model, named `trial`. memory_bytes: maximum memory of the workers; 0 without a limit.
    generator: sends the requests over HTTP; None if no candidate is measured over HTTP.
    """

    def __init__(
        self,
        app: App,
        requests: Requests,
        outputs: Outputs,
        memory_bytes: int = 0,
        generator: LoadGenerator | None = None,
    ) -> None:
        self._requests = requests
        self._memory_bytes = memory_bytes
        self._generator = generator
        self._scheduler = Scheduler(app, Metrics(_NAME), outputs)
        (self._op,) = app.ops
        self._stack = contextlib.AsyncExitStack()
        self._answered = self._sent = self._open = 0
        self._error = ""
        self._ends = False
        self._over = asyncio.Event()

    async def start(self) -> None:
        """Start the workers of the candidate.

        If a worker fails, or not all are ready in time, stops them and raises TrialFailed.
        """
        try:
            async with asyncio.timeout(_START_S):
                await self._stack.enter_async_context(self._scheduler.running())
                await self._scheduler.until_ready()
                while any(op["ready"] < op["instances"] for op in self._scheduler.readiness().values()):
                    await asyncio.sleep(_POLL_S)
                if self._generator is not None:
                    self._http = await self._stack.enter_async_context(self._listening())
        except (TimeoutError, ServingError) as exc:
            await self._stack.aclose()
            reason = exc.message if isinstance(exc, ServingError) else f"not ready in {_START_S:g} s"
            raise TrialFailed(reason) from exc

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[HttpServer]:
        """Context manager: serves the HTTP protocols on a free port of the loopback address."""
        app = self._scheduler.app
        dialects = Dialects(app.dialects, self._scheduler, Repository(self._scheduler))
        http = HttpApp(self._scheduler, Routes(dialects.handlers), dialects.openapi)
        address = {"http_port": ("127.0.0.1", 0)}
        server = HttpServer(http, address, app.config.limits, shards=self._scheduler.shards)
        with contextlib.closing(dialects):
            async with server.listening():
                yield server

    async def measure(self, limit: int, callers: int, seconds: float, *, over_http: bool = False) -> Load:
        """Return the throughput and the CPU time of the candidate under a number of concurrent clients.

        Each client sends its next request after a response. limit: maximum number of requests in a batch.
        seconds: duration of the measurement; longer if there are few responses. over_http: whether each
        client sends over its own HTTP connection. Raises TrialFailed if a request fails, or if the workers
        use too much memory.
        """
        self._scheduler.limit_batches(self._op, limit)
        if over_http:
            load = await self._measure_http(callers, seconds)
        else:
            load = await self._measure_calls(callers, seconds)
        self.check_memory()
        return load

    async def _measure_http(self, callers: int, seconds: float) -> Load:
        assert self._generator is not None
        (port,), messages = self._http.ports, tuple(self._requests.messages)
        while True:
            warm_s = _CONNECT_S + _WARM_SHARE * seconds
            cpu = CpuMeter([os.getpid(), *self._pids()], [self._generator.pid])
            try:
                load = HttpLoad(port, messages, callers, seconds, warm_s, _MAX_LOOP_S)
                result = await self._generator.send_load(load)
            except (OSError, EOFError) as exc:
                raise TrialFailed(f"no load can be sent over HTTP ({exc})") from exc
            use, answers = cpu.measure(), len(result.latencies_ms)
            if result.error:
                raise TrialFailed(result.error)
            if answers >= _MIN_ROUNDS * callers or seconds > _MAX_LOOP_S / 2:
                break
            seconds *= 2
        if not answers:
            raise TrialFailed(f"it answered nothing over HTTP in {seconds:.1f} s")
        return Load(answers / seconds, max(use.own_s / result.answered, _MIN_CPU_S), use.other_cores)

    async def _measure_calls(self, callers: int, seconds: float) -> Load:
        self._error, self._ends, self._open = "", False, callers
        self._over.clear()
        for _ in range(callers):
            self._send_request()
        await asyncio.sleep(_WARM_SHARE * seconds)
        cpu, before, began = CpuMeter([os.getpid(), *self._pids()]), self._answered, time.monotonic()
        while True:
            await asyncio.sleep(seconds)
            took_s, answers = time.monotonic() - began, self._answered - before
            if self._error or answers >= _MIN_ROUNDS * callers or took_s > _MAX_LOOP_S:
                break
        use = cpu.measure()
        self._ends = True
        await self._over.wait()
        if self._error or not answers:
            raise TrialFailed(self._error or f"it answered nothing in {took_s:.1f} s")
        return Load(answers / took_s, max(use.own_s / answers, _MIN_CPU_S), use.other_cores)

    def check_memory(self) -> None:
        """Raise TrialFailed if the workers exceed their memory limit, or leave nearly no free memory."""
        used = sum(map(proportional_bytes, self._pids()))
        if self._memory_bytes and used > self._memory_bytes:
            raise TrialFailed(
                f"its instances use {used / 1e6:.0f} MB; limits.max_memory is {self._memory_bytes / 1e6:.0f}"
            )
        if (available := available_memory()) < _RESERVE_BYTES:
            raise TrialFailed(
                f"its instances use {used >> 20} MB of memory, and only {available >> 20} MB are left"
            )

    def _pids(self) -> list[int]:
        return [process.pid for pool in self._scheduler.pools.values() for process in pool.processes]

    async def close(self) -> None:
        """Stop the candidate's worker instances."""
        await self._stack.aclose()

    def _send_request(self) -> None:
        inputs, form, options, _ = self._requests
        request = Request(
            _NAME,
            "infer",
            dict(inputs[self._sent % len(inputs)]),
            form=form,
            deadline=self._scheduler.deadline(),
            model=_NAME,
            wish=options,
        )
        self._sent += 1
        try:
            self._scheduler.begin_request(request, self._receive)
        except ServingError as exc:
            self._receive(exc)

    def _receive(self, answer: Answer) -> None:
        if isinstance(answer, ServingError):
            self._error = answer.message
        else:
            self._answered += 1
        if not self._ends and not self._error:
            asyncio.get_running_loop().call_soon(self._send_request)
            return
        self._open -= 1
        if not self._open:
            self._over.set()


def _build_app(candidate: Candidate) -> App:
    """Return a service that consists only of the candidate's model. Its workers run no user code."""
    tensors: dict[str, Any] = {"input": [], "output": [], "model_warmup": []}
    model_config = {"name": _NAME, "backend": candidate.engine, "max_batch_size": 0, **tensors}
    section = {**candidate.section, "probe_interval": 0, "placement": candidate.placement}
    dag = {"http_errors": "status"}
    config = ServiceConfig.model_validate(
        {"http_port": _UNUSED_PORT, "dag": dag, "op": {_OP: section}, "shards": candidate.shards}
    )
    return App(
        name=_NAME,
        models=(ServedModel(_NAME, build_model_dag(_OP), config=model_config),),
        config=config,
        script=str(Path(service_file).resolve()),
        arguments=(_NAME,),
        folder=str(Path.cwd()),
        examples=Examples({}, {}),
        module="pipeline.triton.service",
        dialects=tuple(find(DIALECTS).values()),
        choices={_OP: Choice((candidate.timed,))},
    )


def _build_service(service: App, op: str, candidate: Candidate) -> App:
    """Return the user's service with only one of its Ops, in the candidate's configuration.

    The hooks of the Op run as in the service.
    """
    section = {**candidate.section, "probe_interval": 0, "placement": candidate.placement}
    fixed = {"tracer": TracerConfig(), "max_pending_requests": DagConfig().max_pending_requests}
    config = service.config.model_copy(
        update={
            "op": {op: OpConfig.model_validate(section)},
            "dag": service.config.dag.model_copy(update=fixed),
            "logging": LoggingConfig(level="WARNING"),
            "shards": candidate.shards,
        }
    )
    return replace(
        service,
        models=(ServedModel(_NAME, Dag((Node(op, op, (Edge(REQUEST_OP),)),), op)),),
        config=config,
        dialects=tuple(find(DIALECTS).values()),
        choices={op: Choice((candidate.timed,))},
    )


def _parse_bodies(
    bodies: Sequence[str], limits: Limits, example: Mapping[str, str], service: str = ""
) -> Requests:
    """Return the requests for sample bodies: key/value bodies in JSON, which clients send to the Op's hooks.

    example: key/value example of the service. If the service and a body each have a single key, the body's
    key is replaced by the service's, because the tool that wrote the sample may not know it. service: name of
    the service, for requests over HTTP. Raises TrialFailed for a body that the service would reject.
    """
    inputs, messages = [], []
    for body in bodies:
        try:
            values = parse_http(body.encode(), _NAME, "prediction", limits).inputs
        except ServingError as exc:
            raise TrialFailed(f"the service rejects a body of the sample: {exc.message}") from exc
        if len(values) == len(example) == 1:
            values = dict(zip(example, values.values(), strict=True))
            fields = msgspec.json.decode(body)
            body = json.dumps({**fields, "key": list(example)} if fields.get("key") else fields)
        inputs.append(values)
        if service:
            messages.append(build_http_request(f"/{service}/prediction", body.encode()))
    return Requests(inputs, JSON, messages=messages)


def _build_v2_message(model: ServingModel, row: Mapping[str, Any]) -> bytes:
    """Return an HTTP request of KServe v2 for the trial's model, with raw tensors."""
    datatypes = {feed.alias: BY_NAME[feed.dtype].datatype for feed in model.feeds}
    tensors = [to_raw(array) for array in row.values()]
    inputs = [
        {
            "name": name,
            "datatype": datatypes[name],
            "shape": array.shape,
            "parameters": {"binary_data_size": len(raw)},
        }
        for (name, array), raw in zip(row.items(), tensors, strict=True)
    ]
    head = msgspec.json.encode({"inputs": inputs, "parameters": {"binary_data_output": True}})
    return build_http_request(f"/v2/models/{_NAME}/infer", head + b"".join(tensors), len(head))


async def _start(
    order: TrialOrder,
    requests: Requests,
    outputs: Outputs,
    generator: LoadGenerator | None,
    candidate: Candidate,
) -> RunningTrial:
    """Start a candidate's workers and return them.

    Raises TrialFailed if they can't start, or memory is short.
    """
    processes = candidate.section.get("concurrency", 1)
    if candidate.placement == "thread":
        processes = candidate.shards
    needed = processes * (candidate.weights_bytes + _INSTANCE_BYTES)
    if (available := available_memory()) < needed:
        raise TrialFailed(
            f"it needs about {needed >> 20} MB of memory, and {available >> 20} MB are available"
        )
    if order.service:
        app = _build_service(App.from_json(order.service), order.op, candidate)
    else:
        app = _build_app(candidate)
    trial = RunningTrial(app, requests, outputs, order.memory_bytes, generator)
    await trial.start()
    try:
        trial.check_memory()
    except TrialFailed:
        await trial.close()
        raise
    return trial


async def _race(order: TrialOrder, outputs: Outputs, fd: int, generator: LoadGenerator | None) -> None:
    """Measure the candidates of an order, and write progress and results to the descriptor `fd`.

    generator: sends the requests over HTTP; None if no candidate has shards.
    """

    def report(step: str, share: float) -> None:
        _write_report(fd, TrialReport(step, share))

    if order.service:
        service = App.from_json(order.service)
        limits, example = service.config.limits, service.examples.key_values
        requests = _parse_bodies(order.bodies, limits, example, service.name if generator else "")
    else:
        model = load_for_engine(Path(order.directory), order.candidates[0].engine)
        rows = single_rows(model, model.directory, model.padding)
        messages = [_build_v2_message(model, row) for row in rows] if generator else []
        requests = Requests(rows, PROTO, tuple(ResponseOptions(_NAME, "", parameters={})), messages)
    results = await Race(order, partial(_start, order, requests, outputs, generator), report).run()
    _write_report(fd, TrialReport("", 1.0, results))


def _write_report(fd: int, report: TrialReport) -> None:
    """Write a report to the descriptor `fd`, as one JSON line."""
    line = msgspec.json.encode(report) + b"\n"
    while line:
        line = line[os.write(fd, line) :]


def main(fd: int, order: TrialOrder) -> None:
    """Measure the throughput of an order's candidates, and write progress and results to descriptor `fd`."""
    generator = LoadGenerator() if order.sharded else None
    logging = LoggingConfig(level="WARNING")
    outputs = Outputs(logging, _NAME)
    set_up_logging(logging, _NAME, "front", beside_app=False, log_fd=outputs.log_fd)
    uvloop.run(_race(order, outputs, fd, generator))
    outputs.close()
    if generator is not None:
        generator.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), msgspec.json.decode(sys.stdin.buffer.read(), type=TrialOrder))

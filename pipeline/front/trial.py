"""Load test that compares configurations of one model: `python -m pipeline.front.trial FD`.

Each candidate (engine, precision and placement) gets real worker instances. A `TrialOrder` is read from
standard input as JSON. Progress and results are written to the descriptor FD as JSON lines. Requests pass
admission, batcher, sockets and predictor, as in a service. No port is opened and no user code runs: the
requests are input tensors of the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from pipeline.api.app import App, ServedModel
from pipeline.api.examples import Examples
from pipeline.config.config_file import LoggingConfig, ServiceConfig
from pipeline.dialects.kserve_v2.answers import PROTO, ResponseOptions
from pipeline.engines.feeds import Array
from pipeline.errors import ServingError
from pipeline.front.dag_run import Answer, Request
from pipeline.front.metrics.metrics import Metrics
from pipeline.front.pool.outputs import Outputs
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.models.variants import load_for_engine
from pipeline.plugins import DIALECTS, find
from pipeline.process.environment import available_memory
from pipeline.process.log import set_up_logging
from pipeline.triton.ensemble import build_model_dag
from pipeline.triton.service import __file__ as service_file
from pipeline.tuning.choice import Choice
from pipeline.tuning.real_rows import single_rows
from pipeline.tuning.trials import Candidate, Race, TrialFailed, TrialOrder, TrialReport

_NAME = "trial"
_OP = "trial:1"
_UNUSED_PORT = 1024  # a configuration names one; nothing listens
_START_S = 60.0
_WARM_SHARE = 0.2  # of a loop, before answers count
_MIN_ROUNDS = 2  # answers that each caller needs for a rate
_MAX_LOOP_S = 10.0  # without enough answers
_POLL_S = 0.01
_INSTANCE_BYTES = 150 << 20  # of libraries, beside the weights


class RunningTrial:
    """The running worker instances of one candidate configuration, and the callers that load them."""

    def __init__(self, candidate: Candidate, rows: Sequence[dict[str, Array]], outputs: Outputs) -> None:
        self._rows = rows
        self._scheduler = Scheduler(_build_app(candidate), Metrics(_NAME), outputs)
        self._stack = contextlib.AsyncExitStack()
        self._options = tuple(ResponseOptions(_NAME, "", parameters={}))
        self._answered = self._sent = self._open = 0
        self._error = ""
        self._ends = False
        self._over = asyncio.Event()

    async def start(self) -> None:
        """Start the worker instances of the candidate.

        Raises TrialFailed, and stops them, if one fails or they are not ready in time.
        """
        try:
            async with asyncio.timeout(_START_S):
                await self._stack.enter_async_context(self._scheduler.running())
                await self._scheduler.until_ready()
                while any(op["ready"] < op["instances"] for op in self._scheduler.readiness().values()):
                    await asyncio.sleep(_POLL_S)
        except (TimeoutError, ServingError) as exc:
            await self._stack.aclose()
            reason = exc.message if isinstance(exc, ServingError) else f"not ready in {_START_S:g} s"
            raise TrialFailed(reason) from exc

    async def measure(self, limit: int, callers: int, seconds: float) -> float:
        """Return the throughput in requests per second, with a number of concurrent callers.

        Each caller sends its next request after a response. limit: most requests in a batch. seconds:
        duration of the measurement; longer if there are few responses. Raises TrialFailed if a request fails.
        """
        self._scheduler.limit_batches(_OP, limit)
        self._error, self._ends, self._open = "", False, callers
        self._over.clear()
        for _ in range(callers):
            self._send()
        await asyncio.sleep(_WARM_SHARE * seconds)
        before, began = self._answered, time.monotonic()
        while True:
            await asyncio.sleep(seconds)
            took_s, answers = time.monotonic() - began, self._answered - before
            if self._error or answers >= _MIN_ROUNDS * callers or took_s > _MAX_LOOP_S:
                break
        self._ends = True
        await self._over.wait()
        if self._error or not answers:
            raise TrialFailed(self._error or f"it answered nothing in {took_s:.1f} s")
        return answers / took_s

    async def close(self) -> None:
        """Stop the candidate's worker instances."""
        await self._stack.aclose()

    def _send(self) -> None:
        inputs: dict[str, Any] = dict(self._rows[self._sent % len(self._rows)])
        self._sent += 1
        request = Request(
            _NAME,
            "infer",
            inputs,
            form=PROTO,
            deadline=self._scheduler.deadline(),
            model=_NAME,
            wish=self._options,
        )
        try:
            self._scheduler.begin(request, self._receive)
        except ServingError as exc:
            self._receive(exc)

    def _receive(self, answer: Answer) -> None:
        if isinstance(answer, ServingError):
            self._error = answer.message
        else:
            self._answered += 1
        if not self._ends and not self._error:
            asyncio.get_running_loop().call_soon(self._send)
            return
        self._open -= 1
        if not self._open:
            self._over.set()


def _build_app(candidate: Candidate) -> App:
    """Return a service that consists of the candidate's model alone, and whose workers run no user code."""
    tensors: dict[str, Any] = {"input": [], "output": [], "model_warmup": []}
    model_config = {"name": _NAME, "backend": candidate.engine, "max_batch_size": 0, **tensors}
    section = {**candidate.section, "probe_interval": 0, "placement": candidate.placement}
    config = ServiceConfig.model_validate(
        {"http_port": _UNUSED_PORT, "dag": {"http_errors": "status"}, "op": {_OP: section}}
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


async def _start(rows: Sequence[dict[str, Array]], outputs: Outputs, candidate: Candidate) -> RunningTrial:
    """Return a candidate's running instances. Raises TrialFailed if they can't start, or memory is short.

    rows: the model's inputs for the requests, one row each.
    """
    section = candidate.section
    processes = 1 if candidate.placement == "thread" else section.get("concurrency", 1)
    needed = processes * (candidate.weights_bytes + _INSTANCE_BYTES)
    if (available := available_memory()) < needed:
        raise TrialFailed(
            f"it needs about {needed >> 20} MB of memory, and {available >> 20} MB are available"
        )
    trial = RunningTrial(candidate, rows, outputs)
    await trial.start()
    return trial


async def _race(order: TrialOrder, outputs: Outputs, fd: int) -> None:
    """Measure the candidates of an order, and write progress and results to the descriptor `fd`."""

    def report(step: str, share: float) -> None:
        _write(fd, TrialReport(step, share))

    model = load_for_engine(Path(order.directory), order.candidates[0].engine)
    rows = single_rows(model, model.directory, model.padding)
    results = await Race(order, partial(_start, rows, outputs), report).run()
    _write(fd, TrialReport("", 1.0, results))


def _write(fd: int, report: TrialReport) -> None:
    """Write a report to the descriptor `fd`, as one JSON line."""
    line = msgspec.json.encode(report) + b"\n"
    while line:
        line = line[os.write(fd, line) :]


def main(fd: int, order: TrialOrder) -> None:
    """Measure the throughput of an order's candidates, and write progress and results to descriptor `fd`."""
    logging = LoggingConfig(level="WARNING")
    outputs = Outputs(logging, _NAME)
    set_up_logging(logging, _NAME, "front", beside_app=False, log_fd=outputs.log_fd)
    uvloop.run(_race(order, outputs, fd))
    outputs.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), msgspec.json.decode(sys.stdin.buffer.read(), type=TrialOrder))

"""The worker's CPU time per request by stage, without tokenizer and predictor.

Dispatches of headlines go through the code of the default service's worker in this process, one by one, as
from the front. The time of a stage is CPU of its thread without nested stages, in microseconds per request.
It is the median of many dispatches, so that other work on the host hardly counts.
"""

from __future__ import annotations

import argparse
import itertools
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.instrumented_service import ROOT, Replaced, default_service
from bench.running import default_config
from bench.texts import headlines
from pipeline.api.app import App, ScriptModels, collect_models
from pipeline.api.dag import build_dag, build_signature
from pipeline.api.examples import collect_examples
from pipeline.api.op import REQUEST_OP
from pipeline.dialects.key_value.answers import JSON
from pipeline.messages.frames import Part, create_arena_fd, encode, frame, stow
from pipeline.messages.messages import CallMessage, DispatchMessage, Start
from pipeline.plugins import DIALECTS, find
from pipeline.process.environment import set_variables, settle_memory
from pipeline.process.log import set_up_logging
from pipeline.tuning import auto
from pipeline.worker import executor, main, runner
from pipeline.worker.call import Dispatch

TOKENIZER, PREDICTOR, REST = "tokenizer", "predictor", "the executor itself"
# Class or module of a function, its name, and its stage.
STAGES: Sequence[tuple[Any, str, str]] = (
    (main.Front, "receive", "dispatch read"),
    (executor.Executor, "_decode_inputs", "inputs decoded"),
    (executor.Executor, "_preprocess", "preprocess"),
    (runner.Runner, "create_slices", "feeds described"),
    (runner.Runner, "plan", "batches planned"),
    (runner, "join", "feeds joined and padded"),
    (runner, "split_outputs", "fetches cut apart"),
    (executor.Executor, "_postprocess", "postprocess"),
    (executor.Executor, "_send_replies", "answers encoded"),
    (main.Front, "_write", "reply sent"),
)
_DRAINED_BYTES = 1 << 20
_WARM_UP = 50  # dispatches
_COLD_BYTES = 32 << 20  # more than the caches nearest to a core hold
EXAMPLES = """examples:
  python -m bench.worker_time
  python -m bench.worker_time --cold                 as beside a front and other workers on the same cores
  python -m bench.worker_time --engine openvino --requests 8
"""


class Stages:
    """Nanoseconds by stage, without nested stages."""

    def __init__(self) -> None:
        self.ns: dict[str, int] = {}
        self._within = [REST]
        self._since = 0
        self._own_ns = 0
        self._own_ns = self._cost_of_a_call()

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time added to the stage."""
        within, clock, ns = self._within, time.thread_time_ns, self.ns

        def call(*args: Any, **named: Any) -> Any:
            now = clock()
            outer = within[-1]
            ns[outer] = ns.get(outer, 0) + now - self._since - self._own_ns
            within.append(stage)
            self._since = clock()
            try:
                return function(*args, **named)
            finally:
                now = clock()
                ns[stage] = ns.get(stage, 0) + now - self._since
                within.pop()
                self._since = clock()

        return call

    def begin(self) -> None:
        self.ns.clear()
        self._since = time.thread_time_ns()

    def end(self) -> dict[str, int]:
        self.ns[REST] = self.ns.get(REST, 0) + time.thread_time_ns() - self._since
        return dict(self.ns)

    def _cost_of_a_call(self) -> int:
        """Return the nanoseconds that counting adds to the enclosing stage, which are subtracted."""
        nothing, costs = self.timed("nothing", lambda: None), []
        for _ in range(500):
            self.begin()
            nothing()
            costs.append(self.end()[REST])
        return round(median(costs))


class Demo:
    """The default service's worker in this process, and the front's end of its connection."""

    def __init__(self, engine: str | None, batch_size: int | None) -> None:
        config = default_config(1) | {"http_port": 1024}  # nothing listens
        section = config["op"]["bert"]
        section["local_service_conf"]["engine"] = engine or section["local_service_conf"]["engine"]
        section["batch_size"] = batch_size or section["batch_size"]
        service = default_service().BertService(name="bert")
        service.prepare_pipeline_config(yml_dict=config)
        ops, last, checked = service.resolve()
        resolved, choices = auto.resolved(checked)
        signature = build_signature(ops, last)
        app = App(
            name="bert",
            models=collect_models(ScriptModels("bert", build_dag(ops, last), signature)),
            config=resolved,
            script=str(ROOT / "web_service.py"),
            arguments=(),
            folder=str(ROOT),
            examples=collect_examples(ops, signature),
            dialects=tuple(find(DIALECTS).values()),
            choices=choices,
        )
        set_up_logging(resolved.logging, "bert", "bert.0", beside_app=True)
        self._ours, theirs = socket.socketpair()
        self.front = main.Front(theirs.detach(), create_arena_fd())
        self.op: Any = ops["bert"]
        start = Start(app="", op="bert", name="bert.0", first_instance=0, shares=False, version="")
        (self.executor,), _ = main.Worker([self.front], app, start, ()).executors(self.op)
        local = resolved.op["bert"].local_service_conf
        assert local is not None
        self.description = f"{local.engine} {local.precision}, batch_size {section['batch_size']}"
        self._numbers = itertools.count()

    def dispatch(self, texts: Sequence[str]) -> None:
        """Send a dispatch as the front does."""
        tail: list[Part] = []
        calls = [
            CallMessage(
                index, index + 1, 0, JSON, None, "", None, time.monotonic() + 30,
                [(REQUEST_OP, stow(encode({"0": text}, allow_pickle=False), tail))], "bert",
            )
            for index, text in enumerate(texts)
        ]  # fmt: skip
        for buffer in frame(DispatchMessage(next(self._numbers), calls), tail):
            self._ours.sendall(buffer)

    def answer(self) -> None:
        """Handle one dispatch, as the worker's loop does."""
        received = self.front.receive()
        assert received is not None
        message = received.message
        assert isinstance(message, Dispatch)
        replies = self.front.begin_dispatch(message.id)
        assert replies is not None
        self.executor.run(message.calls, received.tail, replies.send)

    def drain(self) -> None:
        """Read and drop the replies."""
        self._ours.recv(_DRAINED_BYTES)


def batches(texts: Sequence[str], size: int, count: int) -> Iterator[list[str]]:
    endless = itertools.cycle(texts)
    for _ in range(count):
        yield list(itertools.islice(endless, size))


def stages_us(
    demo: Demo, stages: Stages, size: int, count: int, cool: Callable[[], object]
) -> dict[str, float]:
    """Return the CPU of a request by stage."""
    found: list[dict[str, int]] = []
    for texts in batches(headlines(), size, count):
        demo.dispatch(texts)
        cool()
        stages.begin()
        demo.answer()
        found.append(stages.end())
        demo.drain()
    names = dict.fromkeys(name for one in found for name in one)
    return {name: median(one.get(name, 0) for one in found) / size / 1e3 for name in names}


def count_stages(demo: Demo, stages: Stages) -> None:
    """Count the stages from now on."""
    for owner, name, stage in STAGES:
        setattr(owner, name, stages.timed(stage, getattr(owner, name)))
    tokenizer, predictor = demo.op.tokenizer, demo.op.predictor
    demo.op.tokenizer = Replaced(tokenizer, encode_batch=stages.timed(TOKENIZER, tokenizer.encode_batch))
    predictor.run = stages.timed(PREDICTOR, predictor.run)


def build_table(description: str, sizes: Sequence[int], found: Sequence[dict[str, float]]) -> Table:
    table = Table(title=f"us of CPU a request in the worker; {description}", title_justify="left")
    table.add_column("stage")
    for size in sizes:
        table.add_column(f"dispatch of {size}", justify="right")
    inner = [stage for _, _, stage in STAGES] + [REST]
    for stage in inner:
        table.add_row(stage, *(f"{one.get(stage, 0.0):.1f}" for one in found))
    table.add_section()
    table.add_row("its own time", *(f"{sum(one.get(stage, 0.0) for stage in inner):.1f}" for one in found))
    for stage in (TOKENIZER, PREDICTOR):
        table.add_row(stage, *(f"{one[stage]:.1f}" for one in found))
    return table


def run() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.worker_time",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32], help="in a dispatch")
    parser.add_argument("--dispatches", type=int, default=400, help="of each size (default: %(default)s)")
    parser.add_argument("--engine", help="default: as config.yml has it")
    parser.add_argument("--batch-size", type=int, help="default: as config.yml has it")
    parser.add_argument("--cold", action="store_true", help="have other data in the caches before each")
    options = parser.parse_args()
    set_variables()
    demo = Demo(options.engine, options.batch_size)
    settle_memory()
    others = np.ones(_COLD_BYTES if options.cold else 1, np.uint8)
    stages = Stages()
    count_stages(demo, stages)
    stages_us(demo, stages, 8, _WARM_UP, others.sum)
    found = [stages_us(demo, stages, size, options.dispatches, others.sum) for size in options.requests]
    description = f"{demo.description}{', cold caches' if options.cold else ''}"
    Console(width=120).print(build_table(description, options.requests, found))


if __name__ == "__main__":
    run()

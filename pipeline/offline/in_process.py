"""Loads a model, or the Op of a service's script, into this process, to score rows without a server."""

from __future__ import annotations

import itertools
import math
import queue
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from pipeline.api.app import App
from pipeline.api.op import REQUEST_OP, Op, RequestOp
from pipeline.api.request_options import RequestOptions
from pipeline.api.service import Service, WebService
from pipeline.config.config_file import LoggingConfig
from pipeline.dialects.dialect import load_forms
from pipeline.dialects.kserve.json_fields import check_parameter, replace_surrogates
from pipeline.dialects.kserve_v1.answers import JSON, V1ResponseOptions
from pipeline.dialects.kserve_v1.instances import parse_instances
from pipeline.errors import ConfigError, ServingError
from pipeline.front.pool.plan import plan
from pipeline.messages.frames import Part, Tail, encode, stow
from pipeline.messages.messages import Outcome, Settled, Timings
from pipeline.models.serving_model import choose_version, load_serving_model
from pipeline.models.tensor_spec import Signature
from pipeline.offline.script_service import script_in, service_of_script
from pipeline.offline.target import Refused
from pipeline.ops.described import DescribedOp
from pipeline.ops.text_ops import TextOp
from pipeline.ops.tokenizer import has_tokenizer
from pipeline.plugins import DIALECTS, find
from pipeline.process import environment
from pipeline.process.environment import settle_memory, usable_cores
from pipeline.process.log import set_up_logging
from pipeline.worker.call import Call
from pipeline.worker.executor import Executor, create_executors

_NAME = "model"  # of the service around a model alone
_UNUSED_PORT = 1024  # a configuration names one; nothing listens
_STDERR = 2
_JSON = msgspec.json


class InProcess:
    """A model in this process that scores rows: runs the only step (Op) of a service, as a worker would.

    Rows and answers are JSON objects, as in KServe v1.
    """

    def __init__(self, model: Path) -> None:
        """Load the model. Raise ConfigError if it can't be served, or if the service has several steps (Ops).

        model: folder of a model, whose serving.yml describes the rows, or a service's script or folder.
        """
        environment.set_variables()
        self.described = str(model.resolve())
        service = _load_service(model)
        app, op = _build_app(service, model)
        placed = plan(app, op)
        count = len(placed.places[0])
        if isinstance(service, ModelService) and count == 1:
            placed = replace(placed, app=_with_threads(placed.app, op, usable_cores()))
        # Before hooks run, whose errors are logged.
        set_up_logging(LoggingConfig(level="WARNING"), app.name, op, beside_app=True, log_fd=_STDERR)
        forms = load_forms([find(DIALECTS)["kserve_v1"]])
        executors, ready = create_executors(
            service.create_op(app, op), placed.app, op, forms, count=count, shares=count > 1
        )
        settle_memory()
        self._served = app.models[0]
        self._signature = self._served.signature or ready.signature or Signature()
        self._limits = app.config.limits
        self._numbers = itertools.count(1)
        self._executors: queue.SimpleQueue[Executor] = queue.SimpleQueue()
        for executor in executors:
            self._executors.put(executor)
        self.inputs = {spec.name: spec.datatype for spec in self._signature.inputs}
        self.callers = count

    def request_answers(self, rows: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]) -> list[Any]:
        """Run rows as one request with these KServe parameters, and return the answer to each row.

        Raise Refused.
        """
        body = _JSON.encode({"instances": rows, "parameters": parameters})
        try:
            request = parse_instances(body, self._signature, self._limits)
            checked = {replace_surrogates(n): check_parameter(n, v) for n, v in request.parameters.items()}
            options = RequestOptions(parameters=checked) if checked else None
            answer = self._run_request(
                dict(request.fields), V1ResponseOptions(request.rows, request.by_columns), options
            )
        except ServingError as exc:
            raise Refused(exc.message) from exc
        answers: list[Any] = _JSON.decode(answer)["predictions"]
        return answers

    def _run_request(
        self, inputs: dict[str, Any], response_options: V1ResponseOptions, options: RequestOptions | None
    ) -> bytes:
        """Run a request, and return the body of its KServe v1 response.

        Raise the ServingError of a failed request.
        """
        tail: list[Part] = []
        stowed = stow(encode(inputs, allow_pickle=False), tail)
        call = Call(
            0,
            next(self._numbers),
            0,
            JSON,
            tuple(response_options),
            "",
            options,
            math.inf,
            [(REQUEST_OP, stowed)],
            self._served.key,
        )
        reply = _Reply()
        executor = self._executors.get()
        try:
            executor.run([call], Tail(b"".join(tail)), reply)
        finally:
            self._executors.put(executor)
        return reply.body()


class _Reply:
    """Collects the messages that the executor sends for a single request."""

    def __init__(self) -> None:
        self._settled: list[Settled] = []
        self._tail: list[Part] = []

    def __call__(self, settled: list[Settled], tail: list[Part], timings: Timings, *, last: bool) -> None:
        self._settled += settled
        self._tail += tail

    def body(self) -> bytes:
        """Return the body of the response. Raise the ServingError of a failed request."""
        (settled,) = self._settled
        if settled.refusal is not None:
            raise settled.refusal.error()
        assert settled.outcome is Outcome.ANSWER
        return b"".join(Tail(b"".join(self._tail), writable=False).unstow(settled.parts))


class ModelService(WebService):
    """A service built around a model folder without a script.

    The Op is a DescribedOp, or a TextOp for a text model that serving.yml does not describe.
    """

    def __init__(self, model: Path) -> None:
        super().__init__(_NAME)
        local = {"client_type": "local_predictor", "engine": "auto", "model_config": str(model.absolute())}
        section = {
            "concurrency": usable_cores(),
            "batch_size": "auto",
            "local_service_conf": {**local, "thread_num": 1},
        }
        self.configure(yml_dict={"http_port": _UNUSED_PORT, "shards": 1, "op": {_NAME: section}})
        serving_model = load_serving_model(choose_version(model).directory)
        is_described = serving_model.description.kinds != {"tensor"} or not has_tokenizer(
            serving_model.directory
        )
        self._kind: type[DescribedOp] = DescribedOp if is_described else TextOp

    def get_pipeline_response(self, read_op: RequestOp) -> Op:
        return self._kind(name=_NAME, input_ops=[read_op])


def _load_service(model: Path) -> Service:
    """Build the service of a model folder or of a service's script. Raise ConfigError for other paths."""
    if not model.exists():
        raise ConfigError(f"--model {model} is not there; name the folder of a model, or a service's script")
    script = script_in(model)
    if script is None:
        return ModelService(model if model.is_dir() else model.parent)
    return service_of_script(script)


def _build_app(service: Service, model: Path) -> tuple[App, str]:
    """Return the service's description and the name of its only step (Op).

    Raise ConfigError if it has several steps.
    """
    app = service.as_app()
    if len(app.ops) != 1:
        raise ConfigError(
            f"--model {model} has the Ops {', '.join(app.ops)}; one alone runs in this process: start the "
            "service, and give its address with --service"
        )
    return app, app.ops[0]


def _with_threads(app: App, op: str, threads: int) -> App:
    """Return the service's description with the engine's thread count set to `threads`.

    All threads can serve one batch, because the engine runs one batch at a time.
    """
    section = app.config.op[op]
    conf = section.local_service_conf
    assert conf is not None
    local = conf.model_copy(update={"thread_num": threads})
    section = section.model_copy(update={"local_service_conf": local})
    config = app.config.model_copy(update={"op": {**app.config.op, op: section}})
    return replace(app, config=config)

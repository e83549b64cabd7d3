"""Makes an Op ready to run: its model is loaded and warmed up, its hooks looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pipeline.api.app import App
from pipeline.api.op import Op
from pipeline.api.served_models import answered_by
from pipeline.dialects.dialect import Form
from pipeline.messages.messages import Ready
from pipeline.paddle_serving.local_client import LocalClient
from pipeline.paddle_serving.numpy_1 import print_as_numpy_1
from pipeline.paddle_serving.op_settings import get_op_settings
from pipeline.process.log import keep_our_loggers
from pipeline.worker.executor import Executor, Outputs
from pipeline.worker.hooks import call_init_op, get_hooks
from pipeline.worker.model import Model
from pipeline.worker.runner import Runner

LOAD_NOTE = "raised while the model was loaded or warmed up"


@contextmanager
def _marked_as_load() -> Iterator[None]:
    """Mark exceptions of the block: the front may serve an older version of the model instead."""
    try:
        yield
    except Exception as exc:
        exc.add_note(LOAD_NOTE)
        raise


def create_executors(
    op: Op, app: App, name: str, forms: Mapping[str, Form], *, count: int, first: int = 0, shares: bool
) -> tuple[list[Executor], Ready]:
    """Make an executor for each of `count` instances of one Op and model, and the worker's ready message.

    name: the Op's in `app`. first: number of the first instance. shares: the instances share a process, so
    that none has a `concurrency_idx` of its own. Raises what the Op's `init_op` raises, as our errors.
    """
    config = app.config.op[name]
    op.concurrency_idx = None if shares else first
    with _marked_as_load():
        model = Model(op, config, app.folder, first, app.choices.get(name), app.config.limits.kserve_rows)
    op.model = model.serving_model
    op.predictor = op._predictor = model.predictor
    if model.predictor is not None and model.serving_model is not None:
        op.client = LocalClient(model.predictor)
        op._fetch_names = op.client.fetch_names_
    op._settings = get_op_settings(config, op.client)
    if op.model is not None:
        op.set_model_info(op.model)
        model.serving_model = op.model or model.serving_model  # as the Op itself describes it
    call_init_op(op)
    keep_our_loggers()
    with _marked_as_load():
        model.warm_up()
    print_as_numpy_1()
    hooks = get_hooks(op)
    signature = model.signature
    outputs = Outputs(
        hooks,
        forms,
        answers=answered_by(app.models, name),
        fetches=() if signature is None else signature.outputs,
    )
    executors = [
        Executor(
            hooks,
            Runner(
                hooks, model.predictor, model.limits, model.joining, model.costs(), shares_process=count > 1
            ),
            outputs,
            model.probe,
        )
        for _ in range(count)
    ]
    return executors, Ready(signature, model.card)

"""Placement: which instances of an Op live together in one worker process."""

from __future__ import annotations

from pathlib import Path

from pipeline.app import App
from pipeline.errors import ConfigError
from pipeline.serving_model import engine_of


def placement(app: App, op: str) -> list[range]:
    """The numbers of the Op's instances, by the process that hosts them.

    With build_dag_each_worker there are `concurrency` instances for each of `worker_num`; what one worker's
    DAG would have as threads is together here.
    """
    config = app.config
    concurrency = config.op[op].concurrency
    count = concurrency * (config.worker_num if config.build_dag_each_worker else 1)
    together = concurrency if shares_process(app, op) else 1
    return [range(first, first + together) for first in range(0, count, together)]


def shares_process(app: App, op: str) -> bool:
    """Whether instances of this Op are threads: `dag.is_thread_op` asks for it and no engine forbids it."""
    return app.config.dag.is_thread_op and not holds_gil(app, op)


def holds_gil(app: App, op: str) -> bool:
    """Whether the Op's engine keeps Python's lock while it runs, so that threads would only wait for it.

    Paddle Inference does, ONNX Runtime does not; an Op without a model has no engine, and a remote one waits
    for the network without the lock.
    """
    config = app.config.op[op]
    conf = config.local_service_conf
    if conf is None or not conf.model_dir or config.server_endpoints:
        return False
    try:
        return engine_of(Path(app.folder, conf.model_dir), conf.engine) == "paddle"
    except (ConfigError, OSError):  # the worker tells what is wrong with the folder
        return True

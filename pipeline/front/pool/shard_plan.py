"""The number of shards that a service gets: `shards` of config.yml, or fewer where one process must serve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pipeline.api.app import App
from pipeline.front.pool.plan import wants_processes
from pipeline.models.serving_model import choose_version
from pipeline.process.environment import available_memory, usable_cores

_PROCESS_BYTES = 250 << 20  # of a shard, beside the files of its model


def plan_shards(app: App) -> tuple[App, str]:
    """Return the service with the number of shards that it gets, and a log line if there are fewer.

    The line is empty if the service gets the shards that config.yml asks for.
    """
    wanted = app.config.shards
    if wanted == 1:
        return app, ""
    if reasons := list(find_obstacles(app)):
        return _with_shards(app, 1), f"shards: {wanted} has no effect, one process serves: {reasons[0]}"
    cores = usable_cores()
    if wanted > cores:
        note = f"shards: {wanted} is more than the {cores} cores that this service may use: {cores} shards"
        app, wanted = _with_shards(app, cores), cores
    else:
        note = ""
    room = max(1, available_memory() // _estimate_bytes(app))
    if wanted > room:
        note = f"shards: {wanted} need more memory than is available: {room}"
        app = _with_shards(app, room)
    return app, note


def find_obstacles(app: App) -> Iterator[str]:
    """Yield the reasons for which one process has to serve all requests, such as state of all of them."""
    config = app.config
    if app.repository is not None:
        yield "the models come from a repository, whose clients load and unload them"
        return
    if len(app.ops) != 1:
        yield "the DAG has several Ops"
        return
    (op,) = app.ops
    section = config.op[op]
    choice = app.choices.get(op)
    placement_is_chosen = choice is not None and "placement" in choice.left_open
    if wants_processes(app, op):
        yield f"the engine of Op {op} runs one batch at a time in a process"
    if section.placement == "process" and not placement_is_chosen:
        yield f"op.{op}.placement is process"
    if section.placement == "auto" and not config.dag.is_thread_op:
        yield "dag.is_thread_op is false"
    if config.tls is not None and config.tls.http:
        yield "tls is set"
    if config.security.api_keys is not None:
        yield "security.api_keys: the limits of a key hold for all processes"
    if config.trace.is_possible:
        yield "trace is set: one process writes the traces"
    if app.get_sequence_rules(op) is not None:
        yield f"the requests of Op {op} form sequences"
    if section.timeout > 0:
        yield f"op.{op}.timeout is set"
    if not section.crash_retry:
        yield f"op.{op}.crash_retry is false: no request may run twice"


def divide_limits(app: App) -> App:
    """Return the service as one of its shards runs it: with its part of the pending requests and rows."""
    config = app.config
    keys = ("max_pending_requests", "max_pending_rows")
    parts = {key: max(1, getattr(config.dag, key) // config.shards) for key in keys}
    return replace(app, config=config.model_copy(update={"dag": config.dag.model_copy(update=parts)}))


def _with_shards(app: App, count: int) -> App:
    return replace(app, config=app.config.model_copy(update={"shards": count}))


def _estimate_bytes(app: App) -> int:
    """Return the memory of a shard: its model's files, and the libraries."""
    conf = app.config.op[app.ops[0]].local_model
    if conf is None:
        return _PROCESS_BYTES
    directory = choose_version(Path(app.folder, conf.model_dir), conf.model_version).directory
    files = [directory] if directory.is_file() else directory.rglob("*")
    return _PROCESS_BYTES + sum(path.stat().st_size for path in files if path.is_file())

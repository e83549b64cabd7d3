"""The number of shards that a service gets: `shards` of config.yml, or fewer where one process must serve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pipeline.api.app import App
from pipeline.api.shards import find_obstacles
from pipeline.config.value_types import AUTO_NUMBER
from pipeline.front.pool.plan import wants_processes
from pipeline.models.serving_model import choose_version
from pipeline.process.environment import available_memory, usable_cores

_PROCESS_BYTES = 250 << 20  # of a shard, beside the files of its model


def plan_shards(app: App) -> tuple[App, str]:
    """Return the service with the number of shards that it can run, and a log line if there are fewer.

    A shard is a worker process that serves HTTP connections itself. The line is empty if the service gets all
    shards that config.yml asks for.
    """
    wanted = app.config.shards
    if wanted == 1:
        return app, ""
    if wanted == AUTO_NUMBER:  # nothing was measured, as for the models of a repository
        return _with_shards(app, 1), ""
    if reasons := list(_find_reasons(app)):
        return _with_shards(app, 1), f"shards: {wanted} has no effect, one process serves: {reasons[0]}"
    cores = usable_cores()
    if wanted > cores:
        note = f"shards: {wanted} is more than the {cores} cores that this service may use: {cores} shards"
        app, wanted = _with_shards(app, cores), cores
    else:
        note = ""
    available, source = available_memory(), "is available"
    limit = app.config.limits.max_memory
    is_measured = any(choice.shards == wanted for choice in app.choices.values())
    if limit is not None and not is_measured and limit * 1e6 < available:
        available, source = int(limit * 1e6), f"limits.max_memory ({limit} MB)"
    room = max(1, available // _estimate_bytes(app))
    if wanted > room:
        note = f"shards: {wanted} need more memory than {source}: {room}"
        app = _with_shards(app, room)
    return app, note


def _find_reasons(app: App) -> Iterator[str]:
    """Yield the reasons why the service can't use shards: settings in config.yml, or the engine."""
    yield from find_obstacles(app)
    if len(app.ops) == 1 and wants_processes(app, app.ops[0]):
        yield f"the engine of Op {app.ops[0]} runs one batch at a time in a process"


def divide_limits(app: App) -> App:
    """Return the App (configuration and Ops) for one shard of the service.

    A shard is a process that accepts, batches and runs requests. Each shard gets an equal part of the limits
    on pending requests and rows.
    """
    config = app.config
    keys = ("max_pending_requests", "max_pending_rows")
    parts = {key: max(1, getattr(config.dag, key) // config.shards) for key in keys}
    return replace(app, config=config.model_copy(update={"dag": config.dag.model_copy(update=parts)}))


def _with_shards(app: App, count: int) -> App:
    return replace(app, config=app.config.model_copy(update={"shards": count}))


def _estimate_bytes(app: App) -> int:
    """Return an estimate of a shard's memory in bytes: the files of its model, and the libraries."""
    conf = app.config.op[app.ops[0]].local_model
    if conf is None:
        return _PROCESS_BYTES
    directory = choose_version(Path(app.folder, conf.model_dir), conf.model_version).directory
    files = [directory] if directory.is_file() else directory.rglob("*")
    return _PROCESS_BYTES + sum(path.stat().st_size for path in files if path.is_file())

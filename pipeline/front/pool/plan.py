"""The deployment plan of an Op: model version, engine and files of its workers, and instances per process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.api.app import App
from pipeline.config.config_file import LocalServiceConf
from pipeline.engines.base import Engine, find_engine, shares_a_process
from pipeline.errors import ConfigError
from pipeline.models.serving_model import CACHE_FOLDER, ChosenVersion, choose_version, list_older_versions
from pipeline.tuning.auto import fitted

_NOT_OURS = {CACHE_FOLDER, "__pycache__"}  # written to the folder of a model when it runs
FileState = tuple[str, int, int, int]  # path, inode, bytes, time of its last change in ns


@dataclass(frozen=True)
class Plan:
    """Deployment plan for the workers of an Op: model version, engine, files, and instances by process.

    A plan is immutable. Loading the Op again creates a new plan.
    """

    app: App  # the service, with the model directory of the chosen version
    version: str  # of the model; empty for an Op without one
    engine: str  # of the model; empty for an Op without one
    places: list[range]  # numbers of the instances, by process
    files: frozenset[FileState]  # of the model and the scripts; a later plan differs where they have changed
    note: str = ""  # difference from the version before, for the log; empty without one
    older: tuple[ChosenVersion, ...] = ()  # versions to serve where this one can't be loaded, newest first


def plan(app: App, op: str) -> Plan:
    """Return the plan for the workers of a pipeline step (Op), from config.yml and the files on disk.

    Raises ConfigError if the configured model version does not exist.
    """
    conf = app.config.op[op].local_model
    if conf is None:
        return _plan_version(app, op, None)
    chosen = choose_version(Path(app.folder, conf.model_dir), conf.model_version)
    fixed = conf.model_version is not None or app.repository is not None
    return _plan_version(app, op, chosen, () if fixed else tuple(list_older_versions(chosen)))


def plan_older(newer: Plan, op: str) -> Plan:
    """Return the plan for the next older version of the model, because `newer` can't be loaded."""
    return _plan_version(newer.app, op, newer.older[0], newer.older[1:])


def _plan_version(
    app: App, op: str, chosen: ChosenVersion | None, older: tuple[ChosenVersion, ...] = ()
) -> Plan:
    """Return the plan for a chosen version of the model.

    chosen: the version; None for an Op without a local model. older: versions to fall back to, newest first.
    """
    conf = app.config.op[op].local_model
    version, folders, note = "", [], ""
    if conf is not None and chosen is not None:
        version = chosen.version
        app, note = _with_model(app, op, conf, chosen.directory)
        folders.append(chosen.directory)
    folders += [Path(m.folder, m.version) for m in app.models if m.op == op and m.folder]
    engine = _engine(app, app.config.op[op].local_model)
    name = "" if engine is None else engine.name
    return Plan(app, version, name, placement(app, op), frozenset(_states(app, folders)), note, older)


def placement(app: App, op: str) -> list[range]:
    """Return the numbers of a pipeline step's (Op's) instances: one range of numbers for each worker process.

    An Op has `concurrency` instances; with `build_dag_each_worker`, `concurrency` instances for each of
    `worker_num` workers. With `shards`, each shard has an equal part of the instances, at least one.
    """
    config = app.config
    concurrency = config.op[op].concurrency
    count = concurrency * (config.worker_num if config.build_dag_each_worker else 1)
    if config.shards > 1:
        concurrency = max(1, count // config.shards)
        count = concurrency * config.shards
    together = concurrency if shares_process(app, op) else 1
    return [range(first, first + together) for first in range(0, count, together)]


def shares_process(app: App, op: str) -> bool:
    """Return whether the instances of this pipeline step (Op) are threads of one worker process.

    They are if the configuration asks for threads and the engine allows them. The instances of a shard are
    always threads.
    """
    return app.config.shards > 1 or (wants_threads(app, op) and not wants_processes(app, op))


def wants_threads(app: App, op: str) -> bool:
    """Return whether config.yml asks for threads, not processes, as the instances of this Op.

    The setting is the Op's `placement`, or else `dag.is_thread_op`.
    """
    placed = app.config.op[op].placement
    return app.config.dag.is_thread_op if placed == "auto" else placed == "thread"


def wants_processes(app: App, op: str) -> bool:
    """Return whether the engine of this pipeline step (Op) needs a process for each worker instance.

    Such an engine runs one batch at a time in a process, so that threads would only wait for each other.
    False for an Op without a model, and for a remote Op, which waits for the network without holding Python's
    GIL.
    """
    conf = app.config.op[op].local_model
    engine = _engine(app, conf)
    return conf is not None and (engine is None or not shares_a_process(engine))


def _engine(app: App, conf: LocalServiceConf | None) -> Engine | None:
    """Return the inference engine of an Op's model; None without a model.

    Also returns None if the configuration is invalid: the worker will report the error.
    """
    if conf is None:
        return None
    try:
        directory, _ = choose_version(Path(app.folder, conf.model_dir), conf.model_version)
        return find_engine(directory, conf.engine)
    except (ConfigError, OSError):
        return None


def _with_model(app: App, op: str, conf: LocalServiceConf, directory: Path) -> tuple[App, str]:
    """Return the app with the model in this directory, and a log line about a changed engine, or "".

    Keys that are `auto` in config.yml get the values that were chosen for this version of the model.
    """
    conf = conf.model_copy(update={"model_dir": str(directory), "model_version": None})
    section = app.config.op[op].model_copy(update={"local_service_conf": conf})
    choices, note = dict(app.choices), ""
    if op in choices:
        section, choice, note = fitted(section, choices.pop(op), directory)
        choices |= {op: choice} if choice is not None else {}
    config = app.config.model_copy(update={"op": {**app.config.op, op: section}})
    return replace(app, config=config, choices=choices), note


def _states(app: App, folders: list[Path]) -> Iterator[FileState]:
    """Yield path, inode, size and change time of each model file and each Python file of the app."""
    files = [p for folder in folders for p in folder.rglob("*") if _NOT_OURS.isdisjoint(p.parts)]
    for path in [*files, *Path(app.script).parent.glob("*.py")]:
        try:
            status = path.stat()
        except OSError:  # gone meanwhile
            continue
        yield str(path), status.st_ino, status.st_size, status.st_mtime_ns

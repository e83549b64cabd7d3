"""Replaces `auto` in config.yml by the fastest engine, precision, batch size, placement and shards here.

They are measured at the first start, and stored. Absent keys keep their Paddle Serving meaning, and explicit
values stay.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pipeline.config.config_file import ServiceConfig
from pipeline.config.op_section import LocalServiceConf, OpConfig
from pipeline.config.value_types import AUTO, AUTO_NUMBER
from pipeline.engines.base import load_engine, shares_a_process
from pipeline.engines.device import Device, resolve_device
from pipeline.errors import ConfigError
from pipeline.models.digests import hash_sample
from pipeline.models.serving_model import (
    BODIES_FILE,
    SAMPLE_FILE,
    ServingModel,
    choose_version,
    merge_model_settings,
    require_library,
)
from pipeline.models.signature import sized
from pipeline.models.variants import FP32, INT8, find_variants, load_for_engine, variants_in, ways_to_run
from pipeline.process.log import logs_json
from pipeline.tuning.choice import (
    USUAL_LENGTHS,
    Choice,
    Served,
    Timed,
    choose,
    choose_served,
    get_choice_key,
    read_choice,
    write_choice,
)
from pipeline.tuning.sample import read_sample_lines
from pipeline.tuning.timed_runs import LENGTHS, ROWS, Order, timed
from pipeline.tuning.trials import LIMITS, Candidate, TrialFailed, TrialOrder, run_race

log = logging.getLogger(__name__)

MAX_SECONDS = "PADDLEWHEEL_AUTO_SECONDS"  # environment variable: limit of the race of the instances
BATCH = 32  # limit of a predictor batch with `batch_size: auto`; the plan cuts batches by their cost
SMALL_S, LARGE_S = 0.4, 4.0  # for the runs of one candidate, of a small model and of a large one
LARGE_BYTES = 64 << 20
_ONEDNN_ENGINE = "paddle"  # which `use_mkldnn` configures
OP_KEYS = ("batch_size", "placement")  # of the Op's section, not of `local_service_conf`
_SLOWEST_TIMED = 2.5  # of the fastest candidate: slower runs alone can't make the faster service
_MAX_CANDIDATES = 2  # to start the instances of, besides another placement
# For both steps: timed runs, and the race of the instances. The race has at least its half.
_BUDGET_S, _LARGE_BUDGET_S = 10.0, 45.0
MAX_BODIES = 256
PRECISIONS = (FP32, "bf16", INT8)  # that `precision: auto` tries; int8 where `convert` has made that form


class HookedService(NamedTuple):
    """The user's service. A measurement calls the hooks of its Ops with sample requests."""

    app: str  # as `App.to_json` writes it
    ops: Collection[str]  # Ops whose hooks get the client's request


def wants_choice(section: OpConfig) -> bool:
    """Return whether an Op's section of config.yml has `auto` as its engine, precision or batch size."""
    conf = section.local_service_conf
    of_model = conf is not None and AUTO in (conf.engine, conf.precision)
    return section.batch_size == AUTO_NUMBER or of_model


def resolved(
    config: ServiceConfig, service: HookedService | None = None, shards: int = 1
) -> tuple[ServiceConfig, dict[str, Choice]]:
    """Return the configuration with measured settings in place of `auto`, and the choice of each Op.

    Measures if no choice is stored for this model and machine, which takes seconds and shows a progress bar
    on a terminal. service: the service whose hooks may be called; None: no hook is called. shards: number of
    shards (workers that serve HTTP connections themselves) to compare with worker processes, for the only Op
    of a service; 1: no comparison. Without the key `shards`, shards are compared only if hooks are called.
    Raises ConfigError if no engine here can run a model.
    """
    sections, choices = dict(config.op), dict[str, Choice]()
    needs_hooks = "shards" not in config.model_fields_set
    for name, section in config.op.items():
        if not wants_choice(section) and shards == 1:
            continue
        hooked = service if service is not None and name in service.ops else None
        settings = _ServiceSettings(int((config.limits.max_memory or 0) * 1e6), shards, needs_hooks)
        choice = _choice(name, section, _find_open_keys(section, config), settings, hooked)
        sections[name] = with_choice(section, choice)
        if choice is not None:
            choices[name] = choice
    update: dict[str, Any] = {"op": sections}
    if config.shards == AUTO_NUMBER:
        update["shards"] = max([choice.shards for choice in choices.values()], default=1)
    return config.model_copy(update=update), choices


def _find_open_keys(section: OpConfig, config: ServiceConfig) -> tuple[str, ...]:
    """Return the keys of an Op's section that a measurement decides: `batch_size`, `placement`, both or none.

    Keys of its model (`local_service_conf`) are left out.
    """
    keys: tuple[str, ...] = ("batch_size",) if section.batch_size == AUTO_NUMBER else ()
    several = section.concurrency * (config.worker_num if config.build_dag_each_worker else 1) > 1
    if several and section.placement == AUTO and "is_thread_op" not in config.dag.model_fields_set:
        keys += ("placement",)
    return keys


def require_engine(model: ServingModel, engine: str | None) -> None:
    """Raise ConfigError, with the pip command, if the library of the model's engine is not installed.

    engine: value in config.yml. For `auto`, any installed engine that runs the model is enough.
    """
    if engine != AUTO:
        require_library(model)
        return
    options = [option for option in ways_to_run(model.directory) if option.model is not None]
    if options and all(option.refusal for option in options):
        raise ConfigError(options[0].refusal)


def with_choice(section: OpConfig, choice: Choice | None) -> OpConfig:
    """Return an Op's section of config.yml with the measured settings in place of `auto`.

    choice: the settings; None puts the defaults in place of `auto`.
    """
    batch = BATCH if section.batch_size == AUTO_NUMBER else section.batch_size
    conf = section.local_service_conf
    if conf is not None:
        update: dict[str, str | bool | None] = {}
        if conf.engine == AUTO:
            update["engine"] = choice.engine if choice else None
        if _leaves_onednn_open(conf) and choice is not None and choice.onednn:
            update["use_mkldnn"] = True
        if conf.precision == AUTO:
            update["precision"] = choice.precision if choice else FP32
        conf = conf.model_copy(update=update)
    placement: str = section.placement
    if placement == AUTO and choice is not None and "placement" in choice.left_open:
        placement = choice.placement
    return section.model_copy(
        update={"batch_size": batch, "placement": placement, "local_service_conf": conf}
    )


class Fitted(NamedTuple):
    """Result of `fitted`: an Op's section of config.yml and its measured choice, for one model version."""

    section: OpConfig
    choice: Choice | None
    note: str = ""  # log line about the changed engine or precision


def fitted(section: OpConfig, choice: Choice, directory: Path) -> Fitted:
    """Adapt the measured engine and precision of an Op to another version of its model, in this folder.

    Nothing is timed, because the service is running. If a choice is stored for the new version, that choice
    is used. Otherwise the engine is kept if it can run the new version, else the default engine for its files
    is used. A lower precision becomes fp32, because it was proven for the old version only.
    """
    conf = section.local_model
    assert conf is not None
    op_keys = tuple(key for key in choice.left_open if key in OP_KEYS)
    open_keys = {key: None if key == "use_mkldnn" else AUTO for key in choice.left_open if key not in OP_KEYS}
    conf = conf.model_copy(update=open_keys)
    try:
        subject = _subject(directory, conf, _ServiceSettings(choice.memory_bytes, choice.compared_shards))
    except ConfigError:  # the worker reports the error
        return Fitted(section, choice)
    if subject.key == choice.key:
        return Fitted(section, choice)
    stored = read_choice(subject.model, subject.key)
    if stored is not None:
        choice = _bind_to_subject(stored, subject, op_keys)
        return Fitted(with_choice(section.model_copy(update={"local_service_conf": conf}), choice), choice)
    engine, precision = choice.engine, choice.precision
    if conf.engine == AUTO and ways_to_run(directory, [engine])[0].refusal:
        engine = subject.model.engine
    if conf.precision == AUTO:
        precision = FP32
    if (engine, precision) == (choice.engine, choice.precision) and not choice.onednn:
        return Fitted(section, choice)
    conf = conf.model_copy(update={"engine": engine, "precision": precision})
    chosen = f"{choice.engine} in {choice.precision}{' with oneDNN' if choice.onednn else ''}"
    note = (
        f"{directory} runs by engine {engine} in {precision}, for {chosen} was chosen "
        "for another version; start the service anew to have this one timed"
    )
    return Fitted(section.model_copy(update={"local_service_conf": conf}), None, note)


class _ServiceSettings(NamedTuple):
    """Settings of the whole service on which a choice depends."""

    memory_bytes: int = 0  # `limits.max_memory`: most memory of the Op's workers; 0 without a limit
    shards: int = 1  # that are compared with worker processes; 1: none
    needs_hooks: bool = False  # shards are compared only with requests that run the hooks of the Op


class _Subject(NamedTuple):
    """A model and its configuration, for which the fastest settings are to be found."""

    directory: Path
    model: ServingModel
    conf: LocalServiceConf
    settings: _ServiceSettings
    key: str  # see `get_choice_key`
    facts: str  # the text of which the key is a digest


def _subject(directory: Path, conf: LocalServiceConf, settings: _ServiceSettings) -> _Subject:
    """Load the model of a folder, and compute the key of its stored choice.

    Raises ConfigError if the folder has no model.
    """
    model = load_for_engine(directory, None if conf.engine == AUTO else conf.engine)
    conf = merge_model_settings(model, conf)
    if settings.needs_hooks and not (model.directory / BODIES_FILE).is_file():
        settings = settings._replace(shards=1)
    besides = [
        _describe_conf(conf),
        *(f"{variant.name} {variant.digest} {variant.reject_reason}" for variant in find_variants(directory)),
    ]
    # Samples judge lower precisions and oneDNN, and a choice without them is provisional.
    for file in (SAMPLE_FILE, BODIES_FILE):
        if (path := model.directory / file).is_file():
            besides.append(f"{file} {hash_sample(path)}")
    if settings.memory_bytes:
        besides.append(f"{settings.memory_bytes} bytes of memory")
    if settings.shards > 1:
        besides.append(f"{settings.shards} shards")
    return _Subject(directory, model, conf, settings, *get_choice_key(model, besides))


def _choice(
    name: str,
    section: OpConfig,
    open_keys: tuple[str, ...],
    settings: _ServiceSettings,
    service: HookedService | None,
) -> Choice | None:
    """Return the stored choice of settings for an Op, or measure and store a choice.

    None without a local model, on a GPU, and for a model that rejects generated inputs. name: the Op's name.
    open_keys: see `_find_open_keys`. service: see `resolved`.
    """
    conf = section.local_model
    if conf is None or resolve_device(conf) is not Device.CPU:
        return None
    subject = _subject(choose_version(Path(conf.model_dir), conf.model_version).directory, conf, settings)
    choice = read_choice(subject.model, subject.key)
    if choice is None:
        began = time.monotonic()
        measured = _timed(name, subject)
        results = [result for _, result in measured]
        if all(result.refused for result in results) and (
            unsuited := [result for result in results if result.unsuited]
        ):
            target = f"{name}: {subject.directory} can't be timed on feeds that are made up"
            log.warning("Op %s, and runs as without `auto`: %s", target, unsuited[0].refused)
            return None
        choice = choose([*results, *_not_run(subject)])
        order = _build_race(section, subject, measured, open_keys, time.monotonic() - began)
        if service is not None and (bodies := _read_bodies(name, subject.model.directory)):
            order = msgspec.structs.replace(order, service=service.app, op=name, bodies=bodies)
        elif settings.needs_hooks:
            order = msgspec.structs.replace(order, sharded=[])
        served, with_hooks = _raced(name, order, shards_need_hooks=settings.needs_hooks)
        has_sample = with_hooks or (subject.model.directory / SAMPLE_FILE).is_file()
        choice = choose_served(choice, served, provisional=not has_sample)
        choice = write_choice(subject.model, subject.key, subject.facts, choice)
    return _bind_to_subject(choice, subject, open_keys)


def _build_race(
    section: OpConfig,
    subject: _Subject,
    measured: Sequence[tuple[Order, Timed]],
    open_keys: tuple[str, ...],
    spent_s: float,
) -> TrialOrder:
    """Return the input of `run_race`, which loads the fastest candidates with concurrent requests.

    measured: the candidates with the times of their runs. open_keys: keys of the Op's section that the
    measurement decides. spent_s: seconds spent on these runs.
    """
    values = section.model_dump(mode="json", by_alias=True, exclude_unset=True)
    values["batch_size"] = BATCH if section.batch_size == AUTO_NUMBER else section.batch_size
    able = sorted([pair for pair in measured if not pair[1].refused], key=lambda pair: pair[1].mean_s())
    fastest = [pair for pair in able if pair[1].mean_s() <= _SLOWEST_TIMED * able[0][1].mean_s()]
    candidates, alternatives, sharded = [], [], []
    shards = subject.settings.shards
    for order, result in fastest[:_MAX_CANDIDATES]:
        (model,) = [option.model for option in ways_to_run(subject.directory, [order.engine])]
        assert model is not None
        candidate = Candidate(
            order.engine,
            order.precision,
            section.placement,
            order.onednn,
            {**values, "local_service_conf": order.conf},
            result,
            (model.params or model.program).stat().st_size,
        )
        may_share = shares_a_process(load_engine(model.engine))
        threads = msgspec.structs.replace(candidate, placement="thread")
        if shards > 1 and may_share:
            sharded.append(msgspec.structs.replace(threads, shards=shards))
        if "placement" in open_keys and may_share:
            candidate = msgspec.structs.replace(candidate, placement="process")
            alternatives.append(threads)
        candidates.append(candidate)
    limits = (
        [limit for limit in LIMITS if limit <= BATCH] if "batch_size" in open_keys else [values["batch_size"]]
    )
    large = max(candidate.weights_bytes for candidate in candidates) > LARGE_BYTES
    whole_s = _LARGE_BUDGET_S if large else _BUDGET_S
    budget_s = min(max(whole_s - spent_s, whole_s / 2), _get_max_seconds())
    return TrialOrder(
        str(subject.directory),
        candidates,
        alternatives,
        limits,
        budget_s,
        subject.settings.memory_bytes,
        sharded=sharded,
    )


def _read_bodies(name: str, directory: Path) -> list[str]:
    """Return the request bodies of `BODIES_FILE` in a model's folder; empty without usable bodies.

    name: the Op's name, for the log.
    """
    path = directory / BODIES_FILE
    if not path.is_file():
        return []
    try:
        lines = read_sample_lines(path, source=str(path))
    except ConfigError as exc:
        log.warning("Op %s: its hooks are not measured: %s", name, exc.message)
        return []
    rejected = [number for number, line in lines if "key" not in msgspec.json.decode(line)]
    if rejected:
        log.warning(
            "Op %s: its hooks are not measured: %s line %d has no 'key': write bodies with key and value",
            name, path, rejected[0],
        )  # fmt: skip
        return []
    return [line for _, line in lines[:MAX_BODIES]]


def _get_max_seconds() -> float:
    """Return the limit in seconds from the environment variable `MAX_SECONDS`; infinite if it is not set.

    Raises ConfigError for other values than seconds.
    """
    text = os.environ.get(MAX_SECONDS, "")
    try:
        seconds = float(text or math.inf)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise ConfigError(f"{MAX_SECONDS} is {text!r}: write seconds, or 0 to time the model alone")
    return seconds


def _raced(name: str, order: TrialOrder, *, shards_need_hooks: bool) -> tuple[list[Served], bool]:
    """Measure candidates under concurrent requests. Return the results, best first, and whether hooks ran.

    The results are empty if there is nothing to compare, or if the measurement fails. If every candidate
    fails with the hooks, which may refuse the sample bodies, the measurement is repeated without hooks. name:
    the Op's name. shards_need_hooks: without hooks, shards are not measured.
    """
    compared = len(order.candidates) + len(order.alternatives) + len(order.limits) + len(order.sharded)
    if not order.budget_s or compared <= 2:
        return [], bool(order.bodies)
    names = ", ".join(candidate.name for candidate in order.candidates)
    title = f"Op {name}: serving {names} (once for this machine)"
    try:
        with _shown_race(title) as show:
            results = run_race(order, show)
    except TrialFailed as exc:
        results, reasons = [], exc.message
    else:
        reasons = "; ".join(result.describe() for result in results)
    if not all(result.refused for result in results):
        return results, bool(order.bodies)
    if order.bodies:
        log.warning("Op %s: its hooks are not measured with %s: %s", name, BODIES_FILE, reasons)
        order = msgspec.structs.replace(order, service="", op="", bodies=[])
        if shards_need_hooks:
            order = msgspec.structs.replace(order, sharded=[])
        return _raced(name, order, shards_need_hooks=False)
    log.warning("Op %s: the choice goes by timed runs of the model alone: %s", name, reasons)
    return results, False


def _timed(name: str, subject: _Subject) -> list[tuple[Order, Timed]]:
    """Time the model alone with each engine and precision. Return each order with its result.

    If no engine here supports the precision in config.yml, time fp32 instead, with the same warning as for an
    engine that config.yml names.
    """
    results = [(order, timed(order)) for order in _with_progress(name, _orders(subject))]
    conf = subject.conf
    if (
        conf.precision in (AUTO, FP32)
        or conf.strict_precision
        or not all(result.refused for _, result in results)
    ):
        return results
    return [(order, timed(order)) for order in _with_progress(name, _orders(subject, strict=False))]


def _bind_to_subject(choice: Choice, subject: _Subject, op_keys: tuple[str, ...]) -> Choice:
    """Return a stored choice with this model's key, and with the settings that config.yml leaves open."""
    requested = {"engine": subject.conf.engine, "precision": subject.conf.precision}
    left_open = tuple(key for key, value in requested.items() if value == AUTO)
    if _leaves_onednn_open(subject.conf):
        left_open += ("use_mkldnn",)
    left_open += op_keys
    return msgspec.structs.replace(
        choice,
        key=subject.key,
        left_open=left_open,
        memory_bytes=subject.settings.memory_bytes,
        compared_shards=subject.settings.shards,
    )


def _describe_conf(conf: LocalServiceConf) -> str:
    """Return the configured settings on which a choice depends, as a part of the key of stored choices."""
    fixed = f"{conf.thread_num} threads, ir_optim {conf.ir_optim}, oneDNN {conf.use_mkldnn}"
    return f"engine {conf.engine}, precision {conf.precision}, {fixed}"


def _orders(subject: _Subject, *, strict: bool = True) -> list[Order]:
    """Return the measurements to make: one for each engine and precision that may run the model.

    strict: leave out engines that would run fp32 in place of a lower precision.
    """
    directory, model, conf = subject.directory, subject.model, subject.conf
    options = ways_to_run(directory, None if conf.engine == AUTO else [model.engine])
    precisions = PRECISIONS if conf.precision == AUTO else (conf.precision,)
    rows, lengths = _batch_sizes(model), _lengths(model)
    orders = []
    for (name, engine_model, refusal), precision in product(options, precisions):
        if engine_model is None or refusal:  # the engine runs no form of the model, or is not installed
            continue
        if conf.precision == AUTO and precision == INT8 and not variants_in(directory, name, INT8):
            continue
        weights = engine_model.params or engine_model.program
        budget_s = LARGE_S if weights.stat().st_size > LARGE_BYTES else SMALL_S
        lower = conf.precision == AUTO and precision != FP32
        update = {
            "engine": name,
            "precision": precision,
            "model_dir": str(directory),
            "model_version": None,
            "strict_precision": conf.strict_precision or (strict and precision != FP32),
        }
        conf_values = conf.model_copy(update=update).model_dump(
            mode="json", by_alias=True, exclude_unset=True
        )
        orders.append(Order(name, precision, conf_values, rows, lengths, budget_s, lower))
        if precision == FP32 and _tries_onednn(name, engine_model, conf):
            onednn = {**conf_values, "use_mkldnn": True}
            orders.append(Order(name, precision, onednn, rows, lengths, budget_s, onednn=True))
    return orders


def _leaves_onednn_open(conf: LocalServiceConf) -> bool:
    """Return whether the measurement decides on oneDNN: config.yml sets neither the engine nor oneDNN."""
    return conf.engine == AUTO and conf.use_mkldnn is None


def _tries_onednn(engine: str, model: ServingModel, conf: LocalServiceConf) -> bool:
    """Return whether oneDNN (a library of CPU kernels) shall be measured for this engine.

    oneDNN's results are checked on real rows, so oneDNN is not measured without real rows.
    """
    is_open = engine == _ONEDNN_ENGINE and _leaves_onednn_open(conf)
    return is_open and (model.directory / SAMPLE_FILE).is_file()


def _not_run(subject: _Subject) -> Iterator[Timed]:
    """Yield the engines and precisions that are not measured, with the reason, such as a damaged file."""
    is_open = _leaves_onednn_open(subject.conf) and subject.conf.precision in (AUTO, FP32)
    for name, model, refusal in ways_to_run(subject.directory, [_ONEDNN_ENGINE] if is_open else ()):
        if model is not None and not refusal and not _tries_onednn(name, model, subject.conf):
            reason = f"{SAMPLE_FILE} is not beside the model: oneDNN is proved on real rows of two sizes"
            yield Timed(_ONEDNN_ENGINE, FP32, refused=reason, onednn=True)
    for variant in find_variants(subject.directory) if subject.conf.engine == AUTO else ():
        if not variant.passed and variant.precision == FP32:  # lower precisions are among the timed orders
            engines = ", ".join(variant.engines) or variant.name
            yield Timed(engines, FP32, refused=f"{variant.directory}: {variant.reject_reason}")


def _batch_sizes(model: ServingModel) -> list[int]:
    """Return the batch sizes to measure; only 1 if all inputs of the model have a fixed batch dimension."""
    varies = any(sized(feed.shape, 1, 1) != sized(feed.shape, 2, 1) for feed in model.feeds)
    return list(ROWS) if varies else [1]


def _lengths(model: ServingModel) -> list[int]:
    """Return the sequence lengths to measure: several for padded texts, else one usual length."""
    if model.padding is None:
        return [USUAL_LENGTHS[0]]
    longest = min([feed.longest[1] for feed in model.feeds if feed.longest], default=max(LENGTHS))
    return [length for length in LENGTHS if length <= longest] or [longest]


def _describe_order(order: Order) -> str:
    """Return the name of a candidate for the progress line: the engine, and a lower precision or oneDNN."""
    if order.onednn:
        return f"{order.engine} with oneDNN"
    return f"{order.engine} {order.precision}" if order.agreeing else order.engine


@contextlib.contextmanager
def _shown_race(title: str) -> Iterator[Callable[[str, float], None]]:
    """Context manager: print a title, and yield a function that reports progress.

    The function gets a step and a fraction from 0 to 1. It draws a progress bar on a terminal, and does
    nothing elsewhere.
    """
    if not _has_terminal():
        _write_title(title)
        yield lambda step, share: None
        return
    from rich.console import Console  # imported here, as in `_with_progress`
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        progress.console.show_cursor()
        task = progress.add_task(title, total=1.0)
        yield lambda step, share: progress.update(task, completed=share, description=f"{title}: {step}")


def _has_terminal() -> bool:
    """Return whether a progress bar can be shown on standard error."""
    return sys.stderr is not None and sys.stderr.isatty() and not logs_json()


def _write_title(title: str) -> None:
    """Write a progress line to standard error, or to the log if logs are JSON."""
    if logs_json():
        log.warning("%s", title)
    elif sys.stderr is not None:
        sys.stderr.write(f"{title}\n")
        sys.stderr.flush()


def _with_progress(name: str, orders: Sequence[Order]) -> Iterator[Order]:
    """Yield measurement orders one by one, and show the progress: a bar on a terminal, a line elsewhere."""
    title = f"Op {name}: timing {', '.join(map(_describe_order, orders))} (once for this machine)"
    if not _has_terminal():
        _write_title(title)
        yield from orders
        return
    from rich.console import Console  # imported here: most starts measure nothing, or have no terminal
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        progress.console.show_cursor()  # which it hides, and a signal that ends the start would leave so
        yield from progress.track(orders, description=title)

"""Replaces `auto` in a configuration by what is the fastest on this machine, measured at the first start.

Only what says `auto` is looked at: an absent key means what it always did, and what config.yml names stays.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import msgspec

from pipeline.config.config_file import ServiceConfig
from pipeline.config.op_section import LocalServiceConf, OpConfig
from pipeline.config.value_types import AUTO, AUTO_BATCH
from pipeline.engines.device import Device, resolve_device
from pipeline.errors import ConfigError
from pipeline.models.digests import hash_sample
from pipeline.models.serving_model import (
    SAMPLE_FILE,
    ServingModel,
    choose_version,
    merge_model_settings,
    require_library,
)
from pipeline.models.signature import sized
from pipeline.models.variants import FP32, INT8, find_variants, load_for_engine, variants_in, ways_to_run
from pipeline.tuning import kept
from pipeline.tuning.choice import USUAL_LENGTHS, Choice, Timed, choose
from pipeline.tuning.order import Order, timed
from pipeline.tuning.timed_runs import LENGTHS, ROWS

log = logging.getLogger(__name__)

BATCH = 32  # most requests in a predictor batch of `batch_size: auto`; the plan cuts by what runs cost
SMALL_S, LARGE_S = 1.0, 6.0  # for the runs of one candidate, of a small model and of a large one
LARGE_BYTES = 64 << 20
_ONEDNN_ENGINE = "paddle"  # which `use_mkldnn` configures
PRECISIONS = (FP32, "bf16", INT8)  # that `precision: auto` tries; int8 where `convert` has made that form


def wants_choice(section: OpConfig) -> bool:
    """Whether the Op's section says `auto` for anything."""
    conf = section.local_service_conf
    of_model = conf is not None and AUTO in (conf.engine, conf.precision)
    return section.batch_size == AUTO_BATCH or of_model


def resolved(config: ServiceConfig) -> tuple[ServiceConfig, dict[str, Choice]]:
    """The configuration without any `auto`, and what was chosen, by Op.

    Measures where no choice is kept for this model and machine: with a progress bar on a terminal. Raises
    ConfigError where no engine here can run a model.
    """
    sections, choices = dict(config.op), dict[str, Choice]()
    for name, section in config.op.items():
        if not wants_choice(section):
            continue
        choice = _choice(name, section)
        sections[name] = with_choice(section, choice)
        if choice is not None:
            choices[name] = choice
    return config.model_copy(update={"op": sections}), choices


def require_engine(model: ServingModel, engine: str | None) -> None:
    """Raises ConfigError, with the line for pip, where the library of the model's engine is not installed.

    engine: as config.yml has it; for `auto` one library of all that run the model is enough.
    """
    if engine != AUTO:
        require_library(model)
        return
    ways = [way for way in ways_to_run(model.directory) if way.model is not None]
    if ways and all(way.refusal for way in ways):
        raise ConfigError(ways[0].refusal)


def with_choice(section: OpConfig, choice: Choice | None) -> OpConfig:
    """The section with what was chosen in place of `auto`; without a choice what an absent key means."""
    batch = BATCH if section.batch_size == AUTO_BATCH else section.batch_size
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
    return section.model_copy(update={"batch_size": batch, "local_service_conf": conf})


class Fitted(NamedTuple):
    """An Op's section and choice for the version of its model that is there. note: what that changes."""

    section: OpConfig
    choice: Choice | None
    note: str = ""


def fitted(section: OpConfig, choice: Choice, directory: Path) -> Fitted:
    """What the choice comes to for the version of the model in this folder, which may be another.

    Nothing is timed, for requests are served meanwhile. A choice that is kept for that version counts. Else
    the engine stays where it runs that one, too, and gives way to that of its files where it does not; a
    lower precision gives way to fp32, for it was proven of the other version alone.
    """
    conf = section.local_model
    assert conf is not None
    open_keys = {key: None if key == "use_mkldnn" else AUTO for key in choice.left_open}
    conf = conf.model_copy(update=open_keys)
    try:
        subject = _subject(directory, conf)
    except ConfigError:  # the worker tells it
        return Fitted(section, choice)
    if subject.key == choice.key:
        return Fitted(section, choice)
    known = kept.read(subject.model, subject.key)
    if known is not None:
        choice = _of_subject(known, subject)
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


class _Subject(NamedTuple):
    """What is chosen for: a model in a folder, run as `conf` says. key, facts: see `kept.get_choice_key`."""

    directory: Path
    model: ServingModel
    conf: LocalServiceConf
    key: str
    facts: str


def _subject(directory: Path, conf: LocalServiceConf) -> _Subject:
    """Raises ConfigError where there is no such model."""
    model = load_for_engine(directory, None if conf.engine == AUTO else conf.engine)
    conf = merge_model_settings(model, conf)
    besides = [
        _asked(conf),
        *(f"{one.name} {one.digest} {one.reject_reason}" for one in find_variants(directory)),
    ]
    judges = conf.precision == AUTO or _leaves_onednn_open(conf)
    if judges and (rows := model.directory / SAMPLE_FILE).is_file():
        besides.append(
            f"{SAMPLE_FILE} {hash_sample(rows)}"
        )  # by which a lower precision and oneDNN are judged
    return _Subject(directory, model, conf, *kept.get_choice_key(model, besides))


def _choice(name: str, section: OpConfig) -> Choice | None:
    """The kept choice or a new one; None where there is nothing to choose: no model here, a GPU, or a model
    that no made-up feeds suit."""
    conf = section.local_model
    if conf is None or resolve_device(conf) is not Device.CPU:
        return None
    subject = _subject(choose_version(Path(conf.model_dir), conf.model_version).directory, conf)
    choice = kept.read(subject.model, subject.key)
    if choice is None:
        ran = _timed(name, subject)
        if all(one.refused for one in ran) and (unsuited := [one for one in ran if one.unsuited]):
            told = f"{name}: {subject.directory} can't be timed on feeds that are made up"
            log.warning("Op %s, and runs as without `auto`: %s", told, unsuited[0].refused)
            return None
        choice = choose([*ran, *_not_run(subject)])
        choice = kept.write(subject.model, subject.key, subject.facts, choice)
    return _of_subject(choice, subject)


def _timed(name: str, subject: _Subject) -> list[Timed]:
    """What became of each engine and precision. One that config.yml names is given up where no engine here
    has it: fp32 is run then, with the warning that a named engine gives."""
    ran = [timed(order) for order in _with_progress(name, _orders(subject))]
    conf = subject.conf
    if conf.precision in (AUTO, FP32) or conf.strict_precision or not all(one.refused for one in ran):
        return ran
    return [timed(order) for order in _with_progress(name, _orders(subject, strict=False))]


def _of_subject(choice: Choice, subject: _Subject) -> Choice:
    """The choice, which knows what it was made for."""
    asked = {"engine": subject.conf.engine, "precision": subject.conf.precision}
    left_open = tuple(key for key, value in asked.items() if value == AUTO)
    if _leaves_onednn_open(subject.conf):
        left_open += ("use_mkldnn",)
    return msgspec.structs.replace(choice, key=subject.key, left_open=left_open)


def _asked(conf: LocalServiceConf) -> str:
    """What a choice depends on besides the model and the machine."""
    fixed = f"{conf.thread_num} threads, ir_optim {conf.ir_optim}, oneDNN {conf.use_mkldnn}"
    return f"engine {conf.engine}, precision {conf.precision}, {fixed}"


def _orders(subject: _Subject, *, strict: bool = True) -> list[Order]:
    """One for each engine that may run the model, or for the one that config.yml names.

    strict: an engine that would run fp32 in place of a lower precision is no candidate.
    """
    directory, model, conf = subject.directory, subject.model, subject.conf
    ways = ways_to_run(directory, None if conf.engine == AUTO else [model.engine])
    precisions = PRECISIONS if conf.precision == AUTO else (conf.precision,)
    rows, lengths = _rows(model), _lengths(model)
    orders = []
    for (name, taken, refusal), precision in product(ways, precisions):
        if taken is None or refusal:  # it runs no form of the model that is here, or is not installed
            continue
        if conf.precision == AUTO and precision == INT8 and not variants_in(directory, name, INT8):
            continue
        weights = taken.params or taken.program
        budget_s = LARGE_S if weights.stat().st_size > LARGE_BYTES else SMALL_S
        lower = conf.precision == AUTO and precision != FP32
        update = {
            "engine": name,
            "precision": precision,
            "model_dir": str(directory),
            "model_version": None,
            "strict_precision": conf.strict_precision or (strict and precision != FP32),
        }
        given = conf.model_copy(update=update).model_dump(mode="json", by_alias=True, exclude_unset=True)
        orders.append(Order(name, precision, given, rows, lengths, budget_s, lower))
        if precision == FP32 and _tries_onednn(name, taken, conf):
            onednn = {**given, "use_mkldnn": True}
            orders.append(Order(name, precision, onednn, rows, lengths, budget_s, onednn=True))
    return orders


def _leaves_onednn_open(conf: LocalServiceConf) -> bool:
    return conf.engine == AUTO and conf.use_mkldnn is None


def _tries_onednn(engine: str, model: ServingModel, conf: LocalServiceConf) -> bool:
    """Return whether oneDNN is a candidate. Without real rows it has no proof."""
    is_open = engine == _ONEDNN_ENGINE and _leaves_onednn_open(conf)
    return is_open and (model.directory / SAMPLE_FILE).is_file()


def _not_run(subject: _Subject) -> Iterator[Timed]:
    """Yield the ways to run the model that are not tried, each with the reason: a damaged form, say."""
    is_open = _leaves_onednn_open(subject.conf) and subject.conf.precision in (AUTO, FP32)
    for name, model, refusal in ways_to_run(subject.directory, [_ONEDNN_ENGINE] if is_open else ()):
        if model is not None and not refusal and not _tries_onednn(name, model, subject.conf):
            reason = f"{SAMPLE_FILE} is not beside the model: oneDNN is proved on real rows of two sizes"
            yield Timed(_ONEDNN_ENGINE, FP32, refused=reason, onednn=True)
    for variant in find_variants(subject.directory) if subject.conf.engine == AUTO else ():
        if not variant.passed and variant.precision == FP32:  # a lower one is among those that are timed
            engines = ", ".join(variant.engines) or variant.name
            yield Timed(engines, FP32, refused=f"{variant.directory}: {variant.reject_reason}")


def _rows(model: ServingModel) -> list[int]:
    """The numbers of rows that are timed: 1 stands for a run where no feed has more or fewer rows."""
    varies = any(sized(feed.shape, 1, 1) != sized(feed.shape, 2, 1) for feed in model.feeds)
    return list(ROWS) if varies else [1]


def _lengths(model: ServingModel) -> list[int]:
    """The lengths that are timed: several where texts are padded, else a usual one, as in the warm-up."""
    if model.padding is None:
        return [USUAL_LENGTHS[0]]
    longest = min([feed.longest[1] for feed in model.feeds if feed.longest], default=max(LENGTHS))
    return [length for length in LENGTHS if length <= longest] or [longest]


def _describe_order(order: Order) -> str:
    """The engine, and a precision that is tried beside fp32."""
    if order.onednn:
        return f"{order.engine} with oneDNN"
    return f"{order.engine} {order.precision}" if order.agreeing else order.engine


def _with_progress(name: str, orders: Sequence[Order]) -> Iterator[Order]:
    """The orders one by one, with a progress bar on a terminal and a line elsewhere."""
    title = f"Op {name}: timing {', '.join(map(_describe_order, orders))} (once for this machine)"
    if sys.stderr is None or not sys.stderr.isatty():
        if sys.stderr is not None:
            sys.stderr.write(f"{title}\n")
            sys.stderr.flush()
        yield from orders
        return
    from rich.console import Console  # imported here: most starts measure nothing, or have no terminal
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        progress.console.show_cursor()  # which it hides, and a signal that ends the start would leave so
        yield from progress.track(orders, description=title)

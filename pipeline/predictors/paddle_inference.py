"""Runs .pdmodel and PIR programs with Paddle Inference."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipeline.errors import ConfigError, ModelFailed, UnusableFeed
from pipeline.predictors.base import (
    Array,
    PredictorConf,
    check_feeds,
    other_shape,
    select_fetches,
    shares_runs,
)
from pipeline.predictors.device import Device, resolve_device
from pipeline.predictors.dynamic_shape import DynamicShapes
from pipeline.predictors.paddle_config import build_config
from pipeline.predictors.paddle_errors import error_sentence
from pipeline.predictors.paddle_import import inference
from pipeline.predictors.paddle_kept_tensors import KeptTensors
from pipeline.predictors.paddle_program import corrected_feeds, inspect_program, rows_found_by
from pipeline.predictors.paddle_session import Session
from pipeline.serving_model import ServingModel, Variable

log = logging.getLogger(__name__)


class PaddlePredictor:
    """One instance of a Paddle model. Holds the GIL while it runs; one thread at a time."""

    def __init__(
        self,
        model: ServingModel,
        conf: PredictorConf,
        *,
        instance_index: int = 0,
        dynamic_shapes: DynamicShapes | None = None,
        fetch_list: Sequence[str] = (),
    ) -> None:
        _refuse_unfeedable(model)
        self.feeds = corrected_feeds(model, inspect_program(model))
        self.fetches = select_fetches(model.fetches, fetch_list or conf.fetch_list)
        # Paddle judges the batch itself: apps feed several rows to programs that were exported with one.
        self._fed = tuple(replace(v, shape=(-1, *v.shape[1:])) if v.shape else v for v in self.feeds)
        self.merges = shares_runs(model.program, rows_found_by(model.program), self.feeds)
        self._model, self._conf = model, conf
        config = build_config(model, conf, instance_index=instance_index, dynamic_shapes=dynamic_shapes)
        session = self._session(config, model)
        keeps = model.format == "pir" and resolve_device(conf) is Device.CPU
        self._runs: Session | KeptTensors | None = KeptTensors(session) if keeps else session
        # oneDNN's operators take for granted the ranks that the program declares: y = x W of [1, 1, 13] would
        # be [1, 1] in place of [1, 1, 1]. So the program itself runs feeds of others, once there are any.
        self._by_itself: Session | None = None if config.mkldnn_enabled() else session

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Arrays by alias in and out; the program judges their shapes, which many take beside their own.

        Raises InvalidInput, or ModelFailed with Paddle's reason.
        """
        if self._runs is None:
            raise ModelFailed("the predictor is closed")
        checked = check_feeds(self._fed, feeds, any_shape=True)
        runs = self._runs
        for variable in self._fed:
            if checked[variable.alias].ndim != len(variable.shape) and not variable.is_lod:
                runs = self._for_other_ranks()
                break
        try:
            return runs.run(checked)
        except Exception as exc:
            other = other_shape(self._fed, checked)
            if other is not None:
                raise UnusableFeed(f"{other}, and the program can't run it: {error_sentence(exc)}") from exc
            shapes = ", ".join(f"{alias} {list(array.shape)}" for alias, array in checked.items())
            raise ModelFailed(f"Paddle refused the feeds {shapes}: {error_sentence(exc)}") from exc

    def _for_other_ranks(self) -> Session:
        if self._by_itself is None:
            log.info("%s is loaded once more, without oneDNN, for feeds of another rank", self._model.program)
            self._by_itself = self._session(build_config(self._model, self._conf, natively=True), self._model)
        return self._by_itself

    def _session(self, config: inference.Config, model: ServingModel) -> Session:
        """Raises ConfigError where the program can't be loaded, or is not the one that is described."""
        try:
            predictor = inference.create_predictor(config)
        except Exception as exc:
            raise ConfigError(f"{model.program} can't be loaded: {error_sentence(exc)}") from exc
        _compare_names(model.feeds, predictor.get_input_names(), "feed", model)
        outputs = predictor.get_output_names()
        own_names = _own_names(model, outputs)
        _compare_names(self.fetches, [*outputs, *own_names], "fetch", model)
        return Session(
            predictor,
            {v.alias: v.name for v in self.feeds},
            {v.alias: own_names.get(v.name, v.name) for v in self.fetches},
            ragged={v.alias for v in self.feeds if v.is_lod},
            has_sequences=model.format == "pdmodel",  # a PIR program's outputs have none
        )

    def close(self) -> None:
        """Free the model."""
        self._runs = self._by_itself = None


def _refuse_unfeedable(model: ServingModel) -> None:
    for variable in model.feeds:
        if variable.dtype in ("bfloat16", "string"):
            raise ConfigError(
                f"feed {variable.alias!r} of {model.program} is of type {variable.dtype}, which can't be fed "
                "here: export the model with inputs of numbers"
            )


def _own_names(model: ServingModel, outputs: Sequence[str]) -> dict[str, str]:
    """The program's name of each fetch by its declared one, when they have no name in common.

    Models saved by Paddle Serving 0.6 and before declare other names than the program ends up with; they are
    in the same order.
    """
    declared = [variable.name for variable in model.fetches]
    if len(declared) != len(outputs) or set(declared) & set(outputs):
        return {}
    names = dict(zip(declared, outputs, strict=True))
    told = ", ".join(f"{name} is {own}" for name, own in names.items())
    log.warning("%s names no output of %s; taken in order: %s", model.directory, model.program.name, told)
    return names


def _compare_names(
    declared: Sequence[Variable], actual: Sequence[str], kind: str, model: ServingModel
) -> None:
    """A description that does not belong to the program is told now, not at the first request."""
    names = {variable.name for variable in declared}
    missing = names - set(actual)
    if kind == "feed":
        missing ^= set(actual) - names
    if missing:
        raise ConfigError(
            f"{model.directory / 'serving_server_conf.prototxt'} does not fit {model.program.name}: {kind} "
            f"{min(missing)!r} is only in one of them; the program has {', '.join(actual)}"
        )

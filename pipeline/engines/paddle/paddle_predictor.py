"""Runs .pdmodel files, and the .json model files of Paddle 3 (PIR), with Paddle Inference."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.engines.base import PredictorConf
from pipeline.engines.device import Device, resolve_device
from pipeline.engines.dynamic_shape import DynamicShapes
from pipeline.engines.feeds import Array, as_texts, check_feeds, check_forms, shares_runs
from pipeline.engines.fetches import select_fetches
from pipeline.engines.paddle.paddle_config import build_config, precision_in_force
from pipeline.engines.paddle.paddle_import import error_sentence, inference, parse_out_of_range
from pipeline.engines.paddle.program import (
    ProgramFacts,
    corrected_feeds,
    find_row_finder,
    find_tokenizer_op,
    inspect_program,
    text_program,
)
from pipeline.engines.paddle.session import KeptTensors, Runs, Session, Tokenizing, bears_padding
from pipeline.engines.refusals import build_run_error
from pipeline.errors import ConfigError, InvalidInput, ModelFailed
from pipeline.models.serving_model import ServingModel, Variable

log = logging.getLogger(__name__)


class PaddlePredictor:
    """A model in Paddle Inference, for one instance.

    Inference holds the GIL; one thread at a time may run it.
    """

    def __init__(
        self,
        model: ServingModel,
        conf: PredictorConf,
        *,
        instance_index: int = 0,
        dynamic_shapes: DynamicShapes | None = None,
        fetch_list: Sequence[str] = (),
    ) -> None:
        facts = inspect_program(model)
        _refuse_unfeedable(model, facts)
        self.feeds = corrected_feeds(model, facts)
        self.fetches = select_fetches(model.fetches, fetch_list or conf.fetch_list)
        # Paddle checks the batch axis: apps feed several rows to programs that were exported for one row.
        self._fed = tuple(replace(v, shape=(-1, *v.shape[1:])) if v.shape else v for v in self.feeds)
        self._model, self._conf = model, conf
        self._halves = text_program(model) if find_tokenizer_op(model) else None
        self._texts = [v.alias for v in self.feeds if v.name in facts.texts]
        self.precision = precision_in_force(resolve_device(conf), model, conf)
        config = self._build_config(instance_index=instance_index, dynamic_shapes=dynamic_shapes)
        session = self._load_session(config)
        keeps = model.format == "pir" and resolve_device(conf) is Device.CPU
        self._runs: Runs | None = KeptTensors(session) if keeps and isinstance(session, Session) else session
        # oneDNN's operators rely on the ranks that the program declares: y = x W of [1, 1, 13] would be
        # [1, 1] instead of [1, 1, 1]. Feeds of another rank run in a session without oneDNN.
        self._without_onednn: Runs | None = None if config.mkldnn_enabled() else session
        self.merges = shares_runs(model.program, find_row_finder(model.program), self.feeds)
        if self._texts and self.merges and not self._bears_padding():
            log.info("%s answers texts otherwise beside longer ones: its requests run alone", model.program)
            self.merges = False

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run inference on input arrays by alias. Returns output arrays by alias.

        Many models accept more shapes than they declare. Raises InvalidInput, or ModelFailed with Paddle's
        reason.
        """
        if self._runs is None:
            raise ModelFailed("the predictor is closed")
        checked = check_feeds(self._fed, feeds, any_shape=True)
        for alias in self._texts:
            checked[alias] = as_texts(alias, checked[alias]).ravel()
        runs = self._runs
        for variable in self._fed:
            if checked[variable.alias].ndim != len(variable.shape) and not variable.is_lod:
                runs = self._for_other_ranks()
                break
        try:
            return runs.run(checked)
        except Exception as exc:
            out_of_range = parse_out_of_range(exc)
            raise build_run_error("Paddle", self._fed, checked, error_sentence(exc), out_of_range) from exc

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Raise InvalidInput for inputs whose names, types or dtypes do not fit, or that are empty."""
        check_forms(self._fed, feeds, any_shape=True)

    def _bears_padding(self) -> bool:
        """Whether a text's outputs stay the same if the tokenizer pads it to a longer text."""
        try:
            return len(self._texts) == len(self.feeds) and bears_padding(self.run, self._texts)
        except (InvalidInput, ModelFailed):
            return False

    def _for_other_ranks(self) -> Runs:
        if self._without_onednn is None:
            log.info("%s is loaded once more, without oneDNN, for feeds of another rank", self._model.program)
            self._without_onednn = self._load_session(self._build_config(natively=True))
        return self._without_onednn

    def _build_config(self, **options: Any) -> inference.Config:
        rest = self._halves.rest if self._halves else None
        return build_config(self._model, self._conf, precision=self.precision, rest=rest, **options)

    def _load_session(self, config: inference.Config) -> Session | Tokenizing:
        """Load the model with this configuration, and its tokenizer if it has one.

        Raises ConfigError if the model can't be loaded or does not match its description.
        """
        model, halves = self._model, self._halves
        tokens = set(halves.tokens) if halves else set()
        feeds = {v.alias: v.name for v in self.feeds if v.alias not in self._texts}
        rest = self._create_predictor(config) if halves is None or halves.rest is not None else None
        inputs = rest.get_input_names() if rest else []
        outputs = [*(rest.get_output_names() if rest else []), *(halves.fetched if halves else ())]
        texts = halves.texts if halves else ()
        _compare_names(model.feeds, [*(name for name in inputs if name not in tokens), *texts], "feed", model)
        program_names = _map_fetches_by_order(model, outputs)
        _compare_names(self.fetches, [*outputs, *program_names], "fetch", model)
        fetches = {v.alias: program_names.get(v.name, v.name) for v in self.fetches}
        session = None
        if rest is not None:
            session = Session(
                rest,
                feeds | {name: name for name in inputs if name in tokens},
                {alias: name for alias, name in fetches.items() if name not in tokens},
                ragged={v.alias for v in self.feeds if v.is_lod},
                has_sequences=model.format == "pdmodel",  # a PIR program's outputs have none
            )
        if halves is None:
            assert session is not None
            return session
        names = {v.alias: v.name for v in self.feeds if v.alias in self._texts}
        fetched = {alias: name for alias, name in fetches.items() if name in tokens}
        return Tokenizing(halves, names, fetched, session)

    def _create_predictor(self, config: inference.Config) -> inference.Predictor:
        try:
            return inference.create_predictor(config)
        except Exception as exc:
            raise ConfigError(f"{self._model.program} can't be loaded: {error_sentence(exc)}") from exc

    def close(self) -> None:
        """Free the model. Later calls of `run` raise ModelFailed."""
        self._runs = self._without_onednn = None


def _refuse_unfeedable(model: ServingModel, facts: ProgramFacts) -> None:
    for variable in model.feeds:
        if variable.name not in facts.texts and variable.dtype in ("bfloat16", "string"):
            raise ConfigError(
                f"feed {variable.alias!r} of {model.program} is of type {variable.dtype}, which can't be fed "
                "here: export the model with inputs of numbers"
            )


def _map_fetches_by_order(model: ServingModel, outputs: Sequence[str]) -> dict[str, str]:
    """Map declared output names to the graph file's names by their order; empty if the two share a name.

    Models saved by Paddle Serving 0.6 and earlier declare other names than the program, in the same order.
    """
    declared = [variable.name for variable in model.fetches]
    if len(declared) != len(outputs) or set(declared) & set(outputs):
        return {}
    names = dict(zip(declared, outputs, strict=True))
    mapping = ", ".join(f"{name} is {output}" for name, output in names.items())
    log.warning("%s names no output of %s; taken in order: %s", model.directory, model.program.name, mapping)
    return names


def _compare_names(
    declared: Sequence[Variable], actual: Sequence[str], kind: str, model: ServingModel
) -> None:
    """Raise ConfigError at start-up for a description whose tensor names do not match the graph file.

    kind: "feed" (inputs) or "fetch" (outputs).
    """
    names = {variable.name for variable in declared}
    missing = names - set(actual)
    if kind == "feed":
        missing ^= set(actual) - names
    if missing:
        raise ConfigError(
            f"{model.directory / 'serving_server_conf.prototxt'} does not fit {model.program.name}: {kind} "
            f"{min(missing)!r} is only in one of them; the program has {', '.join(actual)}"
        )

"""The model of a worker's Op (a step of the service): predictor, batch limits, padding rules and warm-up."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.api.op import Op
from pipeline.config.config_file import DEFAULT_BATCH_TOKENS, DEFAULT_KSERVE_ROWS, LocalServiceConf, OpConfig
from pipeline.engines import create_predictor, create_remote_predictor
from pipeline.engines.base import Predictor, load_engine, takes_any_shape
from pipeline.engines.device import configured_shapes
from pipeline.engines.dynamic_shape import DynamicShapes
from pipeline.engines.feeds import Array, input_examples
from pipeline.engines.remote_model import RemotePredictor
from pipeline.engines.reshaped import Reshaped
from pipeline.engines.stateful import Stateful
from pipeline.errors import ConfigError, InvalidInput, ModelFailed, get_error_text
from pipeline.models.additions import PARITY_FILE, FeedPadding, Padding
from pipeline.models.digests import SAMPLE, replaced_files
from pipeline.models.sequence_tensors import SequenceTensors
from pipeline.models.serving_model import (
    WARMUP_SHAPES,
    ServingModel,
    Variable,
    create_ones,
    merge_model_settings,
)
from pipeline.models.tensor_spec import BY_NAME, ModelCard, Signature, TensorSpec
from pipeline.models.variants import load_for_engine
from pipeline.tuning.choice import Choice
from pipeline.worker.plan import BatchLimits, RunCosts

log = logging.getLogger(__name__)

TENSORRT = 2  # of `device_type`
FULL_PRECISION = "fp32"
WARMUP_LENGTHS = (16, 64)
# Rows x longest row: 16 texts of 512, 512 of 16. Twice as much is no faster on a CPU, and takes a worker a
# third more memory (docs/decisions/worker-memory.md).


@dataclass(frozen=True)
class Joining:
    """Rules for joining the inputs (feeds) of several requests into one batch.

    They say which axes may be padded, so that inputs of different lengths share a batch.
    """

    padding: Padding | None = (
        None  # which axes of feeds and fetches; None: feeds of one shape are joined alone
    )
    buckets: tuple[int, ...] | None = None  # the lengths that are padded to; None: see `plan.bucket`
    max_length: int | None = None  # rows above it are not padded: the model or the engine takes none
    # How many axes the model declares for a feed; one with another number of them is not padded.
    ranks: Mapping[str, int] = field(default_factory=dict)
    free: bool = False  # the engine takes any shape at no cost: nothing is padded beyond the longest
    ragged: Collection[str] = ()  # feeds of any shape, which the Op's `request_runner` joins
    axes: Mapping[str, int] = field(init=False)  # the padded axis of each feed that has one

    def __post_init__(self) -> None:
        padded = self.padding.feeds if self.padding else {}
        object.__setattr__(self, "axes", {name: rule.axis for name, rule in padded.items()})


class Model:
    """The model of one Op (a step of the service): loaded in this process, or called on other servers.

    An Op without a configured model has no predictor and no padding.
    """

    def __init__(
        self,
        op: Op,
        config: OpConfig,
        folder: str,
        instance: int,
        choice: Choice | None = None,
        default_rows: int = DEFAULT_KSERVE_ROWS,
    ) -> None:
        """Load the model that the Op's section of config.yml names, or create the client of its servers.

        folder: base of relative model paths. instance: number of the instance, which selects its GPU or its
        first server. choice: run times measured on this machine, where config.yml says `auto`. default_rows:
        maximum rows of a KServe request to this model if the Op has no limit. Raises ConfigError.
        """
        self._default_rows = default_rows
        self._config = config
        self._choice = choice
        self._op_name = op.name
        self._warmup_shapes = op.warmup_shapes
        self._shapes = _get_dynamic_shapes(op, config)
        self.serving_model: ServingModel | None = None
        self._known_feeds: Mapping[str, Array] | None = None  # the smallest of those that the warm-up has run
        self._precision = FULL_PRECISION
        self.predictor: Predictor | None = None
        self.sequence_tensors: SequenceTensors | None = None  # the state in serving.yml
        if config.server_endpoints:
            self.predictor = create_remote_predictor(
                op.name, config, instance, packs_tensors=lambda: op.packs_tensors
            )
            return
        conf = config.local_model
        if conf is None:
            return
        self.serving_model = load_for_engine(Path(folder, conf.model_dir), conf.engine, conf.precision)
        _refuse_failed(self.serving_model, conf.allow_failed_parity)
        _tell_replaced(self.serving_model)
        settings = merge_model_settings(self.serving_model, conf)
        self.predictor = create_predictor(
            self.serving_model,
            settings,
            instance_index=instance,
            dynamic_shapes=self._shapes,
            fetch_list=config.fetch_list or conf.fetch_list,
        )
        self._precision = getattr(self.predictor, "precision", settings.precision)
        if op.reshapes is not None:
            self.predictor = Reshaped(self.predictor, op.reshapes)
        model = self.serving_model
        if model.states or model.constants:
            self.predictor = Stateful(self.predictor, model.states, model.constants)
            self.sequence_tensors = SequenceTensors(model.states) if model.states else None

    @property
    def limits(self) -> BatchLimits:
        """Maximum requests, rows and tokens of one inference, by config.yml and the largest input shapes."""
        if isinstance(self.predictor, RemotePredictor) and not self.predictor.merges:
            return BatchLimits(requests=1)
        rows = [self._config.max_batch_rows]
        if self._shapes is not None:
            feeds = self.serving_model.feeds if self.serving_model else ()
            names = [name for feed in feeds for name in (feed.alias, feed.name)] or self._shapes.max
            rows.append(self._shapes.max_rows(names))
        rows.append(_collected_rows(self._shapes, self._config.local_service_conf))
        row_limits = [r for r in rows if r is not None]
        return BatchLimits(
            requests=self._config.batch_size if self.predictor is None or self.predictor.merges else 1,
            rows=min(row_limits) if row_limits else None,
            tokens=self._config.max_batch_tokens or DEFAULT_BATCH_TOKENS,
        )

    def costs(self) -> RunCosts | None:
        """Table of measured inference times, used to size batches; None without measurements.

        Each instance has its own table, updated by its runs.
        """
        if self._choice is None:
            return None
        conf = self._config.local_model
        of_one_thread = conf is not None and conf.thread_num == 1  # so its CPU time tells what a run costs
        return RunCosts(self._choice.costs(), self.limits.requests, follows=of_one_thread)

    @property
    def signature(self) -> Signature | None:
        """Names, datatypes and shapes of the model's inputs and outputs, for clients.

        None without a model, for a remote model, and for models with ragged (LoD) tensors.
        """
        predictor = self.predictor
        if predictor is None or self.serving_model is None:
            return None
        hidden = self.sequence_tensors or SequenceTensors()
        feeds = tuple(feed for feed in predictor.feeds if feed.alias not in hidden.datatypes)
        fetches = tuple(fetch for fetch in predictor.fetches if fetch.alias not in hidden.outputs)
        if any(variable.is_lod for variable in (*feeds, *fetches)):
            return None
        by_rows = predictor.merges and all(feed.has_rows for feed in feeds)
        max_rows = (self.limits.rows or self._default_rows) if by_rows else 0
        return Signature(_specs(feeds), _specs(fetches, self.serving_model.labels), max_rows)

    @property
    def card(self) -> ModelCard | None:
        """Engine, precision, task and labels of the model, for the docs page; None without a local model."""
        model = self.serving_model
        if model is None:
            return None
        engine = str(getattr(load_engine(model.engine), "title", model.engine))
        precision = "" if self._precision == FULL_PRECISION else f", {self._precision}"
        task = model.additions.get("task", "")
        return ModelCard(f"{engine}{precision}", task if isinstance(task, str) else "", model.labels)

    @property
    def joining(self) -> Joining:
        """Rules for joining the inputs of several requests: `padding` of config.yml, else of the model."""
        padding = self._padding()
        if padding is None:
            return Joining()
        local = self.serving_model is not None and self.predictor is not None
        ranks = {v.alias: len(v.shape) for v in self.predictor.feeds} if local and self.predictor else {}
        buckets = tuple(self._config.length_buckets or ())
        conf = self._config.local_model
        on_tensorrt = conf is not None and conf.device_type == TENSORRT
        model = self.serving_model
        free = not buckets and not on_tensorrt and model is not None and takes_any_shape(model.engine)
        return Joining(padding, buckets, self._longest(padding), ranks, free)

    def _padding(self) -> Padding | None:
        named = self._config.padding
        if named is None:
            return self.serving_model.padding if self.serving_model else None
        return Padding(
            {name: FeedPadding(feed.axis, feed.value) for name, feed in named.feeds.items()},
            {name: fetch.axis for name, fetch in named.fetches.items()},
            named.max_length,
        )

    def _longest(self, padding: Padding) -> int | None:
        """Greatest length that padded inputs may have, one value for all inputs; None without a limit."""
        max_shapes = self._shapes.longest if self._shapes else {}
        shaped = [
            max_shapes[name][rule.axis]
            for name, rule in padding.feeds.items()
            if name in max_shapes and rule.axis < len(max_shapes[name])
        ]
        declared = [
            feed.longest[1]
            for feed in (self.serving_model.feeds if self.serving_model else ())
            if feed.longest and (rule := padding.feeds.get(feed.alias)) and feed.longest[0] == rule.axis
        ]
        proven = [padding.max_length] if padding.max_length else []
        return min([*shaped, *declared, *proven], default=None)

    def warm_up(self) -> None:
        """Run inference on example inputs of declared shapes or usual lengths, before the first request.

        Does nothing for a remote model, and where config.yml switches the warm-up off. Raises ConfigError for
        declared shapes that the model does not take; other failures are logged.
        """
        if self.predictor is None or self.serving_model is None or not self._config.warmup:
            return
        directory = os.fspath(self.serving_model.directory)
        for feeds in self._warmup_feeds(self.predictor, self.serving_model):
            try:
                self.predictor.run(feeds)
                self._known_feeds = self._known_feeds or feeds
            except (InvalidInput, ModelFailed) as exc:  # our feeds are made up; the app's own may suit
                log.warning("Op's model %s was not warmed up, its first request is slow: %s", directory, exc)
                return
        log.info("Op's model %s is warm", directory)

    def _warmup_feeds(self, predictor: Predictor, model: ServingModel) -> list[dict[str, Array]]:
        where = f"Op {self._op_name}: {WARMUP_SHAPES}"
        example = create_ones(self._warmup_shapes, model.feeds, where) or model.read_example()
        lengths = WARMUP_LENGTHS[:1] if example else WARMUP_LENGTHS
        return [{**input_examples(predictor, rows=1, length=length), **example} for length in lengths]

    def probe(self) -> str:
        """Run the model on its smallest warm-up input again.

        Returns the error's message, empty for a success.
        """
        if self.predictor is None or self._known_feeds is None:
            return ""
        try:
            self.predictor.run(self._known_feeds)
        except Exception as exc:
            return get_error_text(exc)
        return ""


def _refuse_failed(model: ServingModel, allowed: bool) -> None:
    """Raise ConfigError for a model whose parity report says that its outputs differ from its source model.

    allowed: only log a warning.
    """
    if not model.failures:
        return
    why = f"{model.directory / PARITY_FILE}: {'; '.join(model.failures)}"
    if not allowed:
        raise ConfigError(
            f"{why}: convert the model again, or set local_service_conf.allow_failed_parity: true"
        )
    log.warning("%s; served all the same, for allow_failed_parity is set", why)


def _tell_replaced(model: ServingModel) -> None:
    """Log a warning for each model file that has changed since its parity check.

    The worker starts nevertheless: weights may have been replaced on purpose.
    """
    for name in replaced_files(model, SAMPLE) or ():
        log.warning(
            "%s is not the file that was proved (%s): check it with `paddlewheel convert check %s`",
            model.directory / name, PARITY_FILE, model.directory,
        )  # fmt: skip


def _specs(variables: Sequence[Variable], labels: tuple[str, ...] = ()) -> tuple[TensorSpec, ...]:
    """Return the names, datatypes and shapes of model tensors, for KServe clients.

    labels: class names, for each tensor whose last axis has as many elements.
    """
    specs = (TensorSpec(v.alias, BY_NAME[v.dtype].datatype, v.shape) for v in variables)
    return tuple(
        spec._replace(labels=labels) if spec.shape[-1:] == (len(labels),) else spec for spec in specs
    )


def _collected_rows(shapes: DynamicShapes | None, conf: LocalServiceConf | None) -> int | None:
    """Return the maximum rows of a TensorRT engine whose shape ranges are collected at start, else None."""
    if shapes is not None or conf is None or conf.device_type != TENSORRT or not conf.tensorrt.auto_collect:
        return None
    return max(conf.tensorrt.collect_batches)


def _get_dynamic_shapes(op: Op, config: OpConfig) -> DynamicShapes | None:
    """Return the shape ranges of the model's inputs, from `set_dynamic_shape_info` or config.yml, or None.

    Mistakes in `set_dynamic_shape_info` raise ConfigError for TensorRT. For other devices they are logged,
    because Paddle Serving ignored the attribute there.
    """
    conf = config.local_service_conf
    if not op.dynamic_shape_info:
        return configured_shapes(conf) if conf is not None and conf.device_type == TENSORRT else None
    try:
        source = f"Op {op.name}: set_dynamic_shape_info: dynamic_shape_info"
        return DynamicShapes.from_info(op.dynamic_shape_info, source)
    except ConfigError as exc:
        if conf is not None and conf.device_type == TENSORRT:
            raise
        log.warning("%s; ignored, for the Op does not use TensorRT", exc.message)
        return None

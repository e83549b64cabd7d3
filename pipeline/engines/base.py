"""Interfaces of engines and predictors, and of a predictor's configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from pipeline.engines.dynamic_shape import DynamicShapes, ShapeRange
from pipeline.engines.feeds import Array
from pipeline.errors import ConfigError
from pipeline.models.serving_model import ModelReader, ServingModel, Variable, find_model_files, server_folder
from pipeline.plugins import ENGINES, find, load


class Predictor(Protocol):
    """A loaded model. A predictor that instances share, as threads, must allow concurrent runs.

    A predictor may also have a method `check(feeds)` (`FeedsChecked`).
    """

    @property
    def feeds(self) -> tuple[Variable, ...]: ...
    @property
    def fetches(self) -> tuple[Variable, ...]:
        """The outputs `run` returns, in the order of the fetch list."""
        ...

    @property
    def merges(self) -> bool:
        """Whether fetches have a row per row of the feeds, so that requests may share a run."""
        ...

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run feeds by alias and return fetches by alias. The returned arrays own their memory.

        Raises InvalidInput for feeds that do not fit the model, ModelFailed if the engine fails.
        """
        ...

    def close(self) -> None:
        """Free the model. The predictor can't run afterwards."""
        ...


@runtime_checkable
class FeedsChecked(Protocol):
    """A predictor that checks each request's feeds before requests are batched."""

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Raise InvalidInput for feeds that `run` rejects regardless of their elements."""
        ...


class Engine(ModelReader, Protocol):
    """Software that runs models, registered in the entry-point group `paddlewheel.engines`.

    Engines are created in the script's process and in the front too. So their modules import no framework;
    only `load` does, in the worker. If the framework is an optional dependency, the attribute `library`
    (`pipeline.plugins.Library`) names it, and start-up errors say what to install.
    """

    @property
    def holds_gil(self) -> bool:
        """Whether a run holds Python's GIL, so that threads would only wait for it."""
        ...

    @property
    def takes_turns(self) -> bool:
        """Whether a process runs one batch at a time, so that threads would only wait for each other.

        Engines without this attribute run several batches at a time.
        """
        ...

    @property
    def any_shape(self) -> bool:
        """Whether new shapes are free of charge, so that batches are only padded to their longest row.

        Batches of engines without this attribute are padded to length buckets.
        """
        ...

    def load(
        self,
        model: ServingModel,
        conf: PredictorConf,
        *,
        instance_index: int = 0,
        dynamic_shapes: DynamicShapes | None = None,
        fetch_list: Sequence[str] = (),
    ) -> Predictor:
        """Load a model.

        `instance_index` selects one of `devices`. The aliases of `fetch_list` override those of `conf`.
        Raises ConfigError, before loading, for a configuration that this machine can't serve.
        """
        ...


def load_engine(name: str) -> Engine:
    """Return the engine of this name. Raises ConfigError if it is unknown or can't be loaded."""
    plugins = find(ENGINES)
    if name not in plugins:
        raise ConfigError(f"there is no engine {name!r} here, only {', '.join(plugins)}")
    engine: Engine = load(plugins[name])
    return engine


def shares_a_process(engine: Engine) -> bool:
    """Whether instances of an Op with this engine run as threads of one process."""
    return not engine.holds_gil and not getattr(engine, "takes_turns", False)


def takes_any_shape(name: str) -> bool:
    """Whether new shapes cost the engine nothing, see `Engine.any_shape`."""
    return bool(getattr(load_engine(name), "any_shape", False))


def find_engine(directory: Path | str, engine: str | None = None) -> Engine:
    """Return the named engine, else the engine for the serving model's files. Raises ConfigError."""
    return load_engine(engine or find_model_files(server_folder(Path(directory))).engine)


class PredictorTensorRtConf(Protocol):
    """Keys of `local_service_conf.tensorrt` that predictors read."""

    @property
    def precision(self) -> str | None: ...
    @property
    def cache_dir(self) -> str: ...
    @property
    def shapes(self) -> Mapping[str, ShapeRange] | str | Sequence[str]:
        """Ranges by tensor, or the path of a file of collected ranges, or a path for each length class."""
        ...

    @property
    def auto_collect(self) -> bool: ...
    @property
    def collect_lengths(self) -> Sequence[int]: ...
    @property
    def collect_batches(self) -> Sequence[int]: ...


class PredictorConf(Protocol):
    """Keys of `local_service_conf` that predictors read, implemented by LocalServiceConf."""

    @property
    def device_type(self) -> int: ...
    @property
    def devices(self) -> str: ...
    @property
    def thread_num(self) -> int: ...
    @property
    def inter_op_thread_num(self) -> int: ...
    @property
    def ir_optim(self) -> bool: ...
    @property
    def mem_optim(self) -> bool: ...
    @property
    def use_calib(self) -> bool: ...
    @property
    def use_mkldnn(self) -> bool | None: ...
    @property
    def mkldnn_cache_capacity(self) -> int: ...
    @property
    def mkldnn_op_list(self) -> Sequence[str] | None: ...
    @property
    def mkldnn_bf16_op_list(self) -> Sequence[str] | None: ...
    @property
    def precision(self) -> str: ...
    @property
    def strict_precision(self) -> bool: ...
    @property
    def min_subgraph_size(self) -> int: ...
    @property
    def fetch_list(self) -> Sequence[str]: ...
    @property
    def tensorrt(self) -> PredictorTensorRtConf: ...

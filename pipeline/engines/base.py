"""What runs models: an engine, the predictor that it makes of a model, and what configures that."""

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
    """A loaded model. Only one that instances share, as threads, has to bear several runs at a time.

    It may have a method `check(feeds)` as well (`FeedsChecked`).
    """

    @property
    def feeds(self) -> tuple[Variable, ...]: ...
    @property
    def fetches(self) -> tuple[Variable, ...]:
        """The outputs `run` returns, in the order of the fetch list."""
        ...

    @property
    def merges(self) -> bool:
        """Whether fetches have a row for each row fed, so that feeds of several requests may share a run."""
        ...

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Arrays by alias in, arrays by alias out; the outputs own their memory.

        Raises InvalidInput for feeds the model does not take, ModelFailed where the engine refuses.
        """
        ...

    def close(self) -> None:
        """Free the model; the predictor can't be run any more."""
        ...


@runtime_checkable
class FeedsChecked(Protocol):
    """A predictor that checks each request's feeds before they are joined to those of others."""

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Raise InvalidInput for feeds that `run` refuses whatever their elements are."""
        ...


class Engine(ModelReader, Protocol):
    """Software that runs models, found by the entry-point group `paddlewheel.engines`.

    It is made in the script's process and in the front, too, so that its module imports no framework: `load`
    alone does, in the worker. Where that is an extra of its package, it names it in an attribute `library`
    (`pipeline.plugins.Library`), so that a start tells what to install.
    """

    @property
    def holds_gil(self) -> bool:
        """Whether Python's lock is held while a model runs, so that threads would only wait for it."""
        ...

    @property
    def takes_turns(self) -> bool:
        """Whether a process runs one batch at a time, so that instances as threads would only wait for each
        other. One that does not say so runs several."""
        ...

    @property
    def any_shape(self) -> bool:
        """Whether a shape that it has not met costs nothing, so that no batch is padded beyond its longest
        row. One that does not say so is spared them."""
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
        """The model, loaded.

        instance_index: chooses among `devices`. fetch_list: aliases, which go before those of `conf`. Raises
        ConfigError, before anything is loaded, for a configuration this machine can't serve.
        """
        ...


def engine_named(name: str) -> Engine:
    """The engine of this name. Raises ConfigError where there is none, or where it can't be loaded."""
    plugins = find(ENGINES)
    if name not in plugins:
        raise ConfigError(f"there is no engine {name!r} here, only {', '.join(plugins)}")
    engine: Engine = load(plugins[name])
    return engine


def shares_a_process(engine: Engine) -> bool:
    """Whether instances of an Op with this engine do better as threads of one process."""
    return not engine.holds_gil and not getattr(engine, "takes_turns", False)


def takes_any_shape(name: str) -> bool:
    """Whether the engine of this name meets new shapes at no cost, see `Engine.any_shape`."""
    return bool(getattr(engine_named(name), "any_shape", False))


def find_engine(directory: Path | str, engine: str | None = None) -> Engine:
    """The engine of the serving model there: the one named, else that of its files. Raises ConfigError."""
    return engine_named(engine or find_model_files(server_folder(Path(directory))).engine)


class PredictorTensorRtConf(Protocol):
    """What the predictors read of `local_service_conf.tensorrt`."""

    @property
    def precision(self) -> str | None: ...
    @property
    def cache_dir(self) -> str: ...
    @property
    def shapes(self) -> Mapping[str, ShapeRange] | str | Sequence[str]:
        """Ranges by tensor, or the path of a file of collected ranges, or of one for each length class."""
        ...

    @property
    def auto_collect(self) -> bool: ...
    @property
    def collect_lengths(self) -> Sequence[int]: ...
    @property
    def collect_batches(self) -> Sequence[int]: ...


class PredictorConf(Protocol):
    """What the predictors read of `local_service_conf`; LocalServiceConf is one."""

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

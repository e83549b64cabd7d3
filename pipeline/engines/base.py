"""Interfaces of inference engines and of predictors (loaded models), and the settings that they read."""

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
    """A model that is loaded and runs inference.

    If instances are threads that share the predictor, it must allow concurrent runs. A predictor may also
    have a method `check(feeds)` (`FeedsChecked`), and an attribute `precision`: the precision in use, which
    differs from the configured one if the CPU lacks that.
    """

    @property
    def feeds(self) -> tuple[Variable, ...]: ...
    @property
    def fetches(self) -> tuple[Variable, ...]:
        """The model outputs that `run` returns, in the order of `fetch_list`."""
        ...

    @property
    def merges(self) -> bool:
        """Whether requests may share a batch: each output has a row for each row of the inputs."""
        ...

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run inference on input arrays by alias. Returns output arrays by alias, which own their memory.

        Raises InvalidInput for inputs that do not fit the model, ModelFailed if the engine fails.
        """
        ...

    def close(self) -> None:
        """Free the model. The predictor can't run afterwards."""
        ...


@runtime_checkable
class FeedsChecked(Protocol):
    """A predictor that can check the inputs of each request before requests are batched."""

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Raise InvalidInput for inputs that `run` rejects regardless of their elements."""
        ...


class Engine(ModelReader, Protocol):
    """An inference framework that loads models: a plugin of the entry-point group `paddlewheel.engines`.

    Engines are also created in the user's script and in the front process. So their modules import no
    framework; only `load` does, in the worker. If the framework is an optional dependency, the attribute
    `library` (`pipeline.plugins.Library`) names it, and start-up errors say what to install.
    """

    @property
    def holds_gil(self) -> bool:
        """Whether inference holds Python's GIL, so that several threads in one process bring no gain."""
        ...

    @property
    def takes_turns(self) -> bool:
        """Whether a process runs only one batch at a time, so that several threads in it bring no gain.

        Engines without this attribute run several batches at a time.
        """
        ...

    @property
    def any_shape(self) -> bool:
        """Whether the engine needs no extra time for new input shapes.

        Batches are then padded to their longest row only. Batches of engines without this attribute are
        padded to length buckets.
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
        """Load a model of this engine, and return the predictor that runs it.

        `instance_index` selects one of `devices`. The aliases of `fetch_list` override those of `conf`.
        Raises ConfigError, before loading, for a configuration that this machine can't serve.
        """
        ...


def load_engine(name: str) -> Engine:
    """Return the engine plugin of this name. Raises ConfigError if the name is unknown or loading fails."""
    plugins = find(ENGINES)
    if name not in plugins:
        raise ConfigError(f"there is no engine {name!r} here, only {', '.join(plugins)}")
    engine: Engine = load(plugins[name])
    return engine


def shares_a_process(engine: Engine) -> bool:
    """Whether instances of a model with this engine run as threads of one process.

    Otherwise each instance has its own process.
    """
    return not engine.holds_gil and not getattr(engine, "takes_turns", False)


def takes_any_shape(name: str) -> bool:
    """Whether the engine of this name needs no extra time for new input shapes, see `Engine.any_shape`."""
    return bool(getattr(load_engine(name), "any_shape", False))


def find_engine(directory: Path | str, engine: str | None = None) -> Engine:
    """Return the engine of this name, else the engine that runs the model files in the directory.

    Raises ConfigError.
    """
    return load_engine(engine or find_model_files(server_folder(Path(directory))).engine)


class PredictorTensorRtConf(Protocol):
    """Settings of TensorRT that predictors read: keys of `local_service_conf.tensorrt` in config.yml."""

    @property
    def precision(self) -> str | None: ...
    @property
    def cache_dir(self) -> str: ...
    @property
    def shapes(self) -> Mapping[str, ShapeRange] | str | Sequence[str]:
        """Shape ranges by tensor, the path of a file of collected ranges, or one path per length class."""
        ...

    @property
    def auto_collect(self) -> bool: ...
    @property
    def collect_lengths(self) -> Sequence[int]: ...
    @property
    def collect_batches(self) -> Sequence[int]: ...


class PredictorConf(Protocol):
    """Settings of a local model that predictors read: keys of `local_service_conf` in config.yml."""

    @property
    def device_type(self) -> int: ...
    @property
    def devices(self) -> str: ...
    @property
    def thread_num(self) -> int: ...
    @property
    def inter_op_thread_num(self) -> int: ...
    @property
    def inference_mode(self) -> bool: ...
    @property
    def lenient_feeds(self) -> bool: ...
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

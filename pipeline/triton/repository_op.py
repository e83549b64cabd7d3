"""RepositoryOp: the Op that runs one version of a model of a repository, in its worker."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.api.op import Op, OpRequest
from pipeline.api.served_models import ServedModel
from pipeline.engines.reshaped import Reshape, Reshapes
from pipeline.errors import ConfigError, ServingError, get_error_text
from pipeline.models.dtypes import BY_DATATYPE
from pipeline.triton.config_file import split_texts
from pipeline.triton.python_backend.other_models import OtherModels

FOLDER = "warmup"  # in the model's: the files that samples name
_Config = Mapping[str, Any]


class Sample(NamedTuple):
    """One sample: its name, the tensors of its request, and how many times that is run."""

    name: str
    feed: dict[str, Any]
    times: int


def find_sample_error(config: _Config, folder: Path) -> str:
    """Why the samples can't be run, as far as that shows without the model, in Triton's words; empty: they
    can."""
    for sample in config["model_warmup"]:
        needed = {one["name"] for one in config["input"] if not one["optional"]}
        if missing := sorted(needed - sample["inputs"].keys()):
            got, told = (",".join(f"'{name}'" for name in names) for names in (sample["inputs"], missing))
            return (
                f"Invalid argument: [request id: <id_unknown>] expected {len(needed)} inputs but got "
                f"{len(sample['inputs'])} inputs for model '{config['name']}'. Got input(s) [{got}], but "
                f"missing required input(s) [{told}]. Please provide all required input(s)."
            )
        for one in sample["inputs"].values():
            path = folder / FOLDER / one.get("input_data_file", "")
            if "input_data_file" in one and not path.is_file():
                return f"Internal: failed to open text file for read {path}: No such file or directory"
    return ""


def load_samples(config: _Config, folder: Path) -> Iterator[Sample]:
    """The samples with their tensors. Raises ConfigError for one that is not as the model declares it."""
    known = {one["name"]: one["data_type"] for one in config["input"]}
    for sample in config["model_warmup"]:
        if not sample["batch_size"]:
            continue
        feed = {}
        for name, one in sample["inputs"].items():
            about = f"model_warmup: input '{name}' of sample '{sample['name']}'"
            if one["data_type"] != known.get(name, ""):
                told = known.get(name, "no input of the model")
                raise ConfigError(f"{about} is {one['data_type']}; in the model it is {told}")
            rows = [sample["batch_size"]] if config["max_batch_size"] else []
            feed[name] = _tensor(one, [*rows, *one["dims"]], folder, about)
        yield Sample(sample["name"], feed, max(1, sample["count"]))


def _tensor(one: _Config, shape: list[int], folder: Path, about: str) -> Any:
    if any(length < 0 for length in shape):
        raise ConfigError(f"{about} has the dims {one['dims']}: a sample has lengths, none open")
    texts = one["data_type"] == "TYPE_STRING"
    if "input_data_file" in one:
        data = (folder / FOLDER / one["input_data_file"]).read_bytes()
        return _texts(data, shape, about) if texts else _numbers(data, one["data_type"], shape, about)
    if texts:
        return np.full(shape, b"", object)
    dtype = BY_DATATYPE[one["data_type"].removeprefix("TYPE_")].numpy
    if one.get("random_data"):
        size = math.prod(shape) * dtype.itemsize
        # Small numbers: ids beyond a vocabulary, and floats of all bits, are no warm-up.
        return np.random.default_rng(0).integers(0, 2, size // dtype.itemsize).astype(dtype).reshape(shape)
    return np.zeros(shape, dtype)


def _numbers(data: bytes, data_type: str, shape: list[int], about: str) -> Any:
    dtype = BY_DATATYPE[data_type.removeprefix("TYPE_")].numpy
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise ConfigError(f"{about}: {len(data)} bytes in its file do not fill {data_type} {shape}")
    return np.frombuffer(data, dtype).reshape(shape)


def _texts(data: bytes, shape: list[int], about: str) -> Any:
    try:
        elements = split_texts(data)
    except ValueError:
        elements = []
    if len(elements) != math.prod(shape):
        raise ConfigError(f"{about}: its file does not hold {math.prod(shape)} texts, each after its length")
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)


class RepositoryOp(Op):
    """Runs a Python model or an identity beside its requests; an engine's model by its predictor."""

    def __init__(
        self, name: str, model: ServedModel, others: OtherModels, *, install_requirements: bool = False
    ) -> None:
        """others: calls other models of the server for a Python model. install_requirements: see App."""
        super().__init__(name=name)
        self._install_requirements = install_requirements
        self._served = model
        self._others = others
        assert model.config is not None
        if model.config["backend"] not in ("python", "identity"):
            self.reshapes = _get_reshapes(model.config)

    def init_op(self) -> None:
        served = self._served
        assert served.config is not None
        backend = served.config["backend"]
        if backend == "identity":
            from pipeline.triton.repository_op import Identity

            self.request_runner = Identity(served.config)
        elif backend == "python":
            from pipeline.triton.python_backend.python_model import PythonModel

            folder, instance = Path(served.folder), self.concurrency_idx or 0
            self.request_runner = PythonModel(
                served.config,
                folder,
                served.version,
                instance,
                self._others,
                install_requirements=self._install_requirements,
            )
        self._warm_up(served.config, Path(served.folder))

    def _warm_up(self, config: Mapping[str, Any], folder: Path) -> None:
        """Run the samples of `model_warmup`. Raises ConfigError for one that fails."""
        for sample in load_samples(config, folder):
            for _ in range(sample.times):
                try:
                    self._run(sample.feed)
                except Exception as exc:
                    raise ConfigError(
                        f"model_warmup: sample '{sample.name}' fails: {get_error_text(exc)}"
                    ) from exc

    def _run(self, feed: dict[str, Any]) -> None:
        if self.request_runner is None:
            self.predictor.run(feed)
            return
        (answer,) = self.request_runner.run([OpRequest({}, 0, 0)], [feed])
        if isinstance(answer, ServingError):
            raise answer


def _get_reshapes(config: Mapping[str, Any]) -> Reshapes | None:
    """What `reshape` says of the tensors; None where it says nothing."""
    inputs, outputs = (
        {
            one["name"]: Reshape(tuple(one["dims"]), tuple(one["reshape"]["shape"]))
            for one in config[side]
            if "reshape" in one
        }
        for side in ("input", "output")
    )
    return Reshapes(inputs, outputs, config["max_batch_size"] > 0) if inputs or outputs else None


class Identity:
    """Gives requests back what they hold, under the names of the outputs."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        inputs, outputs = ([one["name"] for one in config[field]] for field in ("input", "output"))
        self._names = dict(zip(inputs, outputs, strict=False))

    def run(self, requests: Sequence[OpRequest], feeds: Sequence[Mapping[str, Any]]) -> list[Any]:
        """As RequestRunner's."""
        return [{self._names[name]: array for name, array in feed.items()} for feed in feeds]

    def own_metrics(self) -> None:
        """It counts nothing."""

    def close(self) -> None:
        pass

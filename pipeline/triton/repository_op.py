"""Worker side of one version of a repository's model: its Op (a step of the service), and `model_warmup`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.api.app import ServedModel
from pipeline.api.op import RESCHEDULED, AnswerSender, Op, OpRequest, RequestRunner
from pipeline.engines.reshaped import Reshape, Reshapes
from pipeline.errors import ConfigError, ServingError, get_error_text
from pipeline.models.sequence_tensors import END, START
from pipeline.models.tensor_spec import BY_DATATYPE
from pipeline.triton.config_file import (
    find_python_backend,
    get_identity_delays,
    get_runner,
    split_texts,
)
from pipeline.triton.python_backend.other_models import OtherModels
from pipeline.triton.ragged_batch import has_ragged_tensors
from pipeline.triton.sequence_batching import build_sequence_tensors

FOLDER = "warmup"  # subfolder of the model's folder with the data files of samples
_WARMUP_ID = 1  # correlation id of warm-up requests to a model of sequences
_Config = Mapping[str, Any]


class Sample(NamedTuple):
    """One warm-up request of `model_warmup` in config.pbtxt, with its tensors."""

    name: str
    feed: dict[str, Any]
    times: int  # number of runs


def find_sample_error(config: _Config, folder: Path) -> str:
    """Return Triton's error message for `model_warmup` samples with missing inputs or files, else "".

    The model need not be loaded. folder: the model's folder.
    """
    for sample in config["model_warmup"]:
        needed = {tensor["name"] for tensor in config["input"] if not tensor["optional"]}
        if missing := sorted(needed - sample["inputs"].keys()):
            sent, absent = (",".join(f"'{name}'" for name in names) for names in (sample["inputs"], missing))
            return (
                f"Invalid argument: [request id: <id_unknown>] expected {len(needed)} inputs but got "
                f"{len(sample['inputs'])} inputs for model '{config['name']}'. Got input(s) [{sent}], but "
                f"missing required input(s) [{absent}]. Please provide all required input(s)."
            )
        for tensor in sample["inputs"].values():
            path = folder / FOLDER / tensor.get("input_data_file", "")
            if "input_data_file" in tensor and not path.is_file():
                return f"Internal: failed to open text file for read {path}: No such file or directory"
    return ""


def load_samples(config: _Config, folder: Path) -> Iterator[Sample]:
    """Create the warm-up requests of `model_warmup` in config.pbtxt, one at a time, with their tensors.

    folder: the model's folder. Raises ConfigError for a tensor that differs from its declaration.
    """
    data_types = {tensor["name"]: tensor["data_type"] for tensor in config["input"]}
    for sample in config["model_warmup"]:
        if not sample["batch_size"]:
            continue
        feed = {}
        for name, tensor_config in sample["inputs"].items():
            about = f"model_warmup: input '{name}' of sample '{sample['name']}'"
            if tensor_config["data_type"] != data_types.get(name, ""):
                expected = data_types.get(name, "no input of the model")
                raise ConfigError(f"{about} is {tensor_config['data_type']}; in the model it is {expected}")
            rows = [sample["batch_size"]] if config["max_batch_size"] else []
            feed[name] = _create_tensor(tensor_config, [*rows, *tensor_config["dims"]], folder, about)
        yield Sample(sample["name"], feed, max(1, sample["count"]))


def _create_tensor(tensor_config: _Config, shape: list[int], folder: Path, about: str) -> Any:
    if any(length < 0 for length in shape):
        raise ConfigError(f"{about} has the dims {tensor_config['dims']}: a sample has lengths, none open")
    texts = tensor_config["data_type"] == "TYPE_STRING"
    if "input_data_file" in tensor_config:
        data = (folder / FOLDER / tensor_config["input_data_file"]).read_bytes()
        return (
            _parse_texts(data, shape, about)
            if texts
            else _parse_numbers(data, tensor_config["data_type"], shape, about)
        )
    if texts:
        return np.full(shape, b"", object)
    dtype = BY_DATATYPE[tensor_config["data_type"].removeprefix("TYPE_")].numpy
    if tensor_config.get("random_data"):
        size = math.prod(shape) * dtype.itemsize
        # Small numbers, because ids must be in the vocabulary and floats must be finite.
        return np.random.default_rng(0).integers(0, 2, size // dtype.itemsize).astype(dtype).reshape(shape)
    return np.zeros(shape, dtype)


def _parse_numbers(data: bytes, data_type: str, shape: list[int], about: str) -> Any:
    dtype = BY_DATATYPE[data_type.removeprefix("TYPE_")].numpy
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise ConfigError(f"{about}: {len(data)} bytes in its file do not fill {data_type} {shape}")
    return np.frombuffer(data, dtype).reshape(shape)


def _parse_texts(data: bytes, shape: list[int], about: str) -> Any:
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
    """The Op (a step of the service: queue and workers) that runs one version of a repository's model.

    Python and identity models run requests themselves; other models run in their engine.
    """

    def __init__(
        self,
        name: str,
        model: ServedModel,
        other_models: OtherModels,
        *,
        install_requirements: bool = False,
        backend_directory: Path | None = None,
    ) -> None:
        """Store the settings; workers load the model in `init_op`.

        other_models: the client for a Python model's calls. install_requirements: whether pip installs the
        requirements.txt of a Python model. backend_directory: folder of the backends that are written in
        Python.
        """
        super().__init__(name=name)
        self._install_requirements = install_requirements
        self._backend_directory = backend_directory
        self._served = model
        self._other_models = other_models
        assert model.config is not None
        self.sequence_tensors = build_sequence_tensors(model.config, Path(model.folder))
        if get_runner(model.config) not in ("python", "identity"):
            self.reshapes = _get_reshapes(model.config)

    def init_op(self) -> None:
        """Load a Python or identity model in the worker, and run the warm-up requests of any model."""
        served = self._served
        assert served.config is not None
        backend = get_runner(served.config)
        if backend == "identity":
            from pipeline.triton.repository_op import Identity

            self.request_runner = Identity(served.config, self.concurrency_idx or 0)
        elif backend == "python":
            from pipeline.triton.python_backend.python_model import PythonModel

            folder, instance = Path(served.folder), self.concurrency_idx or 0
            self.request_runner = PythonModel(
                served.config,
                folder,
                served.version,
                instance,
                self._other_models,
                self.sequence_tensors,
                install_requirements=self._install_requirements,
                program=find_python_backend(self._backend_directory, served.config["backend"], folder),
            )
            self.ragged_inputs = [
                tensor["name"] for tensor in served.config.get("input", ()) if tensor["allow_ragged_batch"]
            ]
        elif has_ragged_tensors(served.config):
            from pipeline.triton.ragged_batch import RaggedModel

            model = RaggedModel(served.config, self.predictor)
            self.request_runner, self.ragged_inputs = model, model.ragged_inputs
        self._warm_up(served.config, Path(served.folder))

    def _warm_up(self, config: Mapping[str, Any], folder: Path) -> None:
        """Run the warm-up requests of `model_warmup`. Raises ConfigError for a sample that fails."""
        for sample in load_samples(config, folder):
            for _ in range(sample.times):
                try:
                    self._run_sample(sample.feed)
                except Exception as exc:
                    raise ConfigError(
                        f"model_warmup: sample '{sample.name}' fails: {get_error_text(exc)}"
                    ) from exc

    def _run_sample(self, feed: dict[str, Any]) -> None:
        """Run a warm-up request. Run it again as long as a generative model reschedules it."""
        flags = START | END
        while self._run_request(feed, flags) is RESCHEDULED:
            flags = 0

    def _run_request(self, feed: dict[str, Any], flags: int) -> Any:
        request, tensors = OpRequest({}, 0, 0), self.sequence_tensors
        if tensors is not None:
            initial = {state.input: state.build_initial() for state in tensors.states}
            feed = {**feed, **initial, **tensors.build_controls(_WARMUP_ID, flags)}
            request = OpRequest({}, 0, 0, correlation_id=_WARMUP_ID, flags=flags)
        if self.request_runner is None:
            return self.predictor.run(feed)
        sender = _Discarding()
        (answer,) = self.request_runner.run([request], [feed], [sender])
        if isinstance(error := sender.error or answer, ServingError):
            raise error
        return answer


class EnsembleOp(Op):
    """The Op of an ensemble whose workers run all steps, with no return to the front process in between."""

    def __init__(self, name: str, steps: Mapping[str, Op]) -> None:
        """Store the Ops of the steps, by name. Workers load their models."""
        super().__init__(name=name)
        self.steps = steps


class _Discarding:
    """Receives a decoupled model's answers to a warm-up request, and keeps only the first error."""

    def __init__(self) -> None:
        self.sent = 0
        self.closed = False
        self.error: ServingError | None = None

    def send(self, output: Any, *, last: bool) -> None:
        self.sent += output is not None
        self.closed = self.closed or last
        if isinstance(output, ServingError):
            self.error = self.error or output

    def is_cancelled(self) -> bool:
        return False


def _get_reshapes(config: Mapping[str, Any]) -> Reshapes | None:
    """Return the `reshape` rules of inputs and outputs in a config.pbtxt; None if it has no `reshape`."""
    inputs, outputs = (
        {
            tensor["name"]: Reshape(tuple(tensor["dims"]), tuple(tensor["reshape"]["shape"]))
            for tensor in config[side]
            if "reshape" in tensor
        }
        for side in ("input", "output")
    )
    return Reshapes(inputs, outputs, config["max_batch_size"] > 0) if inputs or outputs else None


class Identity(RequestRunner):
    """Triton's identity backend: returns each input as the output at the same position in config.pbtxt.

    The parameters `creation_delay_sec` and `execute_delay_ms` lengthen the load and each batch.
    """

    def __init__(self, config: Mapping[str, Any], instance: int = 0) -> None:
        """Wait for the time in `creation_delay_sec`.

        instance: number of this worker, because delays may grow with the number.
        """
        inputs, outputs = ([tensor["name"] for tensor in config[field]] for field in ("input", "output"))
        self._names = dict(zip(inputs, outputs, strict=False))
        delays = get_identity_delays(config)
        factor = max(1, delays["instance_wise_delay_multiplier"] * instance)
        self._delay_s = delays["execute_delay_ms"] * factor / 1000
        time.sleep(delays["creation_delay_sec"])

    def run(
        self,
        requests: Sequence[OpRequest],
        feeds: Sequence[Mapping[str, Any]],
        senders: Sequence[AnswerSender],
    ) -> list[Any]:
        """Return the outputs of each request of a batch: its inputs, under the names of the outputs."""
        if self._delay_s:
            time.sleep(self._delay_s)
        return [{self._names[name]: array for name, array in feed.items()} for feed in feeds]

    def own_metrics(self) -> None:
        """Return None: the identity backend has no metrics."""

    def close(self) -> None:
        pass

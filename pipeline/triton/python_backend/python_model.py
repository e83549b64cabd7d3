"""A model of Triton's Python backend in its worker: `TritonPythonModel` of a model.py, and its requests."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from pipeline.api.op import OpRequest
from pipeline.errors import ConfigError, InvalidInput, ServingError, get_error_text
from pipeline.models.dtypes import BY_DATATYPE
from pipeline.process.app_modules import lead_import_path
from pipeline.process.run_module import PACKAGES
from pipeline.triton.devices import cards
from pipeline.triton.python_backend import utils
from pipeline.triton.python_backend.environment import NOT_INSTALLED, offer_packages
from pipeline.triton.python_backend.other_models import OtherModels
from pipeline.triton.python_backend.own_metrics import changed_families
from pipeline.triton.python_backend.utils import (
    InferenceRequest,
    InferenceResponse,
    Tensor,
    TritonError,
    TritonModelException,
)

MODULES = ("triton_python_backend_utils", "c_python_backend_utils")  # the names under which models import it
_STATUSES = {  # of a TritonError's code: HTTP's and gRPC's
    TritonError.UNKNOWN: (400, "UNKNOWN"),
    TritonError.INTERNAL: (500, "INTERNAL"),
    TritonError.NOT_FOUND: (404, "NOT_FOUND"),
    TritonError.INVALID_ARG: (400, "INVALID_ARGUMENT"),
    TritonError.UNAVAILABLE: (503, "UNAVAILABLE"),
    TritonError.UNSUPPORTED: (501, "UNIMPLEMENTED"),
    TritonError.ALREADY_EXISTS: (400, "ALREADY_EXISTS"),
    TritonError.CANCELLED: (400, "CANCELLED"),
}


class ModelRaised(ServingError):
    """The code of a Python model raised, or returned what it may not."""


class Fetch(dict[str, Any]):
    """The tensors of an answer. parameters: what the model says beside them, where this is the answer."""

    parameters: Mapping[str, Any]


class PythonModel:
    """Runs requests by `execute` of the model's class. The constructor calls `initialize`.

    Raises ConfigError for a model that can't be imported or initialized.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        folder: Path,
        version: str,
        instance: int,
        others: OtherModels,
        *,
        install_requirements: bool = False,
    ) -> None:
        self._config = config
        self._instance = instance_name(config, instance)
        self._card = select_gpu(config, instance)
        self._datatypes = {one["name"]: _datatype(one) for one in config["input"]}
        self._required = [one["name"] for one in config["input"] if not one["optional"]]
        self._outputs = [one["name"] for one in config["output"]]
        self._inner = {  # shapes that the model is given in place of those of its clients
            one["name"]: one["reshape"]["shape"] for one in config["input"] if "reshape" in one
        }
        self._declared = {output["name"]: _declared(output) for output in config["output"]}
        self._outer = {one["name"]: one["dims"] for one in config["output"] if "reshape" in one}
        self._by_rows = config["max_batch_size"] > 0
        self._path = folder / version / (config["default_model_filename"] or "model.py")
        utils.serve_model(str(self._path.parent), others)
        missing = offer_packages(config, folder, version, install_requirements)
        self._loop = asyncio.new_event_loop()  # of every call, where `execute` is a coroutine
        module = load_module(self._path, missing)
        kind = getattr(module, "TritonPythonModel", None)
        if kind is None:
            raise ConfigError(f"Internal: {self._path} has no attribute 'TritonPythonModel'")
        try:
            self._model = kind()
            if hasattr(self._model, "initialize"):
                self._model.initialize(self._arguments(folder, version))
        except BaseException as exc:
            raise ConfigError(failure(exc, self._path, missing)) from exc

    def _arguments(self, folder: Path, version: str) -> dict[str, str]:
        return {
            "model_config": json.dumps(self._config),
            "model_instance_kind": "GPU" if self._card is not None else "CPU",
            "model_instance_name": self._instance,
            "model_instance_device_id": str(self._card or 0),
            "model_repository": str(folder),
            "model_version": version,
            "model_name": self._config["name"],
        }

    def run(self, requests: Sequence[OpRequest], feeds: Sequence[Mapping[str, Any]]) -> list[Any]:
        """As RequestRunner's: the tensors of each answer, or its error. Raises ModelRaised."""
        made = [self._request(*one) for one in zip(requests, feeds, strict=True)]
        asked = [one for one in made if not isinstance(one, ServingError)]
        answers = iter(self._execute(asked) if asked else ())
        return [one if isinstance(one, ServingError) else self._fetch(next(answers), one) for one in made]

    def _request(self, request: OpRequest, feed: Mapping[str, Any]) -> InferenceRequest | ServingError:
        tensors = []
        for name, array in feed.items():
            datatype = self._datatypes.get(name)
            if datatype is None:
                return InvalidInput(f"unexpected inference input '{name}' for model '{self._config['name']}'")
            given = "BYTES" if array.dtype.kind in "OSU" else array.dtype
            if given != ("BYTES" if datatype == "BYTES" else BY_DATATYPE[datatype].numpy):
                return InvalidInput(
                    f"inference input '{name}' is {given}, but model '{self._config['name']}' expects "
                    f"'{datatype}'"
                )
            if name in self._inner:
                array = array.reshape((array.shape[:1] if self._by_rows else ()) + tuple(self._inner[name]))
            tensors.append(Tensor(name, array, datatype))
        return InferenceRequest(
            self._config["name"],
            request.outputs or self._outputs,
            tensors,
            request.id,
            request.correlation_id,
            flags=request.flags,
            timeout=request.timeout_us,
            priority=request.priority,
            parameters=request.parameters,
        )

    def _execute(self, requests: list[InferenceRequest]) -> list[InferenceResponse]:
        try:
            answers = self._model.execute(requests)
            if inspect.iscoroutine(answers):
                answers = self._loop.run_until_complete(answers)
        except TritonModelException as exc:
            raise ModelRaised(
                self._failed(get_error_text(exc) + format_model_lines(exc, self._path))
            ) from exc
        except BaseException as exc:  # it may raise SystemExit as well
            raise ModelRaised(
                self._failed(format_exception(exc) + format_model_lines(exc, self._path))
            ) from exc
        if not isinstance(answers, list):
            raise ModelRaised(
                self._failed(f"Expected a list in the execute return, found type '{type(answers).__name__}'.")
            )
        if len(answers) != len(requests):
            raise ModelRaised(
                self._failed(
                    "Number of InferenceResponse objects do not match the number of InferenceRequest "
                    f"objects. InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:"
                    f"{len(answers)}"
                )
            )
        return answers

    def _fetch(self, answer: Any, request: InferenceRequest) -> dict[str, Any] | ServingError:
        if not isinstance(answer, InferenceResponse):
            return ModelRaised(
                self._failed(
                    "Expected an 'InferenceResponse' object in the execute function return list, found type "
                    f"'{type(answer).__name__}'."
                )
            )
        error = answer.error()
        if error is not None:
            return as_serving_error(error)
        wanted = request.requested_output_names()
        outputs = [tensor for tensor in answer.output_tensors() if tensor.name() in wanted]
        for tensor in outputs:
            if (mismatch := self._mismatch(tensor)) is not None:
                return ModelRaised(self._failed(mismatch))
        tensors = {tensor.name(): self._output(tensor) for tensor in outputs}
        parameters = answer.given_parameters()
        if not parameters:  # a dict of arrays travels to the next step as such, what else it may be pickled
            return tensors
        fetch = Fetch(tensors)
        fetch.parameters = parameters
        return fetch

    def _mismatch(self, tensor: Tensor) -> str | None:
        """Return a sentence about an output whose datatype or shape is not the declared one, else None."""
        declared = self._declared.get(tensor.name())
        if declared is None:
            return None
        datatype, dims = declared
        array = tensor.as_numpy()
        is_texts = array.dtype.kind in "OSU"
        fits_type = is_texts if datatype == "BYTES" else array.dtype == BY_DATATYPE[datatype].numpy
        shape = array.shape[1:] if self._by_rows else array.shape
        fits_shape = (array.ndim > 0 or not self._by_rows) and len(shape) == len(dims)
        if fits_type and fits_shape and all(d in (-1, n) for d, n in zip(dims, shape, strict=True)):
            return None
        actual, rows = "BYTES" if is_texts else array.dtype, [-1] if self._by_rows else []
        return (
            f"output '{tensor.name()}' is {actual} {list(array.shape)}, but the configuration of model "
            f"'{self._config['name']}' declares {datatype} {[*rows, *dims]}; correct execute or config.pbtxt"
        )

    def _output(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        array = tensor.as_numpy()
        dims = self._outer.get(tensor.name())
        if dims is not None:
            array = array.reshape((array.shape[:1] if self._by_rows else ()) + tuple(dims))
        if array.dtype.kind in "OSU":
            return as_bytes(array)
        return array

    def _failed(self, why: str) -> str:
        return f"Failed to process the request(s) for model '{self._instance}', message: {why}"

    def own_metrics(self) -> list[Any] | None:
        """As RequestRunner's."""
        return changed_families()

    def close(self) -> None:
        """Have the model finalize what it has."""
        if hasattr(self._model, "finalize"):
            self._model.finalize()
        self._loop.close()


def load_module(path: Path, missing: Sequence[Path] = ()) -> ModuleType:
    """Import a model.py, which finds its neighbours and our utils. Raises ConfigError.

    missing: each requirements.txt that is not installed.

    No bytecode is written: Python would run it in place of a file that was changed in the same second and is
    as long, and a repository is nobody's to write into.
    """
    sys.dont_write_bytecode = True
    for name in MODULES:
        sys.modules[name] = utils
    lead_import_path(path.parent, path.parent.parent)
    if not path.is_file():
        raise ConfigError(f"Internal: {path} is missing: a model of the Python backend needs it")
    # Its version's folder is its package, as in Triton: `from .neighbour import ...` finds what is there.
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}.{path.stem}", path)
    assert spec is not None and spec.loader is not None  # of a file that ends on .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    if path.stem not in PACKAGES:
        sys.modules[path.stem] = module
    try:
        importlib.import_module(path.parent.name)
        spec.loader.exec_module(module)
    except BaseException as exc:
        raise ConfigError(failure(exc, path, missing)) from exc
    return module


def failure(exc: BaseException, path: Path, missing: Sequence[Path] = ()) -> str:
    """Describe what a model's code raised. missing: each requirements.txt that is not installed."""
    hint = f". {NOT_INSTALLED.format(missing[0])}" if missing and isinstance(exc, ImportError) else ""
    return f"Internal: {format_exception(exc)}{hint}{format_model_lines(exc, path)}"


def as_serving_error(error: TritonError) -> ServingError:
    """What a client is told of a model's own refusal."""
    made = ModelRaised(error.message())
    made.http_status, made.grpc_code = _STATUSES.get(error.code(), _STATUSES[TritonError.INTERNAL])
    return made


def as_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Texts as objects of bytes, which is what the next model finds."""
    made = np.empty(array.size, object)
    made[:] = [utils.encode_element(one) for one in array.ravel().tolist()]
    return made.reshape(array.shape)


def format_exception(exc: BaseException) -> str:
    """The type of an exception and its text."""
    return f"{type(exc).__name__}: {get_error_text(exc)}"


def format_model_lines(exc: BaseException, path: Path) -> str:
    """The lines of the model's own files that an exception passed, the innermost first, as in Triton."""
    frames = traceback.extract_tb(exc.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).parent == path.parent] or frames[-1:]
    lines = [f"  {frame.filename}({frame.lineno}): {frame.name}\n" for frame in reversed(own)]
    return "\n\nAt:\n" + "".join(lines)


def instance_name(config: Mapping[str, Any], instance: int) -> str:
    """What Triton calls an instance: its group and its number there."""
    for group in config["instance_group"]:
        if instance < group["count"]:
            return f"{group['name']}_{instance}"
        instance -= group["count"]
    return f"{config['name']}_{instance}"


def select_gpu(config: Mapping[str, Any], instance: int) -> int | None:
    """The GPU that an instance is meant for; None for the CPU, where there is none, too."""
    for group in config["instance_group"]:
        if instance < group["count"]:
            named = group["gpus"] or list(range(cards()))
            on_gpu = group["kind"] == "KIND_GPU" and cards()
            return int(named[instance % len(named)]) if on_gpu else None
        instance -= group["count"]
    return None


def _declared(output: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
    """Return the datatype and the dims of an output as the model returns it, -1 for any length."""
    dims = output["reshape"]["shape"] if "reshape" in output else output["dims"]
    return _datatype(output), tuple(int(length) for length in dims)


def _datatype(tensor: Mapping[str, Any]) -> str:
    name = str(tensor["data_type"]).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name

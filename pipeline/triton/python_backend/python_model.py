"""Runs the `TritonPythonModel` class of a model.py in a worker, as Triton's Python backend does."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from pipeline.api.op import RESCHEDULED, STREAMED, AnswerSender, OpRequest
from pipeline.api.run_resources import list_active_groups
from pipeline.errors import ConfigError, InvalidInput, ServingError, get_error_text
from pipeline.models.sequence_tensors import SequenceTensors
from pipeline.models.tensor_spec import BY_DATATYPE
from pipeline.process.app_modules import lead_import_path
from pipeline.process.lost_device import end_if_device_is_lost
from pipeline.process.run_module import PACKAGES
from pipeline.triton.config_file import count_gpus
from pipeline.triton.python_backend import utils
from pipeline.triton.python_backend.environment import NOT_INSTALLED, add_model_packages
from pipeline.triton.python_backend.other_models import OtherModels
from pipeline.triton.python_backend.utils import (
    InferenceRequest,
    InferenceResponse,
    InferenceTrace,
    Tensor,
    TritonError,
    TritonModelException,
    changed_families,
    metrics_changed,
)

log = logging.getLogger(__name__)

MODULES = ("triton_python_backend_utils", "c_python_backend_utils")  # models import `utils` by these names
_STATUSES = {  # HTTP and gRPC status by the code of a TritonError
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
    """A Python model raised an exception, or returned an error or invalid responses; status 500 by default.

    An error that the model returned sets the status by its TritonError code.
    """


class Fetch(dict[str, Any]):
    """Output arrays of a Python model's response, by name, with the response's parameters as an attribute.

    Clients get the parameters if they get this model's outputs.
    """

    parameters: Mapping[str, Any]


class PythonModel:
    """Loads a model.py, and runs batches of requests by `execute` of its `TritonPythonModel`.

    The constructor calls `initialize`. instance: the number of this worker among the model's instances.
    program: the model.py of the model's backend; None if the model has its own model.py. Raises ConfigError
    for a model that can't be imported or initialized.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        folder: Path,
        version: str,
        instance: int,
        other_models: OtherModels,
        sequence_tensors: SequenceTensors | None = None,
        *,
        install_requirements: bool = False,
        program: Path | None = None,
    ) -> None:
        self._config = config
        self._instance = get_instance_name(config, instance)
        self._gpu = select_gpu(config, instance)
        self._datatypes = {tensor["name"]: _get_datatype(tensor) for tensor in config["input"]}
        self._outputs = [tensor["name"] for tensor in config["output"]]
        hidden = sequence_tensors or SequenceTensors()
        self._datatypes |= hidden.datatypes
        self._hidden_outputs = list(hidden.outputs)  # the state, which is returned with each response
        self._model_shapes = {  # `reshape`: the model's shapes in place of the client's
            tensor["name"]: tensor["reshape"]["shape"] for tensor in config["input"] if "reshape" in tensor
        }
        self._declared = {output["name"]: _get_declaration(output) for output in config["output"]}
        self._client_shapes = {
            output["name"]: output["dims"] for output in config["output"] if "reshape" in output
        }
        self._batched = config["max_batch_size"] > 0
        self._path = program or folder / version / (config["default_model_filename"] or "model.py")
        utils.set_served_model(str(folder / version), other_models)
        missing = add_model_packages(config, folder, version, install_requirements)
        self._loop = asyncio.new_event_loop()  # for all calls of an `execute` that is a coroutine
        self._readiness_error = ""  # of the last call of `is_ready`
        self._decoupled = utils.using_decoupled_model_transaction_policy(config)
        self._is_iterative = bool(config.get("sequence_batching", {}).get("iterative_sequence"))
        self._loop_thread: threading.Thread | None = None  # of a decoupled model
        self._running: set[Any] = set()  # calls of a decoupled `execute` that is a coroutine
        module = load_module(self._path, missing)
        kind = getattr(module, "TritonPythonModel", None)
        if kind is None:
            raise ConfigError(f"Internal: {self._path} has no attribute 'TritonPythonModel'")
        try:
            self._model = kind()
            if hasattr(self._model, "initialize"):
                self._model.initialize(self._get_initialize_args(folder, version))
        except BaseException as exc:
            raise ConfigError(describe_failure(exc, self._path, missing)) from exc

    def _get_initialize_args(self, folder: Path, version: str) -> dict[str, str]:
        return {
            "model_config": json.dumps(self._config),
            "model_instance_kind": "GPU" if self._gpu is not None else "CPU",
            "model_instance_name": self._instance,
            "model_instance_device_id": str(self._gpu or 0),
            "model_repository": str(folder),
            "model_version": version,
            "model_name": self._config["name"],
        }

    def run(
        self,
        requests: Sequence[OpRequest],
        feeds: Sequence[Mapping[str, Any]],
        senders: Sequence[AnswerSender],
    ) -> list[Any]:
        """Run a batch of requests.

        Returns for each request its output arrays by name, a ServingError, STREAMED or RESCHEDULED. feeds:
        the input arrays of each request, by name. senders: response senders of the requests, for a model that
        uses them. Raises ModelRaised if the whole batch fails before a response is sent.
        """
        parsed = [self._build_request(*pair) for pair in zip(requests, feeds, strict=True)]
        valid = []
        for request, sender in zip(parsed, senders, strict=True):
            if isinstance(request, InferenceRequest):
                convert = partial(self._build_fetch, names=request.requested_output_names())
                request.serve(sender, convert, decoupled=self._decoupled, is_iterative=self._is_iterative)
                valid.append(request)
        answers: Iterator[Any]
        try:
            answers = iter(self._execute(valid) if valid else ())
        except ModelRaised as exc:
            for request in valid:
                request.disconnect()
            if not self._decoupled and not any(sender.sent for sender in senders):
                raise  # the caller looks for the request that fails
            answers = iter([exc] * len(valid))
        return [
            request if isinstance(request, ServingError) else self._get_result(next(answers), request, sender)
            for request, sender in zip(parsed, senders, strict=True)
        ]

    def _get_result(self, answer: Any, request: InferenceRequest, sender: AnswerSender) -> Any:
        """Return a request's output arrays, an error, STREAMED or RESCHEDULED.

        answer: the request's element in the list that `execute` has returned.
        """
        is_rescheduled = request.release() and not sender.closed
        if isinstance(answer, ModelRaised):
            sender.send(answer, last=True)  # no effect after the final response
            return STREAMED
        if is_rescheduled and answer is not None:
            return ModelRaised(
                self._format_failure(
                    "Expected a None object in the execute function return list for a rescheduled request, "
                    f"found type '{type(answer).__name__}'."
                )
            )
        if is_rescheduled:
            return RESCHEDULED
        if request.sender is not None and (answer is None or sender.closed):
            return STREAMED
        if answer is None and self._decoupled:
            return ModelRaised(
                self._format_failure("execute neither called get_response_sender nor raised an exception")
            )
        return self._build_fetch(answer, request.requested_output_names())

    def _build_request(self, request: OpRequest, feed: Mapping[str, Any]) -> InferenceRequest | ServingError:
        tensors = []
        for name, array in feed.items():
            datatype = self._datatypes.get(name)
            if datatype is None:
                return InvalidInput(f"unexpected inference input '{name}' for model '{self._config['name']}'")
            actual = "BYTES" if array.dtype.kind in "OSU" else array.dtype
            if actual != ("BYTES" if datatype == "BYTES" else BY_DATATYPE[datatype].numpy):
                return InvalidInput(
                    f"inference input '{name}' is {actual}, but model '{self._config['name']}' expects "
                    f"'{datatype}'"
                )
            if name in self._model_shapes:
                array = array.reshape(
                    (array.shape[:1] if self._batched else ()) + tuple(self._model_shapes[name])
                )
            tensors.append(Tensor(name, array, datatype))
        parsed = InferenceRequest(
            request.id,
            request.correlation_id,
            tensors,
            [*(request.outputs or self._outputs), *self._hidden_outputs],
            self._config["name"],
            flags=request.flags,
            timeout=request.timeout_us,
            priority=request.priority,
            trace=InferenceTrace(request.traceparent),
        )
        parsed.set_parameters(request.parameters)
        return parsed

    def _execute(self, requests: list[InferenceRequest]) -> list[InferenceResponse | None]:
        try:
            answers = self._model.execute(requests)
            if inspect.iscoroutine(answers):
                if self._decoupled:
                    self._run_in_background(answers, requests)
                    answers = None
                else:
                    answers = self._loop.run_until_complete(answers)
        except TritonModelException as exc:
            raise ModelRaised(
                self._format_failure(get_error_text(exc) + format_model_lines(exc, self._path))
            ) from exc
        except BaseException as exc:  # models may call sys.exit, too
            end_if_device_is_lost(exc)
            raise ModelRaised(
                self._format_failure(format_exception(exc) + format_model_lines(exc, self._path))
            ) from exc
        return self._check_answers(answers, requests)

    def _check_answers(
        self, answers: Any, requests: Sequence[InferenceRequest]
    ) -> list[InferenceResponse | None]:
        """Return the list that `execute` has returned, after checking its length.

        Raises ModelRaised if it is invalid.
        """
        if answers is None and (self._decoupled or any(request.needs_no_response for request in requests)):
            return [None] * len(requests)
        if self._decoupled:
            raise ModelRaised(
                self._format_failure(
                    f"Python model '{self._instance}' is using the decoupled mode and the execute function "
                    "must return None."
                )
            )
        if not isinstance(answers, list):
            raise ModelRaised(
                self._format_failure(
                    f"Expected a list in the execute return, found type '{type(answers).__name__}'."
                )
            )
        if len(answers) != len(requests):
            raise ModelRaised(
                self._format_failure(
                    "Number of InferenceResponse objects do not match the number of InferenceRequest "
                    f"objects. InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:"
                    f"{len(answers)}"
                )
            )
        return answers

    def _run_in_background(
        self, execution: Coroutine[Any, Any, Any], requests: Sequence[InferenceRequest]
    ) -> None:
        """Run the coroutine `execute` of a decoupled model while the instance executes further requests.

        All such coroutines share an event loop in a thread, as in Triton.
        """
        senders = [request.get_response_sender() for request in requests]

        async def run() -> None:
            try:
                await execution
            except BaseException as exc:
                why = format_exception(exc) + format_model_lines(exc, self._path)
                for sender in senders:
                    sender.fail(self._format_failure(why))

        if self._loop_thread is None:
            self._loop_thread = threading.Thread(target=self._loop.run_forever, name="execute", daemon=True)
            self._loop_thread.start()
        running = asyncio.run_coroutine_threadsafe(run(), self._loop)
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    def _build_fetch(self, answer: Any, names: Sequence[str]) -> dict[str, Any] | ServingError:
        if not isinstance(answer, InferenceResponse):
            return ModelRaised(
                self._format_failure(
                    "Expected an 'InferenceResponse' object in the execute function return list, found type "
                    f"'{type(answer).__name__}'."
                )
            )
        error = answer.error()
        if error is not None:
            return as_serving_error(error)
        outputs = [tensor for tensor in answer.output_tensors() if tensor.name() in names]
        for tensor in outputs:
            if (mismatch := self._describe_mismatch(tensor)) is not None:
                return ModelRaised(self._format_failure(mismatch))
        tensors = {tensor.name(): self._convert_output(tensor) for tensor in outputs}
        parameters = answer.get_parameters()
        if not parameters:  # a plain dict of arrays reaches the next step without pickling
            return tensors
        fetch = Fetch(tensors)
        fetch.parameters = parameters
        return fetch

    def _describe_mismatch(self, tensor: Tensor) -> str | None:
        """Return an error message for an output that does not match config.pbtxt, else None."""
        declared = self._declared.get(tensor.name())
        if declared is None:
            return None
        datatype, dims = declared
        array = tensor.as_numpy()
        is_texts = array.dtype.kind in "OSU"
        fits_type = is_texts if datatype == "BYTES" else array.dtype == BY_DATATYPE[datatype].numpy
        shape = array.shape[1:] if self._batched else array.shape
        fits_shape = (array.ndim > 0 or not self._batched) and len(shape) == len(dims)
        if fits_type and fits_shape and all(d in (-1, n) for d, n in zip(dims, shape, strict=True)):
            return None
        actual, rows = "BYTES" if is_texts else array.dtype, [-1] if self._batched else []
        return (
            f"output '{tensor.name()}' is {actual} {list(array.shape)}, but the configuration of model "
            f"'{self._config['name']}' declares {datatype} {[*rows, *dims]}; correct execute or config.pbtxt"
        )

    def _convert_output(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        array = tensor.as_numpy()
        dims = self._client_shapes.get(tensor.name())
        if dims is not None:
            array = array.reshape((array.shape[:1] if self._batched else ()) + tuple(dims))
        if array.dtype.kind in "OSU":
            return encode_texts(array)
        return array

    def _format_failure(self, why: str) -> str:
        return f"Failed to process the request(s) for model '{self._instance}', message: {why}"

    def own_metrics(self) -> list[Any] | None:
        """Return all custom metrics of the model if one has changed since the last call, else None."""
        return changed_families()

    @property
    def metrics_changed(self) -> threading.Event | None:
        """Event that is set when a metric has changed since the last report of `own_metrics`."""
        return metrics_changed

    @property
    def readiness_check(self) -> Callable[[], bool] | None:
        """A function that calls the model's `is_ready`; None for a model without `is_ready`."""
        return self._check_readiness if hasattr(self._model, "is_ready") else None

    def _check_readiness(self) -> bool:
        """Call the model's `is_ready`, and return its result.

        An exception and a result that is no bool count as False, and are logged.
        """
        try:
            result = self._model.is_ready()
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
        except BaseException as exc:  # models may call sys.exit, too
            error = f"is_ready raised {format_exception(exc)}"
        else:
            error = ""
            if not isinstance(result, bool):
                error = f"is_ready returned a '{type(result).__name__}', and must return a bool"
        if error and error != self._readiness_error:
            log.warning("Model %s is not ready: %s", self._config["name"], error)
        self._readiness_error = error
        return not error and bool(result)

    def close(self) -> None:
        """Call the model's `finalize`, when the worker ends."""
        if hasattr(self._model, "finalize"):
            self._model.finalize()
        if self._loop_thread is None:
            self._loop.close()


def load_module(path: Path, missing: Sequence[Path] = ()) -> ModuleType:
    """Import a model.py. Its folder and our `triton_python_backend_utils` become importable.

    missing: each requirements.txt that is not installed, named in the error message. Raises ConfigError if
    the import fails.

    Bytecode is disabled, because the server must not write into the repository. Python would also run stale
    bytecode after a change of equal size within the same second.
    """
    sys.dont_write_bytecode = True
    sys.argv = [""]  # as in Triton, whose interpreter is embedded: libraries may parse the arguments
    for name in MODULES:
        sys.modules[name] = utils
    lead_import_path(path.parent, path.parent.parent)
    if not path.is_file():
        raise ConfigError(f"Internal: {path} is missing: a model of the Python backend needs it")
    # As in Triton, the version's folder is the model's package, so `from .neighbour import ...` works.
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}.{path.stem}", path)
    assert spec is not None and spec.loader is not None  # the suffix is .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    if path.stem not in PACKAGES:
        sys.modules[path.stem] = module
    try:
        importlib.import_module(path.parent.name)
        spec.loader.exec_module(module)
    except BaseException as exc:
        raise ConfigError(describe_failure(exc, path, missing)) from exc
    return module


def describe_failure(exc: BaseException, path: Path, missing: Sequence[Path] = ()) -> str:
    """Format an exception of a model's code, with its traceback in the model's folder, as an error message.

    path: the model.py. missing: each requirements.txt that is not installed; the message of a failed import
    mentions the first of them.
    """
    hint = f". {NOT_INSTALLED.format(missing[0])}" if missing and isinstance(exc, ImportError) else ""
    return f"Internal: {format_exception(exc)}{hint}{format_model_lines(exc, path)}"


def as_serving_error(error: TritonError) -> ServingError:
    """Convert a TritonError that a model returned to an exception with the HTTP and gRPC status for it."""
    raised = ModelRaised(error.message())
    raised.http_status, raised.grpc_code = _STATUSES.get(error.code(), _STATUSES[TritonError.INTERNAL])
    return raised


def encode_texts(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Convert an array of texts to an object array of UTF-8 bytes, as the next model expects."""
    elements = np.empty(array.size, object)
    elements[:] = [utils.encode_element(element) for element in array.ravel().tolist()]
    return elements.reshape(array.shape)


def format_exception(exc: BaseException) -> str:
    """Return the class name and the message of an exception, as "ValueError: ..."."""
    return f"{type(exc).__name__}: {get_error_text(exc)}"


def format_model_lines(exc: BaseException, path: Path) -> str:
    """Format an exception's traceback as Triton does, innermost line first, with lines of the model only.

    path: the model.py.
    """
    frames = traceback.extract_tb(exc.__traceback__)
    model_frames = [frame for frame in frames if Path(frame.filename).parent == path.parent] or frames[-1:]
    lines = [f"  {frame.filename}({frame.lineno}): {frame.name}\n" for frame in reversed(model_frames)]
    return "\n\nAt:\n" + "".join(lines)


def get_instance_name(config: Mapping[str, Any], instance: int) -> str:
    """Return Triton's name of a model instance, such as "bert_0_1".

    It is the name of the instance group, and the number in the group. instance: the number among all
    instances of the model.
    """
    for group in list_active_groups(config):
        if instance < group["count"]:
            return f"{group['name']}_{instance}"
        instance -= group["count"]
    return f"{config['name']}_{instance}"


def select_gpu(config: Mapping[str, Any], instance: int) -> int | None:
    """Return the GPU number of a model instance; None for a CPU instance, and without a GPU.

    instance: the number among all instances of the model.
    """
    for group in list_active_groups(config):
        if instance < group["count"]:
            named = group["gpus"] or list(range(count_gpus()))
            on_gpu = group["kind"] == "KIND_GPU" and count_gpus()
            return int(named[instance % len(named)]) if on_gpu else None
        instance -= group["count"]
    return None


def _get_declaration(output: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
    """Return (datatype, dims) of an output in config.pbtxt as the model returns it, before `reshape`."""
    dims = output["reshape"]["shape"] if "reshape" in output else output["dims"]
    return _get_datatype(output), tuple(int(length) for length in dims)


def _get_datatype(tensor: Mapping[str, Any]) -> str:
    name = str(tensor["data_type"]).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name

"""Runs TorchScript models and programs of torch.export with PyTorch."""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.engines.base import PredictorConf
from pipeline.engines.device import warn_of_paddle_keys
from pipeline.engines.dynamic_shape import DynamicShapes
from pipeline.engines.feeds import Array, as_texts, check_feeds, check_forms, shares_runs
from pipeline.engines.fetches import measure_fetches, select_fetches
from pipeline.engines.refusals import build_run_error
from pipeline.engines.torch.archive import (
    TORCHSCRIPT,
    detect_format,
    find_operators,
    names_cuda,
    read_signature_in,
)
from pipeline.engines.torch.binding import (
    TENSOR,
    TEXTS,
    Argument,
    InputBinding,
    bind_inputs,
    select_outputs,
)
from pipeline.engines.torch.torch_device import TorchDevice, disable_fusion, move_constants, set_threads
from pipeline.errors import ConfigError, ModelFailed, UnusableFeed
from pipeline.models.serving_model import ServingModel
from pipeline.models.signature import Variable

log = logging.getLogger(__name__)

MAX_ERROR_CHARS = 400
# Operators whose number of output rows depends on the data.
FINDERS = ("nonzero", "nonzero_numpy", "masked_select", "unique", "_unique2", "unique_dim", "nms")

_TYPES = {"Tensor": TENSOR, "Optional[Tensor]": TENSOR}
_OUT_OF_RANGE = re.compile(r"index (\d+ )?(is )?out of (range|bounds)")
_NO_OPERATOR = re.compile(r"Unknown builtin op: ([\w:]+)")
_IN_PLACE = re.compile(r"aten::[a-z]\w*[a-z0-9]_")

Runner = Callable[[Mapping[str, Any]], Any]


class TorchPredictor:
    """A model in PyTorch. Threads share the model and its weights. Inference releases the GIL."""

    def __init__(
        self,
        model: ServingModel,
        conf: PredictorConf,
        *,
        instance_index: int = 0,
        dynamic_shapes: DynamicShapes | None = None,
        fetch_list: Sequence[str] = (),
    ) -> None:
        warn_of_paddle_keys(conf, "on a PyTorch model")
        _check_precision(model, conf)
        self._device = TorchDevice(conf, instance_index)
        set_threads(conf)
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        self.feeds = model.feeds
        self._texts = [feed.alias for feed in model.feeds if feed.dtype == "string"]
        self._bfloats = {v.alias for v in (*model.feeds, *model.fetches) if v.dtype == "bfloat16"}
        self._where = str(model.program)
        self._names = [fetch.name for fetch in model.fetches]
        self._inference_mode = conf.inference_mode
        loaded = load_program(model, self._device, optimized=conf.ir_optim)
        self._run: Runner | None = loaded.run
        self._copies = loaded.writes
        self._stored = loaded.stored
        self.fetches = select_fetches(model.fetches, fetch_list or conf.fetch_list)
        self.fetches = measure_fetches(model.program, self, self.fetches, self.fetches, self.run)
        self.merges = shares_runs(model.program, loaded.finder, (*self.feeds, *self.fetches))

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run inference on input arrays by alias. Returns output arrays by alias.

        Raises InvalidInput and ModelFailed.
        """
        run = self._run
        if run is None:
            raise ModelFailed("the predictor is closed")
        checked = check_feeds(self.feeds, feeds)
        for alias in self._texts:
            checked[alias] = as_texts(alias, checked[alias])
        try:
            with torch.inference_mode() if self._inference_mode else torch.no_grad(), self._device.running():
                values = {feed.name: self._to_value(feed, checked[feed.alias]) for feed in self.feeds}
                outputs = select_outputs(run(values), self._names, self._where)
                by_name = dict(zip(self._names, outputs, strict=True))
                selected = [by_name[fetch.name] for fetch in self.fetches]
                return self._to_arrays(selected, values)
        except ConfigError as exc:
            raise ModelFailed(exc.message) from exc
        except ModelFailed:
            raise
        except Exception as exc:
            raise self._build_error(exc, checked) from exc

    def _to_value(self, feed: Variable, array: Array) -> Any:
        """Convert an input array to a tensor on the device, or texts to a list of str."""
        if feed.dtype == "string":
            return array.ravel().tolist()
        if self._copies:
            array = array.copy()  # the graph writes to tensors, and the array belongs to the request
        if feed.dtype == "bfloat16":
            return self._device.move_in(torch.from_numpy(array.view(np.int16)).view(torch.bfloat16))
        return self._device.move_in(torch.from_numpy(array))

    def _to_arrays(self, outputs: Sequence[Any], inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Convert outputs to arrays that own their memory, by alias.

        Raises ModelFailed for unsupported types.
        """
        tensors = [
            self._check_output(fetch, output) for fetch, output in zip(self.fetches, outputs, strict=True)
        ]
        moved = iter(self._device.move_out([tensor for tensor in tensors if torch.is_tensor(tensor)]))
        borrowed = self._stored | {_address(value) for value in inputs.values() if torch.is_tensor(value)}
        arrays = {}
        for fetch, tensor in zip(self.fetches, tensors, strict=True):
            if not torch.is_tensor(tensor):
                texts = np.array(tensor, object)
                arrays[fetch.alias] = texts.reshape(-1, *[1] * (len(fetch.shape) - 1))
                continue
            host = next(moved)
            host = host.clone() if _address(host) in borrowed else host
            if fetch.dtype == "bfloat16":
                arrays[fetch.alias] = host.view(torch.int16).numpy().view(np.uint16)
            else:
                arrays[fetch.alias] = host.numpy()
        return arrays

    def _check_output(self, fetch: Variable, output: Any) -> Any:
        """Return an output as a dense tensor of its declared type, or as a list of texts."""
        if isinstance(output, list) and fetch.dtype == "string" and all(isinstance(t, str) for t in output):
            return output
        if not torch.is_tensor(output) or fetch.dtype == "string":
            raise ModelFailed(
                f"output {fetch.alias!r} of {self._where} is a {type(output).__name__}, and declared "
                f"{fetch.dtype}: a tensor or, for a string, List[str] can be served"
            )
        declared = getattr(torch, fetch.dtype)
        lowered = self._device.autocast is not None or output.dtype is torch.bfloat16
        if output.dtype is not declared and not (lowered and output.is_floating_point()):
            raise ModelFailed(
                f"output {fetch.alias!r} of {self._where} is {str(output.dtype).removeprefix('torch.')}, and "
                f"declared {fetch.dtype}: correct its type in the model's description"
            )
        return output.to_dense().to(declared).contiguous()

    def _build_error(self, exc: Exception, checked: Mapping[str, Array]) -> Exception:
        reason = _get_reason(exc)
        numbers = [feed for feed in self.feeds if checked[feed.alias].dtype.kind in "iu"]
        if _OUT_OF_RANGE.search(reason) and numbers:
            greatest = max(numbers, key=lambda feed: int(checked[feed.alias].max()))
            ends = checked[greatest.alias].min(), checked[greatest.alias].max()
            return UnusableFeed(
                f"feed {greatest.alias!r} holds {ends[0]} to {ends[1]}, beyond a lookup table of the model: "
                f"{reason}"
            )
        return build_run_error("PyTorch", self.feeds, checked, reason)

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Raise InvalidInput for inputs whose names, types, shapes or dtypes do not fit the model."""
        check_forms(self.feeds, feeds)

    def close(self) -> None:
        """Free the model as soon as no inference is in progress."""
        self._run = None


class LoadedProgram:
    """A loaded PyTorch model: its module, the function that runs it, and facts about its graph."""

    def __init__(self, module: Any, run: Runner, tensors: Sequence[Any], operators: Sequence[str]) -> None:
        """run: calls the module. tensors: weights and other stored tensors.

        operators: kinds of the graph's nodes.
        """
        self.module = module
        self.run = run
        self.stored = {_address(tensor) for tensor in tensors}
        names = {kind.rpartition("::")[2] for kind in operators}
        self.finder = next((name for name in FINDERS if name in names), None)
        self.writes = any(_IN_PLACE.fullmatch(kind) for kind in operators)  # to its inputs, perhaps


def load_program(model: ServingModel, device: TorchDevice, *, optimized: bool) -> LoadedProgram:
    """Load a model file on a device. `optimized` tells whether TorchScript optimises the graph.

    Raises ConfigError for a file that can't be loaded, and for inputs that do not fit `forward`.
    """
    if detect_format(model.program) == TORCHSCRIPT:
        return _load_torchscript(model, device, optimized=optimized)
    return _load_exported(model, device)


def _load_torchscript(model: ServingModel, device: TorchDevice, *, optimized: bool) -> LoadedProgram:
    program = model.program
    if device.is_cuda:
        disable_fusion()
    module = load_module(program, device)
    if (device.is_cuda or names_cuda(program)) and (count := move_constants(module, device.device)):
        log.info(
            "%s names a GPU in %d places of its graph: %s takes their place", program, count, device.name
        )
    arguments = get_arguments(module)
    binding = bind_inputs([feed.name for feed in model.feeds], arguments, str(program))
    _check_texts(model, binding, arguments)
    names = [argument.name for argument in arguments]

    def run(values: Mapping[str, Any]) -> Any:
        positional, later = binding.build_arguments(values)
        with torch.jit.optimized_execution(optimized):
            return module(*positional, **{names[at]: value for at, value in later.items()})

    graph = module.inlined_graph
    kinds = [node.kind() for node in _list_nodes(graph)]
    return LoadedProgram(module, run, [*module.parameters(), *module.buffers()], kinds)


def load_module(program: Path, device: TorchDevice) -> Any:
    """Load a TorchScript file on a device, in evaluation mode. Raises ConfigError."""
    _import_operators(program)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit in favour of torch.export
            module = torch.jit.load(str(program), map_location=device.device)
        module.eval()
    except Exception as exc:
        raise ConfigError(_describe_load_error(program, exc)) from exc
    if not hasattr(module, "forward"):
        raise ConfigError(f"{program} has no method forward: trace or script a module that has one")
    return module


def get_arguments(module: Any) -> list[Argument]:
    """Return the arguments of a TorchScript module's `forward`."""
    return [
        Argument(argument.name, _get_kind(argument), not argument.has_default_value())
        for argument in module.forward.schema.arguments[1:]  # the first is self
    ]


def _get_kind(argument: Any) -> str:
    name = str(argument.type)
    return _TYPES.get(name, name)


def _list_nodes(block: Any) -> list[Any]:
    nodes = []
    for node in block.nodes():
        nodes.append(node)
        for inner in node.blocks():
            nodes += _list_nodes(inner)
    return nodes


def _load_exported(model: ServingModel, device: TorchDevice) -> LoadedProgram:
    program = model.program
    feeds, _ = read_signature_in(program)  # refuses what PyTorch would unpickle or evaluate
    _check_sample_inputs(program)
    try:
        exported = torch.export.load(str(program))
        if device.is_cuda:
            from torch.export.passes import move_to_device_pass

            exported = move_to_device_pass(exported, device.name)
        # Guards are Python code of the file, which would be executed.
        module = exported.module(check_guards=False)
        in_spec = exported.call_spec.in_spec
    except Exception as exc:
        raise ConfigError(_describe_load_error(program, exc)) from exc
    arguments = [Argument(feed.name, TENSOR) for feed in feeds]
    binding = bind_inputs([feed.name for feed in model.feeds], arguments, str(program))

    def run(values: Mapping[str, Any]) -> Any:
        positional, _ = binding.build_arguments(values)
        args, kwargs = torch.utils._pytree.tree_unflatten(positional, in_spec)
        result = module(*args, **kwargs)
        return result if isinstance(result, Mapping) else torch.utils._pytree.tree_leaves(result)

    kinds = [str(node.target).removeprefix("torch.ops.").partition(".")[2] for node in exported.graph.nodes]
    names = [f"aten::{kind.partition('.')[0]}" for kind in kinds]
    tensors = [*exported.state_dict.values(), *exported.constants.values()]
    stored = [tensor for tensor in tensors if torch.is_tensor(tensor)]
    return LoadedProgram(module, run, stored, names)


def _check_sample_inputs(program: Path) -> None:
    """Raise ConfigError if the example inputs in an exported program are not plain tensors.

    torch.export.load would otherwise unpickle them.
    """
    reader = torch._C.PyTorchFileReader(str(program))
    for name in reader.get_all_records():
        if name.startswith("data/sample_inputs/") and name.endswith(".pt"):
            content = reader.get_record(name)
            if not content:
                continue
            import io

            try:
                torch.load(io.BytesIO(content), weights_only=True)
            except Exception as exc:
                raise ConfigError(
                    f"{program} holds a pickle of other objects than tensors ({name}), which is never read: "
                    "export the model with tensors as example inputs"
                ) from exc


def _import_operators(program: Path) -> None:
    """Import the installed libraries whose operators a TorchScript file uses."""
    for space in {name.partition("::")[0] for name in find_operators(program)}:
        if space == "torchvision":
            with contextlib.suppress(ImportError):
                import torchvision  # noqa: F401  # registers its operators


def _check_texts(model: ServingModel, binding: InputBinding, arguments: Sequence[Argument]) -> None:
    kinds = {name: arguments[at].kind for at, name in enumerate(binding.names) if at < len(arguments)}
    for feed in model.feeds:
        if binding.gathered or (feed.dtype == "string") == (kinds[feed.name] == TEXTS):
            continue
        raise ConfigError(
            f"{model.program}: input {feed.alias!r} is declared {feed.dtype}, and its argument is a "
            f"{kinds[feed.name]}: declare a string (TYPE_STRING) for {TEXTS} alone"
        )


def _check_precision(model: ServingModel, conf: PredictorConf) -> None:
    if conf.precision in ("fp32", "bf16", "fp16") and not conf.use_calib:
        return
    setting = "use_calib: true" if conf.use_calib else f"precision {conf.precision}"
    reason = f"{setting} is not for PyTorch models: quantize the model before it is saved, and remove it"
    if conf.strict_precision:
        raise ConfigError(f"{reason}; local_service_conf.strict_precision is set")
    log.warning("%s; %s runs as it is", reason, model.program)


def _describe_load_error(program: Path, exc: Exception) -> str:
    """Return a message that explains why a model file can't be loaded, with a hint if one is known."""
    title, text = f"PyTorch {torch.__version__}", " ".join(str(exc).split())
    if match := _NO_OPERATOR.search(text):
        library = match[1].partition("::")[0]
        hint = f"pip install {library}" if library == "torchvision" else f"install the library of {library}"
        return (
            f"{program} needs the operator {match[1]}, which {title} lacks: {hint}, or export the model "
            "without it"
        )
    return f"{program} can't be loaded by {title}: {_get_reason(exc)}"


def _get_reason(exc: Exception) -> str:
    """Return the message of a PyTorch exception, without TorchScript's source lines."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"\w*(Error|Exception): ", line)]
    text = (errors[-1] if errors else lines[0] if lines else "") or type(exc).__name__
    return text.removeprefix("RuntimeError: ")[:MAX_ERROR_CHARS].strip()


def _address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())

"""Loads a TorchScript file or a program of torch.export as a module. In the conversion environment only."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from convert.programs.engines import first_line
from convert.programs.program_feeds import EXAMPLE, OTHER_INPUTS, Array, ProgramTensor
from pipeline.config.config_file import LocalServiceConf
from pipeline.engines.torch.binding import select_outputs
from pipeline.engines.torch.torch_device import TorchDevice
from pipeline.engines.torch.torch_predictor import get_arguments, load_module, load_program
from pipeline.errors import ConversionError
from pipeline.models.serving_model import ServingModel
from pipeline.models.signature import Variable, sized

_MOVES = ("_to_copy", "clone", "view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "expand", "slice")


class FileModel(torch.nn.Module):  # type: ignore[misc]
    """Wraps a loaded model file to take and return tensors by position, as exporters require.

    The file is loaded as the PyTorch engine loads it: if its graph names a GPU, the CPU is used instead.
    """

    def __init__(self, file: Path, feeds: Sequence[Variable], outputs: Sequence[str]) -> None:
        """outputs: names of the outputs; if empty, all outputs that the file returns."""
        super().__init__()
        model = ServingModel(file.parent, file, None, tuple(feeds), ())
        device = TorchDevice(LocalServiceConf(), 0)
        if not feeds:
            names = ", ".join(argument.name for argument in get_arguments(load_module(file, device)))
            raise ConversionError(
                f"{file} is TorchScript, which declares no dtypes and shapes; give --input-spec for the "
                f"inputs of forward({names}), such as '{EXAMPLE}'."
            )
        if texts := next((feed.name for feed in feeds if feed.dtype == "string"), ""):
            raise ConversionError(f"{file}: input {texts!r} is texts, and tensors alone can be compared.")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = load_program(model, device, optimized=False)
        self.model = loaded.module  # exporters ask for its weights
        self.file = file
        self.names = [feed.name for feed in feeds]
        self.output_names = tuple(outputs)
        self._run = loaded.run

    def forward(self, *tensors: Any) -> tuple[Any, ...]:
        return tuple(self.named(*tensors).values())

    def named(self, *tensors: Any) -> dict[str, Any]:
        """Run the model on tensors in the order of its inputs; return the output tensors by name."""
        result = self._run(dict(zip(self.names, tensors, strict=True)))
        if self.output_names:
            selected = select_outputs(result, self.output_names, str(self.file))
            return dict(zip(self.output_names, selected, strict=True))
        if isinstance(result, Mapping):
            return {name: value for name, value in result.items() if isinstance(value, torch.Tensor)}
        values = list(result) if isinstance(result, tuple | list) else [result]
        if not all(isinstance(value, torch.Tensor) for value in values):
            kinds = ", ".join(type(value).__name__ for value in values)
            raise ConversionError(f"{self.file} returns {kinds}, and tensors alone can be compared.")
        return {f"output__{number}": value for number, value in enumerate(values)}


_CHECKS = ("_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range", "sym_constrain_range_for_size")
# The tracer follows sizes through the methods of tensors alone.
_METHODS = {
    "sym_size": "size", "view": "view", "_unsafe_view": "reshape", "reshape": "reshape", "expand": "expand",
    "repeat": "repeat",
}  # fmt: skip


def trace(model: FileModel, inputs: Sequence[Any]) -> Any:
    """Return the model as one traced module, as exporters require.

    The graph of a torch.export program is rewritten first, without changing its outputs: the tracer does not
    support checks and symbolic sizes.
    """
    if isinstance(model.model, torch.fx.GraphModule):
        graph = model.model.graph
        for node in reversed(list(graph.nodes)):
            operator = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
            if operator in _CHECKS:
                graph.erase_node(node)
            elif operator in _METHODS:
                node.target = getattr(torch.Tensor, _METHODS[operator])
        graph.eliminate_dead_code()
        model.model.recompile()
        model.model._forward_pre_hooks.clear()  # they compare sizes
    return trace_module(model, inputs)


def trace_module(module: Any, inputs: Sequence[Any]) -> Any:
    """Trace a module on inputs by position, without the tracer's own check.

    The later comparison of outputs runs more shapes.
    """
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.jit.trace(module, tuple(inputs), strict=False, check_trace=False)


def find_id_limits(model: FileModel, inputs: Sequence[Any]) -> dict[str, int]:
    """Run the model once, and return the number of rows in the embedding table of each input of ids."""
    names = dict(zip(map(_address, inputs), model.names, strict=True))
    with _EmbeddingLimits(names, inputs) as mode, torch.no_grad():
        model(*inputs)
    limits: dict[str, int] = mode.limits
    return limits


class _EmbeddingLimits(TorchDispatchMode):  # type: ignore[misc]
    """Records the number of rows of each embedding table that looks up an input of the model."""

    def __init__(self, names: Mapping[int, str], inputs: Sequence[Any]) -> None:
        super().__init__()
        self.limits: dict[str, int] = {}
        self._names = dict(names)  # by the address of the tensor
        self._kept = list(inputs)  # else another tensor would get the address

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        operator = func.overloadpacket.__name__
        if operator == "embedding" and (name := self._names.get(_address(args[1]))):
            rows = int(args[0].shape[0])
            self.limits[name] = min(rows, self.limits.get(name, rows))
        elif operator in _MOVES and (name := self._names.get(_address(args[0]))):
            self._names[_address(result)] = name
            self._kept.append(result)
        return result


def _address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def describe_outputs(
    names: Sequence[str], outputs: Sequence[Any], axes: Mapping[str, Mapping[int, str]]
) -> list[Variable]:
    """Return the description of output tensors. axes: the dynamic axes of each output, by its name."""
    described = []
    for name, output in zip(names, outputs, strict=True):
        dims = tuple(-1 if axis in axes[name] else size for axis, size in enumerate(output.shape))
        described.append(Variable(name, name, str(output.dtype).removeprefix("torch."), dims))
    return described


def run_once(model: FileModel, feeds: Sequence[Variable], inputs: Sequence[Any]) -> dict[str, Any]:
    """Run the model on inputs by position, and return its outputs by name. Raises ConversionError."""
    try:
        with torch.no_grad():
            return model.named(*inputs)
    except ConversionError:
        raise
    except Exception as exc:
        text = ";".join(f"{v.name}:{v.dtype}[{','.join(map(str, v.shape))}]" for v in feeds)
        raise ConversionError(
            f"{model.file} can't run {text!r} ({first_line(exc)}); give it inputs that suit it with "
            "--sample, or correct --input-spec."
        ) from exc


def torch_runner(loaded: Any, feeds: Sequence[ProgramTensor]) -> Callable[[Mapping[str, Array]], list[Array]]:
    """Return a function that runs a PyTorch or TorchScript module on arrays by input name.

    The function returns the outputs in order, and raises ConversionError if the module can't run the arrays.
    """

    def run(arrays: Mapping[str, Array]) -> list[Array]:
        tensors = [torch.from_numpy(arrays[feed.name].copy()) for feed in feeds]
        try:
            with torch.no_grad():
                outputs = loaded(*tensors)
        except Exception as exc:
            shapes = ", ".join(f"{feed.name} {list(arrays[feed.name].shape)}" for feed in feeds)
            raise ConversionError(
                f"the PyTorch model can't run {shapes} ({first_line(exc)}); {OTHER_INPUTS}."
            ) from exc
        return [
            output.float().numpy() if output.is_floating_point() else output.numpy() for output in outputs
        ]

    return run


def example_inputs(feeds: Sequence[ProgramTensor], batch: int, length: int) -> tuple[Any, ...]:
    """Return input tensors by position.

    Integers are zeros, which are valid ids in any embedding. Floats are ones.
    """
    tensors = []
    for feed in feeds:
        shape, dtype = sized(feed.shape, batch, length), getattr(torch, feed.dtype)
        tensors.append(
            torch.ones(shape, dtype=dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)
        )
    return tuple(tensors)

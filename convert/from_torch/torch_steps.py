"""Converts PyTorch models to Paddle, ONNX and TorchScript, in a process with the converters' packages."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from convert.from_paddle.export import Recipe, export_as, layer_parity
from convert.from_torch.torch_model import (
    TorchModel,
    load_torch_model,
    model_fingerprint,
    model_notes,
    torch_target,
)
from convert.from_torch.torch_source import has_twin
from convert.programs.engines import first_line, import_paddle
from convert.programs.file_model import FileModel, describe_outputs, torch_runner, trace, trace_module
from convert.programs.inference_program import read_program
from convert.programs.program_feeds import Feeds
from convert.programs.runners import layer_runner, program_runner
from convert.programs.torch_file import copy_with_signature
from convert.proof.parity import ParityReport, compare
from convert.proof.proof_inputs import Inputs
from convert.result import FORMATS
from convert.steps.progress import Steps
from pipeline.errors import ConversionError
from pipeline.models.signature import Variable

ONNX_FILE = "model.onnx"
TORCHSCRIPT_FILE = "model.pt"
_TWIN_NEEDS = ("torch", "transformers", "paddle", "paddlenlp")
PADDLE, ONNX, TORCHSCRIPT = "PyTorch to Paddle", "PyTorch to ONNX", "PyTorch to TorchScript"


def describe_step(steps: Steps, source: str, input_spec: str, sample: Sequence[str] = ()) -> dict[str, Any]:
    """Load a PyTorch model. Return its hash, output names and notes, and whether PaddleNLP has its class."""
    steps.step("Reading the PyTorch model")
    model = load_torch_model(source, input_spec, sample)
    return {
        "fingerprint": model_fingerprint(model),
        "outputs": model.outputs,
        "notes": model_notes(model),
        "twin": has_twin(type(model.model).__name__),
    }


def paddle_step(
    steps: Steps,
    source: str,
    input_spec: str,
    out: str,
    lengths: list[int],
    tolerance: float,
    opset: int,
    program_format: str = FORMATS[0],
    sample: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Convert a PyTorch model to a Paddle model in `out`: load its weights into PaddleNLP's equal class.

    program_format: one of FORMATS. Returns comparison reports as dictionaries: of the PyTorch model with the
    Paddle Layer, and, unless that fails, of the Layer with the exported model.
    """
    steps.step("Mapping the weights into PaddleNLP's model")
    model = load_torch_model(source, input_spec, sample)
    twin = _build_twin(model)
    steps.step("Parity of PyTorch and Paddle")
    batches = _proof_batches(model, source, lengths, sample)
    dynamic = _compare_batches(PADDLE, model, layer_runner(twin, model.feeds), batches, tolerance)
    if not dynamic.passed:
        return _as_json([dynamic])
    steps.step("Dynamic to static")
    built_of = {"source": source, "input_spec": input_spec, "sample": list(sample)}
    recipe = Recipe(f"{__name__}:twin_layer", built_of, _TWIN_NEEDS)
    program = export_as(program_format, twin, recipe, model.feeds, Path(out))
    steps.step("Parity of dynamic and static")
    static = layer_parity(twin, program, model.feeds, batches, tolerance)
    return _as_json([dynamic, static])


def twin_layer(source: str, input_spec: str, sample: Sequence[str] = ()) -> Any:
    """Build the Paddle Layer that `paddle_step` exports, for export in another process."""
    return _build_twin(load_torch_model(source, input_spec, sample))


def _build_twin(model: TorchModel) -> Any:
    """Return PaddleNLP's model of the same architecture, with the weights of the PyTorch model."""
    import_paddle()
    from convert.from_torch.twin import paddle_twin

    return paddle_twin(model.model, len(model.outputs))


def onnx_step(
    steps: Steps,
    source: str,
    input_spec: str,
    out: str,
    lengths: list[int],
    tolerance: float,
    opset: int,
    program_format: str = FORMATS[0],
    sample: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Convert a PyTorch model to model.onnx in `out`. Returns a list with the report as a dictionary."""
    steps.step("PyTorch to ONNX")
    model = load_torch_model(source, input_spec, sample)
    names = [feed.name for feed in model.feeds]
    axes = {feed.name: _open_axes(feed.shape) for feed in model.feeds} | _output_axes(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            trace(model.positional, model.examples) if model.file else model.positional,
            model.examples,
            str(Path(out, ONNX_FILE)),
            input_names=names,
            output_names=list(model.outputs),
            dynamic_axes=axes,
            opset_version=opset,
            dynamo=False,
        )
    program = read_program(Path(out, ONNX_FILE))
    unused = [name for name in names if name not in {feed.name for feed in program.feeds}]
    if unused:
        raise ConversionError(f"forward() doesn't use {unused[0]!r}; give --input-spec without it.")
    steps.step("Parity of PyTorch and ONNX")
    runner = program_runner(program)
    batches = _proof_batches(model, source, lengths, sample)
    return _as_json([_compare_batches(ONNX, model, runner, batches, tolerance)])


def torchscript_step(
    steps: Steps,
    source: str,
    input_spec: str,
    out: str,
    lengths: list[int],
    tolerance: float,
    opset: int,
    program_format: str = FORMATS[0],
    sample: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Convert a PyTorch model to model.pt in `out`, which describes its inputs and outputs.

    A TorchScript file is copied. Returns a list with the report as a dictionary.
    """
    steps.step("PyTorch to TorchScript")
    model = load_torch_model(source, input_spec, sample)
    file = Path(out, TORCHSCRIPT_FILE)
    feeds = [Variable(feed.name, feed.name, feed.dtype, feed.shape) for feed in model.feeds]
    with torch.no_grad():
        outputs = model.positional(*model.examples)
    fetches = describe_outputs(model.outputs, outputs, _output_axes(model))
    with tempfile.TemporaryDirectory() as work:
        original = model.file or Path(work, TORCHSCRIPT_FILE)
        if model.file is None:
            trace_module(model.positional, model.examples).save(str(original))
        copy_with_signature(original, file, feeds, fetches)
    steps.step("Parity of PyTorch and TorchScript")
    runner = torch_runner(FileModel(file, feeds, model.outputs), model.feeds)
    batches = _proof_batches(model, source, lengths, sample)
    return _as_json([_compare_batches(TORCHSCRIPT, model, runner, batches, tolerance)])


def _as_json(reports: Sequence[ParityReport]) -> list[dict[str, Any]]:
    return [asdict(report) for report in reports]


def _proof_batches(
    model: TorchModel, source: str, lengths: Sequence[int], sample: Sequence[str]
) -> list[Feeds]:
    target = torch_target(source, model.feeds, model.id_limits)
    return Inputs(tuple(lengths), tuple(map(Path, sample))).batches(target)


def _compare_batches(
    step: str, model: TorchModel, runner: Any, batches: list[Feeds], tolerance: float
) -> ParityReport:
    reference = torch_runner(model.positional, model.feeds)
    return compare(step, model.outputs, reference, runner, batches, tolerance)


def _open_axes(shape: Sequence[int]) -> dict[int, str]:
    names = {0: "batch", 1: "length"}
    return {axis: names.get(axis, f"length_{axis}") for axis, dim in enumerate(shape) if dim < 0}


def _output_axes(model: TorchModel) -> dict[str, dict[int, str]]:
    """Return names for each output's axes that change with the inputs' batch size or length, by output."""
    first_run = _shapes(model, model.examples)
    other_run, why = None, ""
    for inputs in model.other_examples:
        try:
            other_run = _shapes(model, inputs)
            break
        except Exception as exc:
            why = why or first_line(exc)
    if other_run is None:
        raise ConversionError(f"the PyTorch model can't run other shapes ({why}).")
    axes = {}
    for name, dims, other_dims in zip(model.outputs, first_run, other_run, strict=True):
        open_ = [-1 if a != b else a for a, b in zip(dims, other_dims, strict=True)]
        axes[name] = _open_axes(open_)
    return axes


def _shapes(model: TorchModel, inputs: Sequence[Any]) -> list[tuple[int, ...]]:
    with torch.no_grad():
        return [tuple(output.shape) for output in model.positional(*inputs)]

"""Exports a Paddle Layer to a .json or .pdmodel file, and compares the exported model with the Layer."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convert.from_paddle.weights import load_params
from convert.programs.engines import first_line, import_paddle
from convert.programs.inference_program import InferenceProgram, read_program
from convert.programs.program_feeds import Feeds, parse_input_spec
from convert.programs.runners import Arguments, layer_runner, program_runner
from convert.proof.parity import ParityReport, compare
from convert.result import FORMATS
from convert.steps.conversion_environment import pdmodel_paddle
from convert.steps.isolation import STEP_TIMEOUT_S, run_isolated
from convert.steps.progress import Steps
from pipeline.errors import ConversionError

PROGRAM_NAME = "inference"


def export_layer(layer: Any, arguments: Arguments, directory: Path) -> InferenceProgram:
    """Export a Paddle Layer to a .json model in `directory`, and return the exported model's description.

    arguments: the Layer's inputs in the order of forward(). Raises ConversionError when Paddle can't export
    the Layer.
    """
    write_static(layer, arguments, directory)
    return read_back(directory, arguments)


def write_static(layer: Any, arguments: Arguments, directory: Path) -> None:
    """Export a Paddle Layer to files in `directory`, in the format of the imported Paddle.

    The Layer is put in evaluation mode. Raises ConversionError when Paddle can't export the Layer.
    """
    paddle = import_paddle()
    specs = [
        feed and paddle.static.InputSpec([None if d < 0 else d for d in feed.shape], feed.dtype, feed.name)
        for feed in arguments
    ]
    layer.eval()
    try:
        static = paddle.jit.to_static(layer, input_spec=specs, full_graph=True)
        paddle.jit.save(static, str(directory / PROGRAM_NAME))
    except OSError:
        raise  # of writing
    except Exception as exc:
        raise ConversionError(
            f"the layer can't be made static ({first_line(exc)}); correct --input-spec or the layer (--debug "
            "shows where in forward())."
        ) from exc
    finally:
        # to_static replaces forward() for good; the dynamic one is the reference of parity.
        if hasattr(layer.forward, "rollback"):
            layer.forward.rollback()


def read_back(directory: Path, arguments: Arguments) -> InferenceProgram:
    """Read an exported model and check that it is complete and takes all `arguments`.

    Raises ConversionError otherwise.
    """
    try:
        program = read_program(directory)
    except ConversionError as exc:
        # Paddle writes natively, and doesn't say when that fails.
        why = exc.message.replace(f"{directory}/", "").rstrip(".")
        raise ConversionError(
            f"what Paddle wrote can't be read back ({why}); see that the disk has room."
        ) from exc
    used = {feed.name for feed in program.feeds}
    unused = [feed.name for feed in arguments if feed and feed.name not in used]
    if unused:
        raise ConversionError(f"forward() doesn't use {unused[0]!r}; leave it out of --input-spec.")
    return program


def layer_parity(
    layer: Any,
    program: InferenceProgram,
    arguments: Arguments,
    batches: Sequence[Feeds],
    tolerance: float,
) -> ParityReport:
    """Run a Paddle Layer and its exported model on `batches`, and return a report of output differences."""
    layer.eval()
    names = [fetch.name for fetch in program.fetches]
    dynamic = layer_runner(layer, arguments)
    return compare("dynamic to static", names, dynamic, program_runner(program), batches, tolerance)


_WEIGHTS = "weights.pdparams"


@dataclass(frozen=True)
class Recipe:
    """A function call with JSON arguments, by which another process can build the same Layer.

    The weights may differ.
    """

    function: str  # "module:name"
    arguments: Mapping[str, object] = field(default_factory=dict)  # JSON values
    needs: tuple[str, ...] = ("paddle",)  # packages that the function imports


def check_format(name: str) -> None:
    """Raise ConversionError for an unknown file format, or if the format needs a missing Paddle version."""
    if name not in FORMATS:
        raise ConversionError(f"there is no format {name!r}; name {' or '.join(FORMATS)}.")
    if name == "pdmodel":
        pdmodel_paddle()


def format_settings(name: str) -> dict[str, str]:
    """Return the settings of a file format for the fingerprint; empty for .json, Paddle 3's own format."""
    return {"format": name, "written_by": pdmodel_paddle().version} if name == "pdmodel" else {}


def export_as(
    program_format: str,
    layer: Any,
    recipe: Recipe,
    arguments: Arguments,
    directory: Path,
    timeout_s: float = STEP_TIMEOUT_S,
) -> InferenceProgram:
    """Export a Paddle Layer to `directory` in one of FORMATS, and return the exported model's description.

    For "pdmodel", a process with an older Paddle builds the Layer with `recipe`, within `timeout_s`. Raises
    ConversionError when the Layer can't be built there, or can't be exported.
    """
    if program_format == "json":
        return export_layer(layer, arguments, directory)
    _export_pdmodel(layer, recipe, arguments, directory, timeout_s)
    return read_back(directory, arguments)


def _export_pdmodel(
    layer: Any, recipe: Recipe, arguments: Arguments, directory: Path, timeout_s: float
) -> None:
    paddle = import_paddle()
    older = pdmodel_paddle()
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        paddle.save(layer.state_dict(), str(Path(scratch, _WEIGHTS)))
        step_arguments = {
            "function": recipe.function,
            "built_of": dict(recipe.arguments),
            "feeds": [feed and str(feed) for feed in arguments],
            "weights": str(Path(scratch, _WEIGHTS)),
            "out": str(directory),
        }
        try:
            run_isolated(
                f"{__name__}:write_step",
                step_arguments,
                converter=f"Paddle {older.version}",
                needs=recipe.needs,
                timeout_s=timeout_s,
                variables=older.variables,
            )
        except ConversionError as exc:
            raise ConversionError(
                f"by Paddle {older.version}, which writes .pdmodel programs: {exc.message}"
            ) from exc


def write_step(
    steps: Steps,
    function: str,
    built_of: dict[str, Any],
    feeds: Sequence[str | None],
    weights: str,
    out: str,
) -> None:
    """Build a Layer, load its weights, and export it to a .pdmodel in `out`; needs the older Paddle.

    function: builds the Layer ("module:name"). built_of: arguments of that function.
    """
    module, _, name = function.partition(":")
    layer = getattr(importlib.import_module(module), name)(**built_of)
    load_params(layer, Path(weights))
    write_static(layer, [parse_input_spec(feed)[0] if feed else None for feed in feeds], Path(out))
    Path(out, f"{PROGRAM_NAME}.pdiparams.info").unlink()  # for training on
    _leave_out_call_stacks(Path(out, f"{PROGRAM_NAME}.pdmodel"))


def _leave_out_call_stacks(program: Path) -> None:
    """Remove the operators' Python call stacks from a .pdmodel file.

    They contain paths of this machine, and are most of the file's size.
    """
    from paddle.base.proto import framework_pb2

    desc = framework_pb2.ProgramDesc.FromString(program.read_bytes())
    for block in desc.blocks:
        for op in block.ops:
            attributes = [attr for attr in op.attrs if attr.name != "op_callstack"]
            del op.attrs[:]
            op.attrs.extend(attributes)
    program.write_bytes(desc.SerializeToString())

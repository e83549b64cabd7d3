"""The export of a Layer to a static program, and the comparison of both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convert.programs.engines import first_line, import_paddle
from convert.programs.inference_program import InferenceProgram, read_program
from convert.programs.program_feeds import Feeds
from convert.programs.runners import Arguments, layer_runner, program_runner
from convert.proof.parity import compare
from convert.proof.parity_report import ParityReport
from pipeline.errors import ConversionError

PROGRAM_NAME = "inference"


def export_layer(layer: Any, arguments: Arguments, directory: Path) -> InferenceProgram:
    """Write the static program of an evaluated Layer to `directory` and read it back.

    Raises ConversionError when Paddle can't make the Layer static.
    """
    write_static(layer, arguments, directory)
    return read_back(directory, arguments)


def write_static(layer: Any, arguments: Arguments, directory: Path) -> None:
    """Write the static program of an evaluated Layer, in the format of the Paddle that runs."""
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
    """Read the written program; raise ConversionError unless it is complete and takes all arguments."""
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
    """Compare the dynamic Layer with its exported program."""
    layer.eval()
    names = [fetch.name for fetch in program.fetches]
    dynamic = layer_runner(layer, arguments)
    return compare("dynamic to static", names, dynamic, program_runner(program), batches, tolerance)

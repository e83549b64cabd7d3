"""Finds the TensorRT shape ranges of a model's inputs, and of a Paddle model's inner tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from convert.output.staging import hash_sources
from convert.programs.engines import paddle_version
from convert.programs.inference_program import InferenceProgram, read_program
from convert.programs.program_feeds import BATCHES, SHAPE_LENGTHS, Feeds, sample_feeds
from convert.programs.runners import program_runner
from convert.proof.target import create_target
from convert.result import Conversion, ConversionOptions
from pipeline.engines.dynamic_shape import TensorRange, is_place
from pipeline.errors import ConfigError, ConversionError, ModelFailed
from pipeline.models.serving_model import SERVER_FOLDER

BOUNDS = ("min", "opt", "max")


def ranges_table(ranges: Mapping[str, TensorRange]) -> Table:
    """Return a terminal table of minimum, likeliest and maximum shape by tensor.

    `-> 1 16` shows the value of a tensor that holds a shape.
    """
    table = Table(title=f"Shapes of {len(ranges)} tensors", title_justify="left")
    table.add_column("tensor", overflow="fold")
    for bound in BOUNDS:
        table.add_column(bound, justify="right", overflow="fold")
    for name, tensor_range in ranges.items():
        table.add_row(name, *(_format_shape(tensor_range, bound) for bound in BOUNDS))
    return table


def _format_shape(tensor_range: TensorRange, bound: str) -> str:
    shape = " x ".join(map(str, getattr(tensor_range, bound))) or "scalar"
    values = getattr(tensor_range, f"{bound}_values")
    return f"{shape} -> {' '.join(map(str, values))}" if values else shape


def shape_info_code(ranges: Mapping[str, TensorRange], feeds: Collection[str]) -> str:
    """Return the code of a `set_dynamic_shape_info` hook that sets these TensorRT shape ranges.

    ranges: by tensor name. feeds: names of the model inputs. The code omits tensors that the hook can't
    describe: empty tensors, inner tensors that hold a shape, and tensors that are named by their position.
    """
    listed = {
        name: tensor_range
        for name, tensor_range in ranges.items()
        if (name in feeds or not tensor_range.min_values) and 0 not in tensor_range.min and not is_place(name)
    }
    lines = ["def set_dynamic_shape_info(self):", "    self.dynamic_shape_info = {"]
    for bound in BOUNDS:
        lines.append(f'        "{bound}_input_shape": {{')
        lines += [f'            "{name}": {list(getattr(r, bound))},' for name, r in listed.items()]
        lines.append("        },")
    return "\n".join([*lines, "    }"])


_HEAD = "Made by `paddlewheel convert shapes`: "
_PADDLE_START = "shape_range_info {"  # of a file that Paddle wrote


def convert_shapes(
    model: Path,
    out: Path,
    *,
    batches: Sequence[int] = BATCHES,
    options: ConversionOptions | None = None,
) -> Conversion:
    """Write the file `out` with TensorRT shape ranges of a model, for the option `tensorrt.shapes`.

    Random inputs of `options.lengths` x `batches` rows are run, or else the contents of the files
    `options.sample`. The likeliest shape has the median length and the most rows. The file has the inputs and
    each inner tensor whose shape depends on the inputs. Inner tensors of a .json graph are named by their
    position, because their names differ in each process. For an ONNX model the file has only the inputs, as
    TensorRT requires. Raises ConversionError for an unusable model.
    """
    options = options or ConversionOptions(lengths=SHAPE_LENGTHS)
    options.steps.step("Reading the model")
    _check_replaceable(out)
    folder = model / SERVER_FOLDER if (model / SERVER_FOLDER).is_dir() else model
    program = read_program(folder)
    if program.ragged:
        raise ConversionError(
            f"{program.program}: feed {min(program.ragged)!r} holds sequences (LoD), which TensorRT "
            "doesn't take."
        )
    if not batches or min(batches) < 1 or max(batches) > 1 << 16:
        raise ConversionError(f"the batch sizes {tuple(batches)} are not whole numbers from 1 to {1 << 16}.")
    feeds = _create_batches(program, batches, options)
    settings = {"lengths": options.lengths, "batches": list(batches), "paddle": paddle_version()}
    head = _HEAD + hash_sources([*program.files, *options.sample], settings)
    if options.dry_run:
        return Conversion(out, False, f"would run {len(feeds)} batches and write {out}; nothing was written")
    if not options.force and _first_line(out) == f"# {head}":
        return Conversion(out, False, f"{out} is up to date", shown=_shown(out, program))
    _collect(program, feeds, out, head, options)
    return Conversion(
        out, True, f"{out} is for local_service_conf.tensorrt.shapes", shown=_shown(out, program)
    )


def _collect(
    program: InferenceProgram, batches: Sequence[Feeds], out: Path, head: str, options: ConversionOptions
) -> None:
    # A late import: it imports Paddle.
    from pipeline.engines.dynamic_shape import format_ranges
    from pipeline.engines.shape_collection import collect_ranges, feed_ranges, likeliest, write_atomically

    options.steps.step("Running the batches", total=len(batches))
    feeds = {feed.name: feed.shape for feed in program.feeds}
    try:
        if program.format == "onnx":
            _run_batches(program, batches, options)
            ranges = feed_ranges(batches, likeliest(batches))
        else:
            ranges = collect_ranges(
                program.program, program.params, feeds, batches, likeliest(batches), options.steps.advance
            )
    except ModelFailed as exc:
        raise ConversionError(
            f"{exc.message.rstrip('.')}; name others with --lengths and --batches, or give --sample."
        ) from exc
    comments = [head]
    if program.format == "pir":
        comments.append("inner_var_N is a place in the .json program, where each process has another name.")
    options.steps.step("Writing")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, format_ranges(ranges, comments))
    except OSError as exc:
        raise ConversionError(f"{out} can't be written ({exc.strerror}); name another place.") from exc


def _run_batches(program: InferenceProgram, batches: Sequence[Feeds], options: ConversionOptions) -> None:
    """Run the model on the batches, so that errors appear now, and not when TensorRT builds its engines."""
    run = program_runner(program)
    for batch in batches:
        run(batch)
        options.steps.advance()


def _shown(out: Path, program: InferenceProgram) -> tuple[object, ...]:
    from pipeline.engines.dynamic_shape import read_ranges

    try:
        ranges = read_ranges(out)
    except ConfigError as exc:
        raise ConversionError(f"{exc.message.rstrip('.')}; make it again with --force.") from exc
    feeds = {feed.name for feed in program.feeds}
    return ranges_table(ranges), shape_info_code(ranges, feeds)


def _create_batches(
    program: InferenceProgram, sizes: Sequence[int], options: ConversionOptions
) -> list[Feeds]:
    if options.sample:
        return options.proof_inputs.batches(create_target(program), sizes=())
    rng = np.random.default_rng(0)
    points = [(rows, length) for rows in sorted(set(sizes)) for length in sorted(set(options.lengths))]
    return [sample_feeds(program.feeds, program.id_limits, rng, *point) for point in points]


def _check_replaceable(out: Path) -> None:
    """Raise ConversionError if `out` exists and is not a file of TensorRT shapes."""
    if out.is_dir():
        raise ConversionError(f"{out} is a folder; name a file, such as {out / 'shapes.pbtxt'}.")
    if out.exists() and not _first_line(out).startswith(("# Made by `", _PADDLE_START)):
        raise ConversionError(f"{out} is not a file of collected shapes; name another place for the result.")


def _first_line(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.readline(1024).rstrip("\n")
    except FileNotFoundError:
        return ""
    except OSError as exc:
        raise ConversionError(f"{path} can't be read ({exc.strerror}); name another place.") from exc

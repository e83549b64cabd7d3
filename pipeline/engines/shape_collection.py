"""Collects the shape range of every tensor of a Paddle model, by inferences on the CPU.

Paddle's TensorRT engine needs these ranges.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from pipeline.engines.base import PredictorConf
from pipeline.engines.device import cache_folder
from pipeline.engines.dynamic_shape import Ranges, TensorRange, format_ranges, place_in_program, read_ranges
from pipeline.engines.feeds import Array, input_examples
from pipeline.engines.paddle.paddle_import import error_sentence, inference, paddle
from pipeline.engines.paddle.program import corrected_feeds, inspect_program
from pipeline.errors import ConfigError, ModelFailed
from pipeline.models.serving_model import ServingModel

log = logging.getLogger(__name__)

Batch = Mapping[str, Array]  # by the program's names
Shapes = Mapping[str, tuple[int, ...]]  # of the feeds, by the program's names; -1: the axis varies


def collect_ranges(
    program: Path,
    params: Path | None,
    feeds: Shapes,
    batches: Sequence[Batch],
    opt: int,
    advance: Callable[[], None] = lambda: None,
) -> Ranges:
    """Return the shape ranges of a Paddle model's inputs, and of inner tensors whose shapes depend on them.

    The model runs on all `batches`. `program` is the graph file, `params` the weight file. `opt` is the index
    of the batch with the most likely shapes. Inputs come first. Weights, constants and tensors with a fixed
    shape are left out. `advance` is called after each batch. Raises ModelFailed with Paddle's reason.
    """
    over_all = _collect_shapes(program, params, batches, advance)
    # A separate run: Paddle does not document its choice of `opt` over several batches.
    likely = _collect_shapes(program, params, [batches[opt]])
    varying = {name for name, tensor_range in over_all.items() if tensor_range.varies}
    if _has_constant_axis(feeds, batches):  # inner tensors that follow such an axis look like constants
        probe = _collect_shapes(program, params, [batches[opt], _change_lengths(feeds, batches[opt])])
        varying |= {name for name, tensor_range in probe.items() if tensor_range.varies}
    # A constant that Paddle folded has another name in each run, but never varies.
    inner = sorted(varying & over_all.keys() - feeds.keys())
    return {
        name: dataclasses.replace(over_all[name], opt=likely[name].min, opt_values=likely[name].min_values)
        for name in (*feeds, *inner)
    }


def feed_ranges(batches: Sequence[Batch], opt: int) -> Ranges:
    """Return the shape ranges of the inputs over all `batches`; batch `opt` has the most likely shapes."""
    ranges = {}
    for name, array in batches[opt].items():
        shapes = [batch[name].shape for batch in batches]
        low, high = (tuple(map(bound, *shapes)) if len(shapes) > 1 else shapes[0] for bound in (min, max))
        ranges[name] = TensorRange(min=low, max=high, opt=array.shape)
    return ranges


def likeliest(batches: Sequence[Batch]) -> int:
    """Return the index of the batch that is typical of a busy service.

    That is the batch of median size among the batches with the most rows.
    """
    rows = [max(len(array) for array in batch.values()) for batch in batches]
    sizes = [sum(array.size for array in batch.values()) for batch in batches]
    full = [index for index, n in enumerate(rows) if n == max(rows)]
    return sorted(full, key=sizes.__getitem__)[len(full) // 2]


def collected_file(model: ServingModel, conf: PredictorConf) -> Path:
    """Return the file of shape ranges for `tensorrt.auto_collect`. If there is no file, collect the ranges.

    The file is in the folder of built engines. Raises ConfigError if the model can't run `collect_lengths` or
    `collect_batches`.
    """
    lengths, rows = conf.tensorrt.collect_lengths, conf.tensorrt.collect_batches
    key = hashlib.sha256(model.program.read_bytes())
    key.update(f"{paddle.__version__} {sorted(lengths)} {sorted(rows)}".encode())
    path = cache_folder(model, conf) / f"shapes-{key.hexdigest()[:16]}.pbtxt"
    if path.is_file():
        return path
    described = dataclasses.replace(model, feeds=corrected_feeds(model, inspect_program(model)))
    names = {feed.alias: feed.name for feed in described.feeds}
    batches = [
        {names[alias]: array for alias, array in input_examples(described, n, length).items()}
        for n in rows
        for length in lengths
    ]
    feeds = {feed.name: feed.shape for feed in described.feeds}
    try:
        ranges = collect_ranges(model.program, model.params, feeds, batches, likeliest(batches))
    except ModelFailed as exc:
        raise ConfigError(
            f"tensorrt.auto_collect: {exc.message}: change collect_lengths or collect_batches, or give shapes"
        ) from exc
    write_atomically(path, format_ranges(ranges))
    log.info("%s: the shapes of %d tensors are in %s", model.program, len(ranges), path)
    return path


def write_atomically(path: Path, text: str) -> None:
    """Write a text file under a temporary name, then rename it. Raises OSError."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def _collect_shapes(
    program: Path, params: Path | None, batches: Sequence[Batch], advance: Callable[[], None] = lambda: None
) -> Ranges:
    """Run a Paddle model on batches, and return Paddle's shape ranges by tensor.

    Names have no prefix of the predictor. advance: called after each batch. Raises ModelFailed.
    """
    separate = params is None and program.name == "__model__"
    config = inference.Config(*([str(program.parent)] if separate else [str(program), str(params or "")]))
    config.disable_glog_info()
    config.disable_gpu()
    if program.suffix == ".json":
        config.enable_new_ir(True)
        config.enable_new_executor(True)
    config.switch_ir_optim(False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "shapes")
        config.collect_shape_range_info(str(path))
        try:
            predictor = inference.create_predictor(config)
        except Exception as exc:
            raise ModelFailed(f"{program} can't be loaded: {error_sentence(exc)}") from exc
        try:
            for batch in batches:
                for name, array in batch.items():
                    predictor.get_input_handle(name).copy_from_cpu(np.ascontiguousarray(array))
                predictor.run()
                advance()
        except Exception as exc:
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in batch.items())
            raise ModelFailed(f"{program} can't run {shapes}: {error_sentence(exc)}") from exc
        finally:
            del predictor  # writes the file, and ends the process where its folder is gone
        try:
            ranges = read_ranges(path)
        except ConfigError as exc:  # Paddle writes natively, and doesn't say when that fails
            room = f"see that the disk has room in {tempfile.gettempdir()}"
            raise ConfigError(f"Paddle's list of the shapes of {program} is not whole: {room}") from exc
        return {place_in_program(name): tensor_range for name, tensor_range in ranges.items()}


def _has_constant_axis(feeds: Shapes, batches: Sequence[Batch]) -> bool:
    """Whether a dynamic axis of an input has the same length in all batches."""
    return any(
        len({batch[name].shape[axis] for batch in batches}) == 1
        for name, shape in feeds.items()
        for axis, dim in enumerate(shape)
        if dim < 0
    )


def _change_lengths(feeds: Shapes, batch: Batch) -> Batch:
    """Return the batch with the length of each dynamic axis reduced by 1, or increased from 1 to 2.

    Lengths are not increased otherwise, because they may be at the maximum.
    """
    other = dict(batch)
    for name, shape in feeds.items():
        for axis, dim in enumerate(shape):
            if dim < 0:
                size = other[name].shape[axis]
                picked = np.arange(size - 1) if size > 1 else np.zeros(2, np.int64)
                other[name] = np.take(other[name], picked, axis)
    return other

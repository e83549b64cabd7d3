"""One side of a check: a Paddle program, an ONNX model or a serving model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from convert.programs.inference_program import read_program, serving_folder
from convert.programs.program_feeds import Array
from convert.programs.runners import Runner, program_runner, serving_runner
from pipeline.models.serving_model import Padding, Variable, load_serving_model


@dataclass(frozen=True)
class Subject:
    """A model of a check, with its runner."""

    source: Path
    feeds: tuple[Variable, ...]
    fetches: tuple[Variable, ...]
    id_limits: Mapping[str, int]  # by alias: rows of the embedding that looks up a feed
    run: Runner  # takes feeds by their aliases
    folder: Path  # of its files, with the tokenizer's
    padding: Padding | None = None  # as a serving model declares it
    checks_ids: bool = False  # whether its engine rejects ids beyond the limits


def open_subject(source: Path) -> Subject:
    """Load a model. Raises ConversionError or ConfigError for another file."""
    folder = serving_folder(source)
    if folder is not None:
        return _serving_subject(source, folder)
    program = read_program(source)
    feeds, fetches = (
        tuple(Variable(spec.name, spec.name, spec.dtype, spec.shape) for spec in specs)
        for specs in (program.feeds, program.fetches)
    )
    dtypes = {feed.name: feed.numpy_dtype for feed in feeds}
    program_run = program_runner(program)

    def run(arrays: Mapping[str, Array]) -> Sequence[Array]:
        # The other model's feeds may be int32 where these are int64.
        return program_run({name: array.astype(dtypes[name], copy=False) for name, array in arrays.items()})

    checks = program.format == "onnx"
    folder = program.program.parent
    return Subject(source, feeds, fetches, program.id_limits, run, folder, checks_ids=checks)


def open_program(folder: Path) -> Subject:
    """Load the unoptimised program in a serving model's folder, with feeds by their aliases."""
    return _create_subject(folder, folder, program_runner(read_program(folder)))


def _serving_subject(source: Path, folder: Path) -> Subject:
    return _create_subject(source, folder, serving_runner(folder))


def _create_subject(source: Path, folder: Path, run: Runner) -> Subject:
    """Create the Subject of the serving model in `folder`; `run` takes feeds by the program's names."""
    model = load_serving_model(folder)
    program = read_program(folder)
    limits = program.id_limits
    names = {feed.alias: feed.name for feed in model.feeds}
    return Subject(
        source,
        model.feeds,
        model.fetches,
        {alias: limits[name] for alias, name in names.items() if name in limits},
        lambda arrays: run({names[alias]: array for alias, array in arrays.items()}),
        folder,
        model.padding,
        program.format == "onnx",
    )

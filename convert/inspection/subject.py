"""One side of a check: a Paddle program, an ONNX model or a serving model, run by the names callers use."""

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
    """A model that can be run.

    `run` takes feeds by their aliases. `folder` holds its files, those of a tokenizer among them. `padding`
    is what a serving model declares. `id_limits` (by alias) are the lengths of the embeddings that feeds are
    looked up in. `checks_ids`: its engine refuses ids beyond them.
    """

    source: Path
    feeds: tuple[Variable, ...]
    fetches: tuple[Variable, ...]
    id_limits: Mapping[str, int]
    run: Runner
    folder: Path
    padding: Padding | None = None
    checks_ids: bool = False


def open_subject(source: Path) -> Subject:
    """Load a model. Raises ConversionError or ConfigError for what is none."""
    folder = serving_folder(source)
    if folder is not None:
        return _serving_subject(source, folder)
    program = read_program(source)
    feeds, fetches = (
        tuple(Variable(spec.name, spec.name, spec.dtype, spec.shape) for spec in specs)
        for specs in (program.feeds, program.fetches)
    )
    dtypes = {feed.name: feed.numpy_dtype for feed in feeds}
    own = program_runner(program)

    def run(arrays: Mapping[str, Array]) -> Sequence[Array]:
        # The other side's feeds may be of int32 where these are of int64.
        return own({name: array.astype(dtypes[name], copy=False) for name, array in arrays.items()})

    checks = program.format == "onnx"
    folder = program.program.parent
    return Subject(source, feeds, fetches, program.id_limits, run, folder, checks_ids=checks)


def open_program(folder: Path) -> Subject:
    """The program in a serving model's folder, run as it is written, by the names that callers use."""
    return _described(folder, folder, program_runner(read_program(folder)))


def _serving_subject(source: Path, folder: Path) -> Subject:
    return _described(source, folder, serving_runner(folder))


def _described(source: Path, folder: Path, own: Runner) -> Subject:
    """As the serving model in `folder` describes it; `own` takes feeds by the program's names."""
    model = load_serving_model(folder)
    program = read_program(folder)
    limits = program.id_limits
    names = {feed.alias: feed.name for feed in model.feeds}
    return Subject(
        source,
        model.feeds,
        model.fetches,
        {alias: limits[name] for alias, name in names.items() if name in limits},
        lambda arrays: own({names[alias]: array for alias, array in arrays.items()}),
        folder,
        model.padding,
        program.format == "onnx",
    )

"""A model for a fixed number of rows made one for any number, proven row by row."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from convert.programs.inference_program import InferenceProgram, read_program
from convert.programs.program_feeds import Array, Feeds
from convert.programs.runners import Runner, program_runner
from convert.proof.parity import compare
from convert.proof.parity_report import FailedParity, ParityReport
from convert.proof.target import create_target
from convert.result import ConversionOptions
from convert.steps.isolation import run_isolated
from pipeline.errors import ConversionError

STEP = "any number of rows"
_SIZES = (1, 2, 5)  # of the batches that are tried


def rebatched(
    program: InferenceProgram, folder: Path, options: ConversionOptions
) -> tuple[InferenceProgram, ParityReport]:
    """The model with a free batch, written to `folder`, and its proof: each row answers as it did alone.

    Raises ConversionError with the reason where the program does not allow it.
    """
    rows = fixed_rows(program)
    options.steps.step("A batch of any size")
    folder.mkdir(parents=True)
    try:
        return _freed(program, folder / "plain", rows, False, options)
    except ConversionError:
        # Exporters leave shapes that are reckoned of stored ones.
        fold = not program.data_files
    try:
        return _freed(program, folder / "folded", rows, fold, options)
    except FailedParity as exc:
        why = f"its rows answer otherwise together: {exc.report.failure.removeprefix(f'{STEP}: ')}"
        raise ConversionError(_refusal(program, why)) from exc
    except ConversionError as exc:
        why = exc.message.partition("; try other")[0].replace(f"{folder}/", "")
        raise ConversionError(_refusal(program, why)) from exc


def _freed(
    program: InferenceProgram, folder: Path, rows: int, fold: bool, options: ConversionOptions
) -> tuple[InferenceProgram, ParityReport]:
    """As `rebatched`; raises FailedParity, too."""
    folder.mkdir()
    for file in program.data_files:
        shutil.copyfile(file, folder / file.name)
    out = folder / program.program.name
    run_isolated(
        f"{__package__}.rebatch_step:rebatch_step",
        {"file": str(program.program), "out": str(out), "rows": rows, "fold": fold},
        converter="onnx",
        needs=("onnx", "onnxruntime"),
        steps=options.steps,
        timeout_s=options.step_timeout_s,
    )
    made = read_program(out)
    names = [fetch.name for fetch in program.fetches]
    alone, together = _row_by_row(program, rows), program_runner(made)
    report = compare(STEP, names, alone, together, _batches(program, options), options.tolerance)
    report.require()
    return made, report


def fixed_rows(program: InferenceProgram) -> int:
    """How many rows the program takes. Raises ConversionError where that is no fixed number."""
    if program.format != "onnx":
        raise ConversionError(
            f"{program.program} is a Paddle program, whose shapes are part of it; `paddlewheel convert all "
            "MODEL OUT --engine onnxruntime --rebatch` makes an ONNX model of it first."
        )
    firsts = {feed.name: feed.shape[0] if feed.shape else None for feed in program.feeds}
    if len(set(firsts.values())) == 1 and (rows := next(iter(firsts.values()))) is not None:
        if rows == -1:
            raise ConversionError(f"{program.program} takes any number of rows already; leave out --rebatch.")
        return rows
    told = ", ".join(f"{feed.name} {list(feed.shape)}" for feed in program.feeds)
    raise ConversionError(
        f"{program.program}: --rebatch needs feeds that all begin with the batch, and they are {told}; serve "
        "it without."
    )


def _row_by_row(program: InferenceProgram, rows: int) -> Runner:
    """Run the program as it was on each row by itself: as many copies of it as the program takes."""
    run = program_runner(program)

    def alone(feeds: Mapping[str, Array]) -> list[Array]:
        count = len(next(iter(feeds.values())))
        answers = []
        for at in range(count):
            copies = {name: np.repeat(array[at : at + 1], rows, axis=0) for name, array in feeds.items()}
            answers.append([output[:1] for output in run(copies)])
        return [np.concatenate(outputs) for outputs in zip(*answers, strict=True)]

    return alone


def _batches(program: InferenceProgram, options: ConversionOptions) -> list[Feeds]:
    """Batches of several sizes, of the rows that the program would be tried on."""
    given = options.inputs.batches(create_target(program))
    pool = {name: np.concatenate([batch[name] for batch in given]) for name in given[0]}
    count = len(next(iter(pool.values())))
    return [
        {name: array[np.arange(start, start + size) % count] for name, array in pool.items()}
        for start, size in enumerate(_SIZES)
    ]


def _refusal(program: InferenceProgram, why: str) -> str:
    return (
        f"{program.program} can't be made to take any number of rows: {why.rstrip('.')}; export it with a "
        "free batch axis, or serve it without --rebatch."
    )

"""The change of a model with a fixed batch to any number of rows, proven row by row."""

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
_SIZES = (1, 2, 5)  # of the proof's batches


def free_batch(
    program: InferenceProgram, folder: Path, options: ConversionOptions
) -> tuple[InferenceProgram, ParityReport]:
    """Write the model with a free batch to `folder`; prove that each row answers as it did alone.

    Raises ConversionError with the reason if the program does not allow it.
    """
    rows = fixed_rows(program)
    options.steps.step("A batch of any size")
    folder.mkdir(parents=True)
    try:
        return _try_rebatch(program, folder / "plain", rows, False, options)
    except ConversionError:
        # Exporters leave shapes that are computed from stored shapes.
        fold = not program.data_files
    try:
        return _try_rebatch(program, folder / "folded", rows, fold, options)
    except FailedParity as exc:
        why = f"its rows answer otherwise together: {exc.report.failure.removeprefix(f'{STEP}: ')}"
        raise ConversionError(_refusal(program, why)) from exc
    except ConversionError as exc:
        why = exc.message.partition("; try other")[0].replace(f"{folder}/", "")
        raise ConversionError(_refusal(program, why)) from exc


def _try_rebatch(
    program: InferenceProgram, folder: Path, rows: int, fold: bool, options: ConversionOptions
) -> tuple[InferenceProgram, ParityReport]:
    """Rewrite and compare once, with or without constant folding. Raises FailedParity, too."""
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
    rebatched_program = read_program(out)
    names = [fetch.name for fetch in program.fetches]
    alone, together = _row_by_row(program, rows), program_runner(rebatched_program)
    report = compare(STEP, names, alone, together, _sized_batches(program, options), options.tolerance)
    report.require()
    return rebatched_program, report


def fixed_rows(program: InferenceProgram) -> int:
    """Return the fixed number of rows. Raise ConversionError if the program has none."""
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
    shapes = ", ".join(f"{feed.name} {list(feed.shape)}" for feed in program.feeds)
    raise ConversionError(
        f"{program.program}: --rebatch needs feeds that all begin with the batch, and they are {shapes}; "
        "serve it without."
    )


def _row_by_row(program: InferenceProgram, rows: int) -> Runner:
    """Run the original program on each row alone, repeated to fill its fixed batch."""
    run = program_runner(program)

    def alone(feeds: Mapping[str, Array]) -> list[Array]:
        count = len(next(iter(feeds.values())))
        answers = []
        for at in range(count):
            copies = {name: np.repeat(array[at : at + 1], rows, axis=0) for name, array in feeds.items()}
            answers.append([output[:1] for output in run(copies)])
        return [np.concatenate(outputs) for outputs in zip(*answers, strict=True)]

    return alone


def _sized_batches(program: InferenceProgram, options: ConversionOptions) -> list[Feeds]:
    """Return batches of several sizes, made of the rows of the proof's inputs."""
    batches = options.inputs.batches(create_target(program))
    pool = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
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

"""Proves that input rows which are padded and joined to a batch keep the outputs that they have alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from convert.programs.program_feeds import Array, Feeds, ProgramTensor
from convert.programs.runners import Runner
from convert.proof.parity import TOLERANCE, ParityReport, compare
from convert.proof.target import Target
from pipeline.errors import ConversionError
from pipeline.models.serving_model import FeedPadding, Padding
from pipeline.padding.contents import cut_output, growing_axes, pad_array
from pipeline.padding.proof import MAX_LENGTH, Budget, PaddedModel, prove_padding

BUDGET_S = 60.0  # of CPU


def prove_declared(
    runner: Runner,
    names: Sequence[str],
    target: Target,
    rows: Sequence[Feeds],
    padding: Mapping[str, FeedPadding],
    *,
    checks_ids: bool,
    tolerance: float = TOLERANCE,
    step: str = "padding",
) -> tuple[ParityReport, Padding]:
    """Compare padded with unpadded outputs on `rows`, then on random rows of all lengths.

    names: the outputs. padding: axis and padding value, by input name. rows: as in `padding_parity`.
    checks_ids: whether the engine rejects token ids beyond the embedding. Returns the report on `rows`, and
    the padding that may be declared if the report has passed.
    """
    report, cuts = padding_parity(runner, names, rows, padding, tolerance, step)
    declared = Padding(dict(padding), cuts)
    if not report.passed or not padding:
        return report, declared
    longest = min((v.longest[1] for v in target.feeds if v.longest and v.name in padding), default=MAX_LENGTH)
    model = PaddedModel(
        lambda feeds: dict(zip(names, runner(feeds), strict=True)),
        [replace(variable, alias=variable.name) for variable in target.feeds],
        target.id_limits,
        checks_ids,
        padding,
        examples=rows[0],
        max_length=min(longest, MAX_LENGTH),
        tolerance=tolerance,
    )
    proof = prove_padding(model, Budget(BUDGET_S))
    if not proof.feeds:
        return replace(report, note=proof.reason), declared
    reached = None if proof.max_length == longest < MAX_LENGTH else proof.max_length
    return report, replace(declared, max_length=reached)


def padding_parity(
    runner: Runner,
    names: Sequence[str],
    rows: Sequence[Feeds],
    padding: Mapping[str, FeedPadding],
    tolerance: float = TOLERANCE,
    step: str = "padding",
) -> tuple[ParityReport, dict[str, int]]:
    """Compare the outputs of rows run alone with the outputs of rows in one batch, and of each row padded.

    `rows` are batches of one row, of different lengths. Returns the report, and the axis along which each
    output must be cut back if it grows with its row. Raises ConversionError if that axis is ambiguous.
    """
    alone = [runner(row) for row in rows]
    cuts = {}
    for i, name in enumerate(names):
        axis = _growing_axis(name, [output[i] for output in alone])
        if axis is not None:
            cuts[name] = axis
    together = runner(pad_rows(rows, padding))
    other: list[Sequence[Array]] = [
        [output[n : n + 1] if output.ndim else output for output in together] for n in range(len(rows))
    ]
    if padding:
        other += [runner(pad_rows([row], padding, lengths=_longest(rows, padding))) for row in rows]
    expected = [*alone, *alone][: len(other)]
    cut = [
        _cut_back(names, outputs, output_alone, cuts)
        for outputs, output_alone in zip(other, expected, strict=True)
    ]
    reference, candidate = iter(expected), iter(cut)
    fed = [*rows, *rows][: len(other)]
    report = compare(step, names, lambda _: next(reference), lambda _: next(candidate), fed, tolerance)
    return report, cuts


def pad_rows(
    rows: Sequence[Mapping[str, Array]],
    padding: Mapping[str, FeedPadding],
    lengths: Mapping[str, int] | None = None,
) -> Feeds:
    """Pad each row along the axes in `padding`, and join the rows to one batch.

    lengths: length to pad to, by input name; by default the length of the longest row. Raises ConversionError
    if rows of an unpadded input differ in shape.
    """
    lengths = lengths or _longest(rows, padding)
    joined = {}
    for name in rows[0]:
        arrays = [row[name] for row in rows]
        if name in padding:
            arrays = [pad_array(array, padding[name], lengths[name]) for array in arrays]
        shapes = {array.shape[1:] for array in arrays}
        if len(shapes) > 1:
            raise ConversionError(
                f"rows of {name!r} are of different length, but only {', '.join(padding)} may be padded; "
                f"declare {name!r}, too."
            )
        joined[name] = np.concatenate(arrays)
    return joined


def answers_by_row(runner: Runner, rows: Sequence[Feeds]) -> bool:
    """Return whether the model's outputs for a batch have a row for each input row.

    This is false for a detector, whose outputs have any number of boxes.
    """
    return all(output.shape[:1] == (len(rows),) for output in runner(pad_rows(rows, {})))


def _cut_back(
    names: Sequence[str], outputs: Sequence[Array], expected: Sequence[Array], cuts: Mapping[str, int]
) -> list[Array]:
    """Cut the outputs of a padded row back to the length of the outputs of the row alone."""
    return [
        cut_output(output, cuts[name], reference.shape[cuts[name]])
        if name in cuts and output.ndim == reference.ndim
        else output
        for name, output, reference in zip(names, outputs, expected, strict=True)
    ]


def _longest(rows: Sequence[Mapping[str, Array]], padding: Mapping[str, FeedPadding]) -> dict[str, int]:
    return {name: max(row[name].shape[rule.axis] for row in rows) for name, rule in padding.items()}


def _growing_axis(name: str, outputs: Sequence[Array]) -> int | None:
    try:
        axes = growing_axes(outputs)
    except ValueError as exc:
        raise ConversionError(f"output {name!r} {exc}, so rows can't be padded.") from exc
    if len(axes) > 1:
        raise ConversionError(
            f"output {name!r} grows along axes {axes} with its input; only one can be cut back, so padding "
            "can't be declared."
        )
    return axes[0] if axes else None


def parse_padding(text: str, feeds: Sequence[ProgramTensor]) -> dict[str, FeedPadding]:
    """Parse the value of --padding, "input=value,...", into axis and pad value by input name.

    The axis is the input's only dynamic axis besides the batch. Raises ConversionError for an invalid text.
    """
    pads = {}
    shapes = {feed.name: feed.shape for feed in feeds}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if name not in shapes:
            raise ConversionError(f"--padding: {name!r} is not a feed; the model has {', '.join(shapes)}.")
        axes = [axis for axis, dim in enumerate(shapes[name]) if axis and dim < 0]
        if len(axes) != 1:
            raise ConversionError(
                f"--padding: {name!r} has {len(axes)} axes that vary; one is needed to pad along."
            )
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not equals or not np.isfinite(number):
            raise ConversionError(f"--padding: {part!r} is not feed=value; write it like input_ids=0.")
        pads[name] = FeedPadding(axes[0], int(number) if number.is_integer() else number)
    return pads

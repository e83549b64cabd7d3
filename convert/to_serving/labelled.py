"""The labels of a model: their number, and the output that has their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from convert.programs.inference_program import InferenceProgram
from convert.programs.program_feeds import Feeds
from convert.programs.runners import program_runner
from pipeline.errors import ConversionError
from pipeline.models.description import OUTPUTS_KEY
from pipeline.models.label_names import class_counts, flaw_of_count
from pipeline.models.onnx_file import inspect_onnx


def check_count(labels: Sequence[str], program: InferenceProgram, batch: Feeds) -> None:
    """Raise ConversionError if no output has as many classes; run `batch` if the file lacks shapes."""
    classes = count_classes(program)
    if labels and -1 in classes:
        shapes = [output.shape for output in program_runner(program)(batch)]
        classes = class_counts(_feed_shapes(program), shapes)
    if flaw := flaw_of_count(labels, classes):
        raise ConversionError(f"{flaw}.")


def count_classes(program: InferenceProgram) -> list[int]:
    """Return how many classes each output with scores has; -1 where the file does not tell."""
    return class_counts(_feed_shapes(program), [fetch.shape for fetch in program.fetches])


def _feed_shapes(program: InferenceProgram) -> list[tuple[int, ...]]:
    return [feed.shape for feed in program.feeds]


def described_outputs(
    program: InferenceProgram, aliases: Sequence[str], labels: Sequence[str], multi_label: bool
) -> dict[str, Any]:
    """Return the entry of serving.yml for an output with several labels at once; else empty."""
    fitting = [
        (alias, fetch.name)
        for alias, fetch in zip(aliases, program.fetches, strict=True)
        if len(fetch.shape) == 2 and fetch.shape[-1] in (-1, len(labels))
    ]
    if not labels or len(fitting) != 1:
        return {}
    ((alias, name),) = fitting
    makers: Mapping[str, str] = inspect_onnx(program.program).makers if program.format == "onnx" else {}
    sigmoid = makers.get(name) == "Sigmoid"
    if not multi_label and not sigmoid:
        return {}
    activation = "none" if sigmoid else "sigmoid"
    return {OUTPUTS_KEY: {alias: {"kind": "multilabel", "activation": activation, "raw": True}}}

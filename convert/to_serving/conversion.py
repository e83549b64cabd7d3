"""From an exported program to a serving model, with its outputs and its padding proven on the way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convert.output.staging import staged
from convert.output.stamp import check_replaceable, fingerprint_of, is_current, write_stamp
from convert.programs.engines import onnx_runtime_version, paddle_version
from convert.programs.feeds import sample_batches, sample_rows
from convert.programs.program import InferenceProgram, read_program
from convert.proof.padding import parse_padding
from convert.proof.report import ParityReport
from convert.result import Conversion, ConversionOptions
from convert.to_serving.notes import ModelNotes, entailment_of
from convert.to_serving.serving_model import build_serving_model
from pipeline.errors import ConversionError


def convert_serving(
    source: Path,
    out: Path,
    *,
    fetch_alias: Sequence[str] = (),
    padding: str | None = None,
    labels: Sequence[str] = (),
    files: Sequence[Path] = (),
    notes: ModelNotes | None = None,
    earlier: Sequence[ParityReport] = (),
    options: ConversionOptions | None = None,
) -> Conversion:
    """Write the serving model of `source` to `out` (serving_server/, serving_client/).

    `source` is the folder of a Paddle program or an ONNX model, or a .onnx file.
    `fetch_alias` renames the outputs, in their order; `padding` ("input_ids=0,attention_mask=0") declares
    feeds that may be padded with a value, which is proven first; `labels` and `files` (a vocabulary) go to
    serving_server/. Of `notes`, whose files stand beside the program, it takes what isn't given, and the
    task. The reports of `earlier` steps are stored before its own. Raises ConversionError for what can't be
    used, ParityError when outputs differ.
    """
    options = options or ConversionOptions()
    steps = options.steps
    check_replaceable(out)
    facts: dict[str, Any] = {}
    if notes is not None:
        folder = source if source.is_dir() else source.parent
        fetch_alias = fetch_alias or notes.outputs
        padding = notes.padding if padding is None else padding
        labels, files = labels or notes.labels, [*files, *(folder / name for name in notes.files)]
        known = {"task": notes.task, "architecture": notes.architecture}
        facts = {key: text for key, text in known.items() if text}
    for file in files:
        if not file.is_file():
            raise ConversionError(f"{file} is not a file; name one to copy beside the model.")
    steps.step("Reading the model")
    program = read_program(source)
    aliases = fetch_aliases(program, fetch_alias)
    pads = parse_padding(padding or "", program.feeds)
    settings = {
        "aliases": aliases,
        "padding": padding or "",
        "labels": list(labels),
        **facts,
        **_engine(program),
        "tolerance": options.tolerance,
        "lengths": options.lengths,
    }
    fingerprint = fingerprint_of([*program.files, *files], settings)
    if options.dry_run:
        fetches = ", ".join(aliases)
        message = f"would write a serving model with {fetches} to {out}; nothing was written"
        return Conversion(out, False, message, fingerprint=fingerprint)
    if not options.force and is_current(out, fingerprint):
        return Conversion(out, False, f"{out} is up to date")
    with staged(out) as made:
        batches = sample_batches(program.feeds, program.id_limits, options.lengths)
        rows = sample_rows(program.feeds, program.id_limits, options.lengths) if pads else []
        reports = build_serving_model(
            program,
            made,
            aliases=aliases,
            batches=batches,
            rows=rows,
            pads=pads,
            labels=labels,
            files=files,
            facts=facts,
            earlier=earlier,
            options=options,
        )
        write_stamp(made, fingerprint, {"source": str(source.resolve())})
    entailment = entailment_of(labels)
    named = "" if entailment is None else f"; class {entailment} ({labels[entailment]}) is entailment"
    named += _mismatch(labels, program, aliases)
    return Conversion(out, True, f"{out} holds the serving model{named}", reports)


def _mismatch(labels: Sequence[str], program: InferenceProgram, aliases: Sequence[str]) -> str:
    """What is to be said where there are labels and no output has as many scores."""
    sizes = [fetch.shape[-1] if fetch.shape else 1 for fetch in program.fetches]
    if not labels or len(labels) in sizes or -1 in sizes:
        return ""
    outputs = ", ".join(f"{alias} has {size} columns" for alias, size in zip(aliases, sizes, strict=True))
    return f"; its {len(labels)} labels fit no output: {outputs}"


def fetch_aliases(program: InferenceProgram, wanted: Sequence[str]) -> tuple[str, ...]:
    """One alias for each output: those wanted, else the program's names."""
    names = tuple(alias.strip() for item in wanted for alias in item.split(",") if alias.strip())
    if not names:
        return tuple(fetch.name for fetch in program.fetches)
    outputs = [fetch.name for fetch in program.fetches]
    if len(names) != len(outputs) or len(set(names)) != len(names):
        raise ConversionError(
            f"--fetch-alias gives {', '.join(names)}, but the model has {len(outputs)} outputs "
            f"({', '.join(outputs)}); name each once, in this order."
        )
    return names


def _engine(program: InferenceProgram) -> dict[str, str]:
    """What the proof was made with: another version has to prove it again."""
    if program.format == "onnx":
        return {"onnxruntime": onnx_runtime_version()}
    return {"paddle": paddle_version()}

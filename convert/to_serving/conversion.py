"""From an exported program to a serving model, with its outputs and its padding proven on the way."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from convert.output.staging import check_replaceable, fingerprint_of, is_current, staged, write_stamp
from convert.programs.engines import onnx_runtime_version, paddle_version
from convert.programs.feeds import Feeds, sample_batches, sample_feeds
from convert.programs.input_spec import TensorSpec
from convert.programs.program import InferenceProgram, read_program
from convert.programs.runners import program_runner, serving_runner
from convert.proof.parity import (
    ParityReport,
    Runner,
    compare,
    padding_of,
    padding_parity,
    summaries,
    write_reports,
)
from convert.result import Conversion, ConversionOptions
from convert.to_serving.notes import ModelNotes, entailment_of
from pipeline.errors import ConfigError, ConversionError
from pipeline.model_additions import PARITY_FILE
from pipeline.model_digests import KEY as DIGESTS
from pipeline.model_digests import digests_of
from pipeline.serving_model import SERVER_FOLDER, FeedPadding, Padding, Variable, write_serving_model


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
        rows = sample_rows(program, options.lengths) if pads else []
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
    return Conversion(out, True, f"{out} holds the serving model{named}", reports)


def build_serving_model(
    program: InferenceProgram,
    directory: Path,
    *,
    aliases: Sequence[str],
    batches: Sequence[Feeds],
    rows: Sequence[Feeds],
    pads: Mapping[str, FeedPadding],
    labels: Sequence[str] = (),
    files: Sequence[Path] = (),
    facts: Mapping[str, Any] | None = None,
    earlier: Sequence[ParityReport] = (),
    options: ConversionOptions,
) -> tuple[ParityReport, ...]:
    """Prove the serving model on `batches`, and its padding on `rows` (batches of one), then write it.

    Returns and stores the reports, after those of `earlier` steps. `facts` are further keys of serving.yml.
    """
    feeds = [_variable(feed, feed.name, is_lod=feed.name in program.ragged) for feed in program.feeds]
    fetches = [_variable(fetch, alias) for fetch, alias in zip(program.fetches, aliases, strict=True)]
    declared: Padding | None = None
    entailment = entailment_of(labels)
    noted = {} if entailment is None else {"entailment": entailment}
    reference = program_runner(program)
    with tempfile.TemporaryDirectory() as trial:
        # Padding and parity stand in serving.yml, so they are tried on a model without one.
        write_serving_model(
            Path(trial) / "model",
            program.program,
            program.params,
            feeds,
            fetches,
            extra_files=program.data_files,
        )
        options.steps.step("Parity of static and serving model")
        serving = serving_runner(Path(trial) / "model")
        report = compare("static to serving", aliases, reference, serving, batches, options.tolerance)
        report.require()
        reports = [*earlier, replace(report, entailment=entailment)]
        if pads:
            options.steps.step("Padding")
            padded, declared = prove_padding(serving, aliases, rows, pads, options.tolerance)
            reports.append(padded)
    try:
        write_serving_model(
            directory,
            program.program,
            program.params,
            feeds,
            fetches,
            padding=declared,
            labels=labels,
            additions={
                **(facts or {}),
                **noted,
                "parity": _short(reports),
                DIGESTS: digests_of(program.files),
            },
            extra_files=[*program.data_files, *files],
        )
    except ConfigError as exc:
        raise ConversionError(exc.message) from exc
    write_reports(directory / SERVER_FOLDER / PARITY_FILE, reports)
    return tuple(reports)


def prove_padding(
    runner: Runner,
    names: Sequence[str],
    rows: Sequence[Feeds],
    pads: Mapping[str, FeedPadding],
    tolerance: float,
) -> tuple[ParityReport, Padding]:
    """Raise ParityError when a row answers otherwise in a padded batch than alone."""
    report, cuts = padding_parity(runner, names, rows, pads, tolerance)
    report.require()
    return report, padding_of(cuts, pads)


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


def parse_padding(text: str, feeds: Sequence[TensorSpec]) -> dict[str, FeedPadding]:
    """Parse "feed=value,..."; the axis is the feed's only axis, the batch aside, that varies."""
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


def sample_rows(program: InferenceProgram, lengths: Sequence[int]) -> list[Feeds]:
    """Random batches of one, of every length."""
    rng = np.random.default_rng(1)
    return [
        sample_feeds(program.feeds, program.id_limits, rng, 1, length)
        for length in (*lengths, *reversed(lengths))
    ]


def _engine(program: InferenceProgram) -> dict[str, str]:
    """What the proof was made with: another version has to prove it again."""
    if program.format == "onnx":
        return {"onnxruntime": onnx_runtime_version()}
    return {"paddle": paddle_version()}


def _variable(spec: TensorSpec, alias: str, *, is_lod: bool = False) -> Variable:
    return Variable(name=spec.name, alias=alias, dtype=spec.dtype, shape=spec.shape, is_lod=is_lod)


def _short(reports: Sequence[ParityReport]) -> dict[str, Any]:
    return {summary["step"]: summary["max_abs_diff"] for summary in summaries(reports)}

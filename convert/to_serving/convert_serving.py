"""Converts an exported model to a serving model, and compares outputs and padded batches."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from convert.output.staging import check_replaceable, hash_sources, staged, write_stamp
from convert.programs.engines import onnx_runtime_version, paddle_version
from convert.programs.inference_program import TORCH_FORMATS, InferenceProgram, read_model, read_program
from convert.programs.program_feeds import Array, Feeds
from convert.programs.runners import Runner, probe_id_limits, program_runner
from convert.proof.max_lengths import LONGEST_TRIED
from convert.proof.padding import parse_padding
from convert.proof.parity import FailedParity, ParityReport, compare, write_reports
from convert.proof.sample_files import read_texts
from convert.proof.target import create_target
from convert.result import Conversion, ConversionOptions, find_current_result
from convert.steps.conversion_environment import missing_packages
from convert.steps.isolation import run_isolated
from convert.to_serving.build_serving_model import (
    build_serving_model,
    store_example,
    store_sample,
    store_texts,
)
from convert.to_serving.notes import PROOF_KEY, ModelNotes
from convert.to_serving.sentence_proof import sentence_parity
from convert.to_serving.serving_step import serve_elsewhere
from pipeline.errors import ConversionError
from pipeline.models.additions import PARITY_FILE
from pipeline.models.description import OUTPUTS_KEY
from pipeline.models.label_names import check_label_count, class_counts, find_entailment
from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.sentence_files import SENTENCE_KEY
from pipeline.models.serving_model import SERVER_FOLDER

STEP = "any number of rows"
_SIZES = (1, 2, 5)  # of the proof's batches


def free_batch(
    program: InferenceProgram, folder: Path, options: ConversionOptions
) -> tuple[InferenceProgram, ParityReport]:
    """Write a copy of an ONNX model whose batch dimension is dynamic to `folder`; return it with a report.

    The report compares rows run together with rows run alone. Raises ConversionError with the reason if the
    model does not allow a dynamic batch.
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
    """Make the batch dimension dynamic and compare the outputs once; `fold` folds constants first.

    Raises ConversionError if the rewrite fails, FailedParity if outputs differ.
    """
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
    """Return the fixed batch size of an ONNX model's inputs.

    Raises ConversionError for a model of another engine, a dynamic batch dimension, or inputs whose first
    dimensions differ.
    """
    if program.format != "onnx":
        raise ConversionError(
            f"{program.program} is no ONNX model, and its shapes are part of it; `paddlewheel convert all "
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
    """Return a function that runs the original model on single rows, repeated to fill its fixed batch."""
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
    """Return input batches of 1, 2 and 5 rows, made from the sample or from random inputs."""
    batches = options.proof_inputs.batches(create_target(program))
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


def check_count(labels: Sequence[str], program: InferenceProgram, batch: Feeds) -> None:
    """Raise ConversionError if the number of labels fits no output of the model.

    batch: inputs to run the model on if the file does not declare its output shapes.
    """
    classes = count_classes(program)
    if labels and -1 in classes:
        shapes = [output.shape for output in program_runner(program)(batch)]
        classes = class_counts(_feed_shapes(program), shapes)
    if flaw := check_label_count(labels, classes):
        raise ConversionError(f"{flaw}.")


def count_classes(program: InferenceProgram) -> list[int]:
    """Return the number of classes of each output with scores; -1 if the model file does not declare it."""
    return class_counts(_feed_shapes(program), [fetch.shape for fetch in program.fetches])


def _feed_shapes(program: InferenceProgram) -> list[tuple[int, ...]]:
    return [feed.shape for feed in program.feeds]


def described_outputs(
    program: InferenceProgram, aliases: Sequence[str], labels: Sequence[str], multi_label: bool
) -> dict[str, Any]:
    """Return the entry of serving.yml for a multi-label output; empty for other models.

    The output counts as multi-label if `multi_label` is set or an ONNX Sigmoid computes it.
    """
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
    rebatch: bool = False,
    options: ConversionOptions | None = None,
) -> Conversion:
    """Write the serving model of `source` to `out`, in the folders serving_server/ and serving_client/.

    `source` is the folder of a Paddle, ONNX or PyTorch model, or a .onnx, .pt or .pt2 file. `fetch_alias`
    renames the outputs, in their order. `padding` ("input_ids=0,attention_mask=0") declares inputs that may
    be padded with a value, which is proven first. `labels` (names of the classes) and `files` (a vocabulary)
    go to serving_server/. `notes`, whose files are beside the model, supply the task and missing arguments.
    `rebatch` first makes a fixed batch dimension dynamic. The reports of `earlier` steps are stored before
    the new reports. The rows of a sample are stored beside the model. Raises ConversionError for an unusable
    source and for labels that fit no output, ParityError when outputs differ.
    """
    options = options or ConversionOptions()
    check_replaceable(out)
    description = _ModelDescription(fetch_alias, padding, labels, files).with_notes(notes, source)
    description.check_files()
    options.steps.step("Reading the model")
    program = read_model(source)
    aliases = fetch_aliases(program, description.fetch_alias)
    pads = parse_padding(description.padding or "", program.feeds)
    outputs = description.described or described_outputs(
        program, aliases, description.labels, description.multi_label
    )
    settings = {**outputs, "rebatch": fixed_rows(program)} if rebatch else outputs
    fingerprint = _fingerprint(program, aliases, description, settings, options)
    would = f"would write a serving model with {', '.join(aliases)} to {out}"
    current = find_current_result(out, fingerprint, would, options)
    if current is not None:
        return current
    if program.format in TORCH_FORMATS and missing_packages(["torch"]):
        return serve_elsewhere(
            source,
            out,
            files=files,
            notes=notes,
            earlier=earlier,
            arguments={"fetch_alias": list(fetch_alias), "padding": padding, "labels": list(labels)},
            options=options,
        )
    with staged(out) as folder, tempfile.TemporaryDirectory(prefix="rebatch.", dir=folder.parent) as work:
        if rebatch:
            program, report = free_batch(program, Path(work, "model"), options)
            earlier = [*earlier, report]
        if program.format in TORCH_FORMATS:
            program = replace(program, id_limits=probe_id_limits(program))
        target = create_target(program)
        batches = options.proof_inputs.batches(target)
        check_count(labels, program, batches[0])
        reports = build_serving_model(
            program,
            folder,
            aliases=aliases,
            batches=batches,
            rows=options.proof_inputs.rows(target, pads) if pads else [],
            pads=pads,
            labels=description.labels,
            files=description.files,
            facts={**description.facts, **outputs},
            earlier=earlier,
            options=options,
        )
        if description.sentences:
            reports = (*reports, *sentence_parity(folder, description.sentences, options))
            write_reports(folder / SERVER_FOLDER / PARITY_FILE, reports)
        store_sample(folder, options.proof_inputs.all_rows(target), pads)
        store_texts(folder, read_texts(options.sample))
        if options.sample and not target.by_row:
            store_example(folder, batches[0])
        write_stamp(folder, fingerprint, {"source": str(source.resolve())})
    remarks = _entailment(description.labels) + _mismatch(description.labels, program, aliases)
    return Conversion(out, True, f"{out} holds the serving model{remarks}", reports)


@dataclass(frozen=True)
class _ModelDescription:
    """A serving model's description besides graph and weights: output names, padding, labels, files, task."""

    fetch_alias: Sequence[str]
    padding: str | None
    labels: Sequence[str]
    files: Sequence[Path]
    facts: Mapping[str, Any] = field(default_factory=dict)  # further keys of serving.yml
    multi_label: bool = False
    described: Mapping[str, Any] = field(default_factory=dict)
    sentences: Mapping[str, Any] = field(default_factory=dict)

    def with_notes(self, notes: ModelNotes | None, source: Path) -> _ModelDescription:
        """Return a copy that is completed from model_notes.json. source: the converted model's path.

        The notes set the task. They also set labels, padding and outputs if the arguments do not.
        """
        if notes is None:
            return self
        folder = source if source.is_dir() else source.parent
        sentence = {key: value for key, value in notes.sentence.items() if key != PROOF_KEY}
        facts = {"task": notes.task, "architecture": notes.architecture, SENTENCE_KEY: sentence}
        return _ModelDescription(
            self.fetch_alias or notes.outputs,
            notes.padding if self.padding is None else self.padding,
            self.labels or notes.labels,
            [*self.files, *(folder / name for name in notes.files)],
            {key: value for key, value in facts.items() if value},
            notes.multi_label,
            notes.described,
            notes.sentence.get(PROOF_KEY, {}),
        )

    def check_files(self) -> None:
        for file in self.files:
            if not file.is_file():
                raise ConversionError(f"{file} is not a file; name one to copy beside the model.")


def _fingerprint(
    program: InferenceProgram,
    aliases: Sequence[str],
    description: _ModelDescription,
    outputs: Mapping[str, Any],
    options: ConversionOptions,
) -> str:
    settings = {
        "aliases": aliases,
        "padding": description.padding or "",
        "labels": list(description.labels),
        **description.facts,
        **outputs,
        **_engine_version(program),
        "tolerance": options.tolerance,
        "lengths": options.lengths,
        "longest": LONGEST_TRIED,
    }
    return hash_sources([*program.files, *description.files, *options.sample], settings)


def _entailment(labels: Sequence[str]) -> str:
    """Return a remark that names the entailment class of an NLI model; empty without this class."""
    entailment = find_entailment(labels)
    return "" if entailment is None else f"; class {entailment} ({labels[entailment]}) is entailment"


def _mismatch(labels: Sequence[str], program: InferenceProgram, aliases: Sequence[str]) -> str:
    """Return a remark if the number of labels fits no output of the model; empty if it fits one."""
    if not check_label_count(labels, count_classes(program)):
        return ""
    shapes = (f"{alias} is {list(f.shape)}" for alias, f in zip(aliases, program.fetches, strict=True))
    return f"; its {len(labels)} labels fit no output: {', '.join(shapes)}"


def fetch_aliases(program: InferenceProgram, requested: Sequence[str]) -> tuple[str, ...]:
    """Return a request name for each output: the `requested` names, or else the names in the model file.

    Raises ConversionError if their number is wrong or a name is repeated.
    """
    names = tuple(alias.strip() for item in requested for alias in item.split(",") if alias.strip())
    if not names:
        return tuple(fetch.name for fetch in program.fetches)
    outputs = [fetch.name for fetch in program.fetches]
    if len(names) != len(outputs) or len(set(names)) != len(names):
        raise ConversionError(
            f"--fetch-alias gives {', '.join(names)}, but the model has {len(outputs)} outputs "
            f"({', '.join(outputs)}); name each once, in this order."
        )
    return names


def _engine_version(program: InferenceProgram) -> dict[str, str]:
    """Return the engine's name and version for the fingerprint.

    With a new version, the model must be compared again.
    """
    if program.format == "onnx":
        return {"onnxruntime": onnx_runtime_version()}
    if program.format in TORCH_FORMATS:
        return {}  # PyTorch may be in the conversion environment alone
    return {"paddle": paddle_version()}

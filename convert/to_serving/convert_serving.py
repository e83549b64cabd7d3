"""From an exported program to a serving model, with its outputs and its padding proven on the way."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convert.output.staging import staged
from convert.output.stamp import check_replaceable, hash_sources, write_stamp
from convert.programs.engines import onnx_runtime_version, paddle_version
from convert.programs.inference_program import InferenceProgram, read_program
from convert.proof.max_lengths import LONGEST_TRIED
from convert.proof.padding import parse_padding
from convert.proof.parity_report import ParityReport
from convert.proof.stored_reports import write_reports
from convert.proof.target import create_target
from convert.result import Conversion, ConversionOptions, as_it_is
from convert.to_serving.build_serving_model import build_serving_model
from convert.to_serving.kept_sample import keep_sample
from convert.to_serving.labelled import check_count, count_classes, described_outputs
from convert.to_serving.notes import PROOF_KEY, ModelNotes
from convert.to_serving.rebatch import fixed_rows, rebatched
from convert.to_serving.sentence_proof import sentence_parity
from pipeline.errors import ConversionError
from pipeline.models.additions import PARITY_FILE
from pipeline.models.embedding_description import SENTENCE_KEY
from pipeline.models.label_names import find_entailment, flaw_of_count
from pipeline.models.serving_model import SERVER_FOLDER


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
    """Write the serving model of `source` to `out` (serving_server/, serving_client/).

    `source` is the folder of a Paddle program or an ONNX model, or a .onnx file.
    `fetch_alias` renames the outputs, in their order; `padding` ("input_ids=0,attention_mask=0") declares
    feeds that may be padded with a value, which is proven first; `labels` and `files` (a vocabulary) go to
    serving_server/. Of `notes`, whose files stand beside the program, it takes what isn't given, and the
    task. `rebatch` has a fixed batch made free first. The reports of `earlier` steps are stored before its
    own, and the rows of a sample beside the model. Raises ConversionError for what can't be used and for
    labels that no output has as many classes as, ParityError when outputs differ.
    """
    options = options or ConversionOptions()
    check_replaceable(out)
    known = _Known(fetch_alias, padding, labels, files).with_notes(notes, source)
    known.check_files()
    options.steps.step("Reading the model")
    program = read_program(source)
    aliases = fetch_aliases(program, known.fetch_alias)
    pads = parse_padding(known.padding or "", program.feeds)
    outputs = known.described or described_outputs(program, aliases, known.labels, known.multi_label)
    settings = {**outputs, "rebatch": fixed_rows(program)} if rebatch else outputs
    fingerprint = _fingerprint(program, aliases, known, settings, options)
    would = f"would write a serving model with {', '.join(aliases)} to {out}"
    kept = as_it_is(out, fingerprint, would, options)
    if kept is not None:
        return kept
    with staged(out) as made, tempfile.TemporaryDirectory(prefix="rebatch.", dir=made.parent) as work:
        if rebatch:
            program, report = rebatched(program, Path(work, "model"), options)
            earlier = [*earlier, report]
        target = create_target(program)
        batches = options.inputs.batches(target)
        check_count(labels, program, batches[0])
        reports = build_serving_model(
            program,
            made,
            aliases=aliases,
            batches=batches,
            rows=options.inputs.rows(target, pads) if pads else [],
            pads=pads,
            labels=known.labels,
            files=known.files,
            facts={**known.facts, **outputs},
            earlier=earlier,
            options=options,
        )
        if known.sentences:
            reports = (*reports, *sentence_parity(made, known.sentences, options))
            write_reports(made / SERVER_FOLDER / PARITY_FILE, reports)
        keep_sample(made, options.inputs.all_rows(target), pads)
        write_stamp(made, fingerprint, {"source": str(source.resolve())})
    said = _entailment(known.labels) + _mismatch(known.labels, program, aliases)
    return Conversion(out, True, f"{out} holds the serving model{said}", reports)


@dataclass(frozen=True)
class _Known:
    """What is known of a model besides its program. facts: further keys of serving.yml."""

    fetch_alias: Sequence[str]
    padding: str | None
    labels: Sequence[str]
    files: Sequence[Path]
    facts: Mapping[str, Any] = field(default_factory=dict)
    multi_label: bool = False
    described: Mapping[str, Any] = field(default_factory=dict)
    sentences: Mapping[str, Any] = field(default_factory=dict)

    def with_notes(self, notes: ModelNotes | None, source: Path) -> _Known:
        """What isn't given is taken from the notes, and the task."""
        if notes is None:
            return self
        folder = source if source.is_dir() else source.parent
        sentence = {key: value for key, value in notes.sentence.items() if key != PROOF_KEY}
        facts = {"task": notes.task, "architecture": notes.architecture, SENTENCE_KEY: sentence}
        return _Known(
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
    known: _Known,
    outputs: Mapping[str, Any],
    options: ConversionOptions,
) -> str:
    settings = {
        "aliases": aliases,
        "padding": known.padding or "",
        "labels": list(known.labels),
        **known.facts,
        **outputs,
        **_engine(program),
        "tolerance": options.tolerance,
        "lengths": options.lengths,
        "longest": LONGEST_TRIED,
    }
    return hash_sources([*program.files, *known.files, *options.sample], settings)


def _entailment(labels: Sequence[str]) -> str:
    """What is to be said of the class by which an NLI model answers zero-shot questions."""
    entailment = find_entailment(labels)
    return "" if entailment is None else f"; class {entailment} ({labels[entailment]}) is entailment"


def _mismatch(labels: Sequence[str], program: InferenceProgram, aliases: Sequence[str]) -> str:
    """What is to be said where a configuration has labels and no output has as many scores."""
    if not flaw_of_count(labels, count_classes(program)):
        return ""
    shapes = (f"{alias} is {list(f.shape)}" for alias, f in zip(aliases, program.fetches, strict=True))
    return f"; its {len(labels)} labels fit no output: {', '.join(shapes)}"


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

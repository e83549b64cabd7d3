"""Exports a PaddleNLP model, by name, folder or configuration, to a Paddle inference model with notes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convert.from_paddle.export import check_format, format_settings
from convert.from_paddlenlp.encoder import positional
from convert.from_paddlenlp.paddlenlp_source import HEADS, TASKS, PaddleNLPSource, find_source, refuse_script
from convert.output.staging import check_replaceable, hash_sources, staged, write_stamp
from convert.programs.engines import paddle_version
from convert.programs.program_feeds import parse_input_spec
from convert.proof.parity import parse_report, write_reports
from convert.result import FORMATS, Conversion, ConversionOptions, find_current_result
from convert.steps.conversion_environment import conversion_python
from convert.steps.isolation import run_isolated
from convert.to_serving.notes import ModelNotes, text_padding, write_notes
from pipeline.errors import ConversionError
from pipeline.models.additions import PARITY_FILE
from pipeline.models.label_names import get_labels, is_multi_label

_CONVERTER = "PaddleNLP"
_NEEDS = ("paddlenlp",)


def convert_paddlenlp(
    source: str,
    out: Path,
    *,
    task: str = "",
    labels: Sequence[str] = (),
    num_labels: int = 0,
    input_spec: str = "",
    random_weights: bool = False,
    program_format: str = FORMATS[0],
    options: ConversionOptions | None = None,
) -> Conversion:
    """Export the PaddleNLP model `source` to a Paddle inference model in `out`, with notes and tokenizer.

    `source` is a folder (config.json or model_config.json, weights), a configuration file, or a name that
    PaddleNLP knows; nothing is downloaded. `task` is one of TASKS; by default it is derived from the class in
    the configuration, or is the first task. `num_labels` or `labels` replace the classes of the
    configuration. `input_spec` has the form of `parse_input_spec`; by default it is ids, types and mask of
    the architecture. `program_format` is one of FORMATS. Raises ConversionError and ParityError; in both
    cases nothing is written.
    """
    options = options or ConversionOptions()
    refuse_script(source)
    check_format(program_format)
    check_replaceable(out)
    if input_spec:
        positional(parse_input_spec(input_spec))
    _check_classes(labels, num_labels)
    model = find_source(source, random_weights=random_weights)
    task = task or _find_task(model.config)
    names = tuple(labels) or (get_labels(model.config or {}) if not num_labels else ())
    conversion_python(_NEEDS)
    head_arguments = {"task": task, "input_spec": input_spec}
    proof = {"tolerance": options.tolerance, "lengths": list(options.lengths)}
    made_with = {"name": model.name, "random_weights": random_weights, "paddle": paddle_version()}
    written_as = format_settings(program_format)
    settings = {**head_arguments, **proof, **made_with, **written_as, "labels": [*names, num_labels]}
    fingerprint = hash_sources([*model.files, *model.tokenizer, *options.sample], settings)
    current = find_current_result(out, fingerprint, f"would export {source} ({task}) to {out}", options)
    if current is not None:
        return current
    with staged(out) as folder:
        head = {"labels": num_labels or len(labels), "program_format": program_format}
        exported = _export(model, folder, {**head_arguments, **proof, **head}, options)
        report = parse_report(exported["report"])
        report.require()
        write_reports(folder / PARITY_FILE, [report])
        for file in model.tokenizer:
            shutil.copyfile(file, folder / file.name)
        write_notes(folder, _notes(exported, task, names, model))
        write_stamp(folder, fingerprint, {"source": source, "feeds": exported["feeds"]})
    return Conversion(
        out, True, f"{out} holds the inference model ({'; '.join(exported['feeds'])})", (report,)
    )


def _check_classes(labels: Sequence[str], number: int) -> None:
    if number < 0:
        raise ConversionError(f"--num-labels {number} is not a number of classes.")
    if labels and number and len(labels) != number:
        raise ConversionError(f"--labels names {len(labels)} classes, --num-labels says {number}.")


def _export(
    model: PaddleNLPSource, folder: Path, arguments: dict[str, Any], options: ConversionOptions
) -> dict[str, Any]:
    """Export the model to `folder` in a separate process; return the result of `export_step`."""
    built_from = {"config": model.config, "weights": str(model.weights or "")}
    source = {"name": model.name} if model.config is None else built_from
    exported: dict[str, Any] = run_isolated(
        "convert.from_paddlenlp.encoder:export_step",
        {**arguments, "source": source, "out": str(folder), **_sample(model, options)},
        converter=_CONVERTER,
        needs=_NEEDS,
        steps=options.steps,
        timeout_s=options.step_timeout_s,
    )
    return exported


def _sample(model: PaddleNLPSource, options: ConversionOptions) -> dict[str, Any]:
    folder = str(model.tokenizer[0].parent) if model.tokenizer else None
    return {"sample": [str(path) for path in options.sample], "tokenizer": folder}


def _find_task(config: dict[str, Any] | None) -> str:
    named = str(next(iter((config or {}).get("architectures") or []), ""))
    return next((task for task, head in HEADS.items() if named.endswith(head)), TASKS[0])


def _notes(
    exported: dict[str, Any], task: str, labels: tuple[str, ...], model: PaddleNLPSource
) -> ModelNotes:
    feeds = [feed.partition(":")[0] for feed in exported["feeds"]]
    return ModelNotes(
        task=task,
        architecture=exported["architecture"],
        labels=labels,
        padding=text_padding(feeds, exported["pad_id"]),
        outputs=("logits",),
        files=tuple(file.name for file in model.tokenizer),
        multi_label=is_multi_label(model.config or {}),
    )

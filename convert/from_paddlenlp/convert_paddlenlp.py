"""From a PaddleNLP model, by name, folder or configuration, to an inference program and notes about it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convert.from_paddle.pdmodel import check_format, format_settings
from convert.from_paddlenlp.encoder import positional
from convert.from_paddlenlp.paddlenlp_source import HEADS, TASKS, PaddleNLPSource, find_source, refuse_script
from convert.output.staging import staged
from convert.output.stamp import check_replaceable, hash_sources, write_stamp
from convert.programs.engines import paddle_version
from convert.programs.input_spec import parse_input_spec
from convert.proof.stored_reports import parse_report, write_reports
from convert.result import FORMATS, Conversion, ConversionOptions, as_it_is
from convert.steps.conversion_environment import conversion_python
from convert.steps.isolation import run_isolated
from convert.to_serving.notes import ModelNotes, text_padding, write_notes
from pipeline.errors import ConversionError
from pipeline.models.additions import PARITY_FILE
from pipeline.models.pretrained_config import get_labels, is_multi_label

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
    """Export the PaddleNLP model `source` to `out`, with its notes and tokenizer files beside the program.

    `source` is a folder (config.json or model_config.json, weights), a configuration file, or a name that
    PaddleNLP knows; nothing is downloaded. `task` is one of TASKS; without it the class that the
    configuration names decides, else the first. `num_labels` or `labels` give the head its classes, where
    the configuration has others; `input_spec` is as `parse_input_spec` reads it, without it ids, types and
    mask as the architecture has them; `program_format` is one of FORMATS. Raises ConversionError and
    ParityError; then nothing is written.
    """
    options = options or ConversionOptions()
    refuse_script(source)
    check_format(program_format)
    check_replaceable(out)
    if input_spec:
        positional(parse_input_spec(input_spec))
    _check_classes(labels, num_labels)
    found = find_source(source, random_weights=random_weights)
    task = task or _find_task(found.config)
    names = tuple(labels) or (get_labels(found.config or {}) if not num_labels else ())
    conversion_python(_NEEDS)
    asked = {"task": task, "input_spec": input_spec}
    proof = {"tolerance": options.tolerance, "lengths": list(options.lengths)}
    made_with = {"name": found.name, "random_weights": random_weights, "paddle": paddle_version()}
    written_as = format_settings(program_format)
    settings = {**asked, **proof, **made_with, **written_as, "labels": [*names, num_labels]}
    fingerprint = hash_sources([*found.files, *found.tokenizer, *options.sample], settings)
    kept = as_it_is(out, fingerprint, f"would export {source} ({task}) to {out}", options)
    if kept is not None:
        return kept
    with staged(out) as made:
        head = {"labels": num_labels or len(labels), "program_format": program_format}
        told = _export(found, made, {**asked, **proof, **head}, options)
        report = parse_report(told["report"])
        report.require()
        write_reports(made / PARITY_FILE, [report])
        for file in found.tokenizer:
            shutil.copyfile(file, made / file.name)
        write_notes(made, _notes(told, task, names, found))
        write_stamp(made, fingerprint, {"source": source, "feeds": told["feeds"]})
    return Conversion(out, True, f"{out} holds the inference model ({'; '.join(told['feeds'])})", (report,))


def _check_classes(labels: Sequence[str], number: int) -> None:
    if number < 0:
        raise ConversionError(f"--num-labels {number} is not a number of classes.")
    if labels and number and len(labels) != number:
        raise ConversionError(f"--labels names {len(labels)} classes, --num-labels says {number}.")


def _export(
    found: PaddleNLPSource, made: Path, asked: dict[str, Any], options: ConversionOptions
) -> dict[str, Any]:
    """What `export_step` tells of the program that it has put into the folder `made`."""
    built_from = {"config": found.config, "weights": str(found.weights or "")}
    source = {"name": found.name} if found.config is None else built_from
    told: dict[str, Any] = run_isolated(
        "convert.from_paddlenlp.encoder:export_step",
        {**asked, "source": source, "out": str(made), **_sample(found, options)},
        converter=_CONVERTER,
        needs=_NEEDS,
        steps=options.steps,
        timeout_s=options.step_timeout_s,
    )
    return told


def _sample(found: PaddleNLPSource, options: ConversionOptions) -> dict[str, Any]:
    folder = str(found.tokenizer[0].parent) if found.tokenizer else None
    return {"sample": [str(path) for path in options.sample], "tokenizer": folder}


def _find_task(config: dict[str, Any] | None) -> str:
    named = str(next(iter((config or {}).get("architectures") or []), ""))
    return next((task for task, head in HEADS.items() if named.endswith(head)), TASKS[0])


def _notes(told: dict[str, Any], task: str, labels: tuple[str, ...], found: PaddleNLPSource) -> ModelNotes:
    feeds = [feed.partition(":")[0] for feed in told["feeds"]]
    return ModelNotes(
        task=task,
        architecture=told["architecture"],
        labels=labels,
        padding=text_padding(feeds, told["pad_id"]),
        outputs=("logits",),
        files=tuple(file.name for file in found.tokenizer),
        multi_label=is_multi_label(found.config or {}),
    )

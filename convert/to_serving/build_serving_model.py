"""Compares a serving model's outputs with its source, alone and in padded batches, and writes its files."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from convert.programs.inference_program import PADDLE_FORMATS, InferenceProgram
from convert.programs.program_feeds import Feeds, ProgramTensor
from convert.programs.runners import Runner, program_runner, serving_runner
from convert.proof.max_lengths import max_lengths
from convert.proof.padding import pad_rows, prove_declared
from convert.proof.parity import ParityReport, compare, summaries, write_reports
from convert.proof.target import create_target
from convert.result import ConversionOptions
from pipeline.errors import ConfigError, ConversionError
from pipeline.models.additions import MAX_LENGTHS, PARITY_FILE
from pipeline.models.digests import KEY as DIGESTS
from pipeline.models.digests import hash_files
from pipeline.models.label_names import find_entailment
from pipeline.models.sentence_files import LAYERS_FILE
from pipeline.models.serving_model import (
    BODIES_FILE,
    EXAMPLE_FILE,
    SAMPLE_FILE,
    SERVER_FOLDER,
    FeedPadding,
    Padding,
    Variable,
    write_serving_model,
)


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
    """Compare a serving model's outputs with the exported model's, then write it to `directory`.

    aliases: names of the outputs in requests. batches: inputs of the comparison. rows, pads: batches of one
    row, compared alone and padded to a common length. facts: further keys of serving.yml. earlier: reports of
    previous steps. Returns and stores the earlier and the new reports. Raises ParityError when outputs
    differ.
    """
    feeds = [_variable(feed, feed.name, is_lod=feed.name in program.ragged) for feed in program.feeds]
    fetches: Sequence[Variable] = [
        _variable(fetch, alias) for fetch, alias in zip(program.fetches, aliases, strict=True)
    ]
    (parity, *padding), declared, fetches, limits = _prove(
        program, feeds, fetches, batches, rows, pads, options
    )
    entailment = find_entailment(labels)
    noted = {} if entailment is None else {"entailment": entailment}
    reports = (*earlier, replace(parity, entailment=entailment), *padding)
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
                **({MAX_LENGTHS: limits} if limits else {}),
                "parity": _short(reports),
                DIGESTS: hash_files([*program.files, *(file for file in files if file.name == LAYERS_FILE)]),
            },
            extra_files=[*program.data_files, *files],
        )
    except ConfigError as exc:
        raise ConversionError(exc.message) from exc
    write_reports(directory / SERVER_FOLDER / PARITY_FILE, reports)
    return reports


def _prove(
    program: InferenceProgram,
    feeds: Sequence[Variable],
    fetches: Sequence[Variable],
    batches: Sequence[Feeds],
    rows: Sequence[Feeds],
    pads: Mapping[str, FeedPadding],
    options: ConversionOptions,
) -> tuple[list[ParityReport], Padding | None, Sequence[Variable], dict[str, Any]]:
    """Return the reports, the proven padding, the outputs with real shapes, and the maximum input lengths.

    Raises ParityError if an output differs, or a row has a different answer in a padded batch.
    """
    aliases = [fetch.alias for fetch in fetches]
    with tempfile.TemporaryDirectory() as trial:
        # Padding and parity stand in serving.yml, so they are tried on a model without one.
        folder = Path(trial) / "model"
        write_serving_model(
            folder, program.program, program.params, feeds, fetches, extra_files=program.data_files
        )
        options.steps.step("Parity of static and serving model")
        reference, serving = program_runner(program), serving_runner(folder)
        parity = compare("static to serving", aliases, reference, serving, batches, options.tolerance)
        parity.require()
        if program.format in PADDLE_FORMATS:
            _try_onednn(folder, reference, aliases, batches, options)
        limits = _max_lengths(program, max(batches, key=_longest_axis), options)
        if not pads:
            return [parity], None, serving.fetches, limits
        options.steps.step("Padding")
        target = create_target(program)
        longest = {name: (entry["axis"], entry["length"]) for name, entry in limits.items()}
        target = replace(target, feeds=tuple(replace(v, longest=longest.get(v.name)) for v in target.feeds))
        checks = program.format == "onnx"
        padding, declared = prove_declared(
            serving, aliases, target, rows, pads, checks_ids=checks, tolerance=options.tolerance
        )
        padding.require()
    return [parity, padding], declared, serving.fetches, limits


def _try_onednn(
    folder: Path,
    reference: Runner,
    aliases: Sequence[str],
    batches: Sequence[Feeds],
    options: ConversionOptions,
) -> None:
    """Print a warning if oneDNN gives different outputs.

    The conversion does not fail, because oneDNN is off by default.
    """
    try:
        onednn = serving_runner(folder, onednn=True)
        failure = compare("oneDNN", aliases, reference, onednn, batches, options.tolerance).failure
    except ConversionError as exc:
        failure = f"oneDNN: {exc.message.rstrip('.')}"
    if failure:
        options.steps.say(f"{failure}. Keep use_mkldnn: false for this model.")


def _longest_axis(feeds: Feeds) -> int:
    """Return the greatest length of any axis besides the batch, over all arrays."""
    return max((length for array in feeds.values() for length in array.shape[1:]), default=0)


def _max_lengths(program: InferenceProgram, batch: Feeds, options: ConversionOptions) -> dict[str, Any]:
    """Find the maximum length that the model accepts for each input; return the entries for serving.yml.

    The model runs without graph optimisation, because optimised operators may not check their inputs. Empty
    for a model whose inputs can't be split into rows.
    """
    target = create_target(program)
    if not target.by_row:
        return {}
    options.steps.step("The greatest lengths")
    row = {name: array[:1] for name, array in batch.items()}
    limits = max_lengths(program_runner(program), target, row)
    for length in dict.fromkeys(length for _, length in limits.values()):
        names = ", ".join(name for name, (_, limit) in limits.items() if limit == length)
        options.steps.say(f"The model takes {names} up to a length of {length}.")
    return {name: {"axis": axis, "length": length} for name, (axis, length) in limits.items()}


def _variable(spec: ProgramTensor, alias: str, *, is_lod: bool = False) -> Variable:
    return Variable(name=spec.name, alias=alias, dtype=spec.dtype, shape=spec.shape, is_lod=is_lod)


def _short(reports: Sequence[ParityReport]) -> dict[str, Any]:
    return {summary["step"]: summary["max_abs_diff"] for summary in summaries(reports)}


MAX_ROWS = 2048
MAX_BYTES = 256 << 20  # 256 images of 3 x 224 x 224 floats are 154 MB


def store_sample(model: Path, rows: Sequence[Feeds], padding: Mapping[str, FeedPadding]) -> None:
    """Write input rows to sample.npz of the serving model in folder `model`, as one padded batch.

    Each row is a batch of one row, by alias. If rows can't be joined, only rows of the most common shape are
    stored. An existing file is kept.
    """
    file = model / SERVER_FOLDER / SAMPLE_FILE
    if not rows or file.exists():
        return
    groups: dict[object, list[Feeds]] = {}
    for row in rows:
        groups.setdefault(_fixed_dims(row, padding), []).append(row)
    alike = max(groups.values(), key=len)
    longest_bytes = max(sum(array.nbytes for array in row.values()) for row in alike)
    max_rows = min(MAX_ROWS, max(1, MAX_BYTES // max(1, longest_bytes)))
    _save(file, pad_rows(alike[:max_rows], padding))


MAX_TEXTS = 256  # of sample.jsonl: as many as `auto` reads
MAX_TEXT_BYTES = 1 << 20
_TEXT_KEY = "text"  # the services of `paddlewheel new` have this key; `auto` uses that of the service


def store_texts(model: Path, texts: Sequence[str]) -> None:
    """Write texts as request bodies to sample.jsonl of the serving model in folder `model`.

    Of many texts, an evenly spaced selection is written. Nothing is written if there are no texts or the file
    exists.
    """
    file = model / SERVER_FOLDER / BODIES_FILE
    if not texts or file.exists():
        return
    lines, size = [], 0
    for text in texts[:: -(-len(texts) // MAX_TEXTS)]:
        line = json.dumps({"key": [_TEXT_KEY], "value": [text]}, ensure_ascii=False) + "\n"
        size += len(line.encode())
        if size > MAX_TEXT_BYTES:
            break
        lines.append(line)
    file.write_text("".join(lines), encoding="utf-8")


def store_example(model: Path, feeds: Feeds) -> None:
    """Write a request's input arrays, by alias, to example.npz of a serving model without a batch axis."""
    _save(model / SERVER_FOLDER / EXAMPLE_FILE, feeds)


def _save(file: Path, feeds: Feeds) -> None:
    # Texts are objects, which would be pickled.
    plain: dict[str, Any] = {
        name: array.astype(str) if array.dtype == object else array for name, array in feeds.items()
    }
    np.savez_compressed(file, **plain)


def _fixed_dims(row: Feeds, padding: Mapping[str, FeedPadding]) -> object:
    """Return a row's shapes without the axes that may be padded; rows with equal results can be joined."""
    axes = {name: padding[name].axis if name in padding else 0 for name in row}
    return tuple((name, np.delete(array.shape, axes[name]).tobytes()) for name, array in row.items())

"""Variants: alternative files of a model, such as ONNX or int8, for other engines or precisions.

    serving_server/variants/<name>/    model files, parity.json, variant.json

They have the inputs and outputs of the model, under its names, and the model's serving.yml holds for them,
too. `parity.json` has the reports that compare the variant with the model. `variant.json` has the digests of
the variant's files and of the files that it was made of. A variant that is damaged, that failed, or that was
made of other weights than the model has now is never run. A variant in a lower precision, as variant.json
tells, is only run where that precision is requested.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.errors import ConfigError
from pipeline.models.additions import MAX_BYTES, PARITY_FILE, failed_reports
from pipeline.models.digests import SAMPLE, SHA256, are_digests, differing, hash_files
from pipeline.models.serving_model import (
    ModelFiles,
    ServingModel,
    choose_version,
    find_model_files,
    find_programs,
    list_older_versions,
    load_serving_model,
    require_library,
    server_folder,
)
from pipeline.plugins import ENGINES, find

log = logging.getLogger(__name__)

FOLDER = "variants"
RECORD = "variant.json"
FP32, INT8 = "fp32", "int8"  # arithmetic of a variant's program
_DIGESTS, _SOURCES, _PRECISION = "digests", "made_of", "precision"


@dataclass(frozen=True)
class Variant:
    """An alternative form of a model, for other engines or another precision, in its own folder."""

    name: str  # of its folder, such as "onnx"
    directory: Path
    engines: tuple[str, ...]  # engines that can run the program, in alphabetical order
    digest: str  # SHA-256 of the proved program; empty: not recorded
    reject_reason: str  # why the variant is never run; empty: its outputs match the model's
    precision: str = FP32  # of its arithmetic

    @property
    def passed(self) -> bool:
        """Whether the variant may be run: its files are complete, and its outputs match the model's."""
        return not self.reject_reason


def find_variants(directory: Path | str) -> tuple[Variant, ...]:
    """Return all variants of a model, by name, including rejected variants; empty if there are none.

    directory: the model's folder. Raises ConfigError for a directory without a model.
    """
    folder = server_folder(Path(directory))
    place = folder / FOLDER
    if not place.is_dir():
        return ()
    return tuple(_variant(path, folder) for path in sorted(place.iterdir()) if path.is_dir())


def load_for_engine(directory: Path | str, engine: str | None, precision: str = FP32) -> ServingModel:
    """Load a model for an engine: its own model file, else a variant for that engine.

    For a lower `precision`, a variant in that precision is preferred. If `engine` is None, the engine of the
    model's own file is used. Raises ConfigError if there is no suitable file.
    """
    folder = server_folder(Path(directory))
    lower = [] if engine is None or precision == FP32 else variants_in(folder, engine, precision)
    if engine is None or (find_programs(engine, folder) and not lower):
        return load_serving_model(directory, engine)
    variants = lower or variants_in(folder, engine)
    fitting = next((variant for variant in variants if variant.passed), None)
    if fitting is None:
        if variants:
            why = "; ".join(f"{variant.directory}: {variant.reject_reason}" for variant in variants)
            form = f"{precision} form" if lower else "form"
            raise ConfigError(f"engine: {engine} runs no {form} of {folder} ({why}): convert the model again")
        return load_serving_model(directory, engine)  # which tells that it is not this engine's
    files = find_model_files(fitting.directory, engine)
    log.info("engine: %s runs %s in place of the model's own program", engine, files.program)
    return as_variant(load_serving_model(directory), fitting.name, files, fitting.precision)


def load_newest_version(directory: Path, requested: int | None, engine: str | None) -> ServingModel:
    """Load the requested version of a model, or the newest version whose files are complete.

    engine: None for the engine of the model's file. Logs each version that is passed over. Raises the
    ConfigError of the newest version if none is complete.
    """
    newest = choose_version(directory, requested)
    candidates = [newest, *(list_older_versions(newest) if requested is None else ())]
    errors: list[ConfigError] = []
    for candidate in candidates:
        try:
            model = load_for_engine(candidate.directory, engine)
        except ConfigError as exc:
            errors.append(exc)
            continue
        for error in errors:
            log.warning("A newer version than %s can't be read: %s", candidate.version, error.message)
        return model
    raise errors[0]


def variants_in(directory: Path | str, engine: str, precision: str = FP32) -> list[Variant]:
    """Return a model's variants in this precision that an engine can run, including rejected variants."""
    variants = find_variants(directory)
    return [variant for variant in variants if engine in variant.engines and variant.precision == precision]


class WayToRun(NamedTuple):
    """An engine, with the form of a model that it would run, or the reason why it can't run any."""

    engine: str
    model: ServingModel | None  # None where it runs no form of the model
    refusal: str  # why the engine can't run the model; if there is a model, its library is missing; or empty


def ways_to_run(directory: Path | str, engines: Iterable[str] | None = None) -> list[WayToRun]:
    """Return, for each engine, which form of a model the engine would run, or why it can't run the model.

    engines: names of engines; None for all.
    """
    runs = []
    for engine in find(ENGINES) if engines is None else engines:
        model = None
        refusal = ""
        try:
            model = load_for_engine(directory, engine)
            require_library(model)
        except ConfigError as exc:
            refusal = exc.message
        runs.append(WayToRun(engine, model, refusal))
    return runs


def as_variant(model: ServingModel, name: str, files: ModelFiles, precision: str = FP32) -> ServingModel:
    """Return the model with the files of its variant `name`, which computes in this precision."""
    return replace(
        model,
        program=files.program,
        params=files.params,
        format=files.format,
        engine=files.engine,
        variant=name,
        lowered=precision != FP32,
    )


def write_record(
    directory: Path, files: Iterable[Path], sources: Iterable[Path], precision: str = FP32
) -> None:
    """Write a variant's variant.json: its precision, and digests of its files and of their sources."""
    record: dict[str, Any] = {_DIGESTS: hash_files(files), _SOURCES: hash_files(sources)}
    if precision != FP32:
        record[_PRECISION] = precision
    (directory / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _variant(directory: Path, model_folder: Path) -> Variant:
    programs = {engine: find_programs(engine, directory) for engine in find(ENGINES)}
    engines = tuple(engine for engine, engine_programs in programs.items() if engine_programs)
    if not engines:
        return Variant(directory.name, directory, (), "", "it holds no program that an engine here runs")
    program = programs[engines[0]][0]
    try:
        record = _read_record(directory / RECORD)
    except ConfigError as exc:
        return Variant(directory.name, directory, engines, "", exc.message)
    reject_reason = _find_reject_reason(directory, model_folder, record)
    if program.name not in record.files:
        reject_reason = reject_reason or f"{program.name} is not the file that was proved"
    digest = record.files.get(program.name, {}).get(SHA256, "")
    return Variant(directory.name, directory, engines, digest, reject_reason, record.precision)


class _Record(NamedTuple):
    """Content of a variant's variant.json."""

    files: dict[str, dict[str, str]]  # digests of the variant's files
    sources: dict[str, dict[str, str]]  # digests of the files that it was made of
    precision: str


def _find_reject_reason(directory: Path, model_folder: Path, record: _Record) -> str:
    if not (directory / PARITY_FILE).is_file():
        return f"it has no {PARITY_FILE}, so that nobody knows whether it answers as the model does"
    if failures := failed_reports(directory / PARITY_FILE):
        return "; ".join(failures)
    if changed := differing(directory, record.files, SAMPLE):
        return f"{changed[0]} is damaged, or not the file that was proved"
    if changed := differing(model_folder, record.sources, SAMPLE):
        return f"it was made of another {changed[0]} than the model has now"
    return ""


def _read_record(path: Path) -> _Record:
    try:
        with path.open("rb") as file:
            record = json.loads(file.read(MAX_BYTES))
        files, sources, precision = record[_DIGESTS], record[_SOURCES], record.get(_PRECISION, FP32)
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ConfigError(f"{path} can't be read ({exc})") from exc
    if not are_digests(files) or not are_digests(sources):
        raise ConfigError(f"{path} holds no digests")
    if precision not in (FP32, INT8):
        raise ConfigError(f"{path}: precision {precision!r} is neither {FP32} nor {INT8}")
    return _Record(files, sources, precision)

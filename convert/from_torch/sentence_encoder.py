"""The sentence encoder in a source folder: settings, weights of its layers, and vectors for the proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convert.result import ConversionOptions
from convert.steps.isolation import run_isolated
from convert.to_serving.notes import PROOF_KEY
from convert.to_serving.sentence_proof import NOT_COMPARED
from pipeline.errors import ConfigError, ConversionError
from pipeline.models.sentence_files import LAYERS_FILE, SentenceFiles, read_sentence_files


@dataclass(frozen=True)
class SentenceEncoder:
    """A sentence encoder as the notes of a model keep it."""

    notes: Mapping[str, Any] = field(
        default_factory=dict
    )  # settings, with vectors of the source for the proof
    files: tuple[Path, ...] = ()  # what goes beside the model


def sentence_files(folder: Path) -> SentenceFiles:
    """Return the settings in a folder of Sentence Transformers. Raises ConversionError."""
    try:
        return read_sentence_files(folder)
    except ConfigError as exc:
        raise ConversionError(f"{exc.message.rstrip('.')}.") from exc


def read_encoder(
    folder: Path, work: Path, options: ConversionOptions, model: Path | None = None
) -> SentenceEncoder:
    """Return the sentence encoder of a folder, with vectors of its own; an empty one for other folders.

    work: a folder for its files. model: the source where that is no model of PyTorch's; without a conversion
    environment its vectors are not proved, and Dense modules can't be read.
    """
    source = sentence_files(folder)
    if not source.settings:
        return SentenceEncoder()
    layers = work / LAYERS_FILE
    arguments = {
        "source": str(folder),
        "settings": dict(source.settings),
        "dense": list(map(str, source.dense)),
        "layers_file": str(layers),
        "model": str(model or ""),
    }
    try:
        vectors, reason = _run_step(arguments, options), f"{model} does not run on texts alone"
    except ConversionError as exc:
        if model is None or source.dense:
            raise
        vectors, reason = {}, exc.message.rstrip(".")
    if not vectors:
        options.steps.say(f"{NOT_COMPARED}: {reason}.")
    proof = {PROOF_KEY: vectors} if vectors else {}
    return SentenceEncoder({**source.settings, **proof}, (layers,) if source.dense else ())


def _run_step(arguments: Mapping[str, Any], options: ConversionOptions) -> Mapping[str, Any]:
    vectors: Mapping[str, Any] = run_isolated(
        "convert.from_torch.sentence_step:sentence_step",
        arguments,
        converter="Sentence Transformers",
        needs=("torch", "transformers", *(["onnxruntime"] if arguments["model"] else [])),
        steps=options.steps,
        timeout_s=options.step_timeout_s,
    )
    return vectors

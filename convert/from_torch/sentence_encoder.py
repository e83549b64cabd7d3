"""Reads a Sentence Transformers folder: settings, Dense weights, and embeddings to compare with."""

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
    """Settings and files of a Sentence Transformers model, for model_notes.json; empty for other models."""

    notes: Mapping[str, Any] = field(
        default_factory=dict
    )  # settings, with vectors of the source for the proof
    files: tuple[Path, ...] = ()  # what goes beside the model


def sentence_files(folder: Path) -> SentenceFiles:
    """Read the settings of a Sentence Transformers folder, such as pooling and prompts, and their files.

    Empty for other folders. Raises ConversionError for unusable settings.
    """
    try:
        return read_sentence_files(folder)
    except ConfigError as exc:
        raise ConversionError(f"{exc.message.rstrip('.')}.") from exc


def read_encoder(
    folder: Path, work: Path, options: ConversionOptions, model: Path | None = None
) -> SentenceEncoder:
    """Read a Sentence Transformers folder, and compute the source model's embeddings of some texts.

    The converted model's embeddings are compared with them later. work: a folder for the weights of Dense
    modules. model: the exported model file (ONNX) if the folder has no PyTorch model. Without an environment
    with PyTorch, the embeddings of such a folder are not compared, and a Dense module raises ConversionError.
    Returns an empty encoder for other folders.
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

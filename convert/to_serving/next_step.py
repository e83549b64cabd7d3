"""Suggests the `paddlewheel` command to run after a conversion, by the content of the output folder."""

from __future__ import annotations

import shlex
from pathlib import Path

from convert.to_serving.notes import NOTES_FILE
from pipeline.launch.commands import paddlewheel
from pipeline.models.description import INPUTS_KEY
from pipeline.models.serving_model import SERVER_FOLDER, ServingModel, load_serving_model

_CHANNELS = {1, 3}
ENCODER = "feature-extraction"  # as the notes of a conversion name the task


def next_step(out: Path) -> str:
    """Return the next `paddlewheel` command for a conversion's output folder; empty for other folders."""
    folder = shlex.quote(str(out))
    if (out / SERVER_FOLDER).is_dir():
        model = load_serving_model(out)
        if model.additions.get("task") == ENCODER and _has_tokenizer(model.directory):
            return f"{paddlewheel()} text {folder}"
        return f"{paddlewheel()} new myservice --model {folder}{_input_option(model)}"
    if not any(file for pattern in ("*.pdiparams", "*.onnx", "*.pt") for file in out.glob(pattern)):
        return ""
    notes = " --with-notes" if (out / NOTES_FILE).is_file() else ""
    return f"{paddlewheel()} convert serving {folder} models/mine{notes}"


def _input_option(model: ServingModel) -> str:
    """Return the option --input text or --input image for the model; empty if neither fits.

    A model of tabular data needs no option, because its serving.yml describes the columns.
    """
    if INPUTS_KEY in model.additions:
        return ""
    if "input_ids" in {feed.alias for feed in model.feeds} and _has_tokenizer(model.directory):
        return " --input text"
    shape = model.feeds[0].shape
    image = len(model.feeds) == 1 and len(shape) == 4 and _CHANNELS & {shape[1], shape[3]}
    return " --input image" if model.labels and image else ""


def _has_tokenizer(folder: Path) -> bool:
    """Return whether the folder has a tokenizer that a service loads without user code.

    Such tokenizers are tokenizer.json and BERT's vocab.txt.
    """
    words = folder / "vocab.txt"
    return (folder / "tokenizer.json").is_file() or (
        words.is_file() and "[CLS]" in words.read_text("utf-8", errors="replace").split("\n")
    )

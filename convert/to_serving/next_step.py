"""What one would run after a conversion, by what its folder holds now."""

from __future__ import annotations

import shlex
from pathlib import Path

from convert.to_serving.notes import NOTES_FILE
from pipeline.launch.commands import interpreter, paddlewheel
from pipeline.models.serving_model import SERVER_FOLDER


def next_step(out: Path) -> str:
    """A command; empty where there is none to advise: TorchScript is served by no engine here."""
    folder = shlex.quote(str(out))
    if (out / SERVER_FOLDER).is_dir():
        return f"{paddlewheel()} new myservice --model {folder}"
    if not any(out.glob("*.pdiparams")) and not any(out.glob("*.onnx")):
        return ""
    notes = " --with-notes" if (out / NOTES_FILE).is_file() else ""
    return f"{interpreter()} -m convert serving {folder} models/mine{notes}"

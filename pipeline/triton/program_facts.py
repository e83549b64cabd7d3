"""What a model's file tells of its inputs and outputs; one of Paddle's is looked at in another process.

    $XDG_CACHE_HOME/paddlewheel/programs/KEY/serving_server/    links to a program, with the prototxt it lacks

KEY is of the files' paths, sizes and times, so that a look is taken once for each state of them.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.engines.base import Engine, engine_named
from pipeline.errors import ConfigError
from pipeline.models.serving_model import SERVER_CONF, SERVER_FOLDER, find_model_files, is_serving_model
from pipeline.models.signature import Variable, read_signature, signature_text
from pipeline.process.cache_folder import cache_folder
from pipeline.process.helper_process import HelperFailed, run_helper

TIMEOUT_S = 120.0
_TELLER = "convert.programs.told"  # imports Paddle, and so is run, not imported


class ProgramFacts(NamedTuple):
    """folder: that the engine loads the model from."""

    feeds: Sequence[Variable]
    fetches: Sequence[Variable]
    folder: Path


def facts_of(program: Path, backend: str) -> ProgramFacts:
    """Of the program in a version's folder. Raises ConfigError for one that can't be read."""
    engine = engine_named(backend)
    if (program.parent / SERVER_CONF).is_file():
        return ProgramFacts(*read_signature(program.parent / SERVER_CONF), program.parent)
    if engine.self_described and is_serving_model(program.parent):
        return ProgramFacts(*engine.signature_of(program), program.parent)
    folder = _described(program, engine)
    return ProgramFacts(*read_signature(folder / SERVER_CONF, batched=False), folder)


def _described(program: Path, engine: Engine) -> Path:
    """A folder with links to the program's files, and the prototxt that tells its feeds."""
    files = find_model_files(program.parent, engine.name)
    paths = [path for path in (files.program, files.params) if path is not None]
    folder = cache_folder("programs") / _key(paths) / SERVER_FOLDER
    if (folder / SERVER_CONF).is_file():
        return folder
    text = signature_text(*engine.signature_of(program)) if engine.self_described else _told(program.parent)
    try:
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent.parent))
        (made / SERVER_FOLDER).mkdir()
        for path in paths:
            (made / SERVER_FOLDER / path.name).symlink_to(path.absolute())
        (made / SERVER_FOLDER / SERVER_CONF).write_text(text, "utf-8")
        made.rename(folder.parent)
    except OSError as exc:
        if not (folder / SERVER_CONF).is_file():  # else another process was faster
            raise ConfigError(f"{folder} can't be written ({exc.strerror}): set XDG_CACHE_HOME") from exc
    return folder


def _told(folder: Path) -> str:
    """The prototxt of the program in a folder."""
    try:
        helper = run_helper(_TELLER, str(folder.absolute()), timeout_s=TIMEOUT_S)
    except HelperFailed as exc:
        raise ConfigError(f"{folder}: reading its program {exc.message}") from exc
    if helper.status:
        lines = helper.stderr.strip().splitlines() or [f"left with {helper.status}"]
        raise ConfigError(f"{folder}: {lines[-1]}")
    feeds, fetches = (
        [Variable(name, name, dtype, tuple(shape)) for name, dtype, shape in side]
        for side in json.loads(helper.last_line())
    )
    return signature_text(feeds, fetches)


def _key(paths: Sequence[Path]) -> str:
    states = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(repr(states).encode()).hexdigest()[:32]

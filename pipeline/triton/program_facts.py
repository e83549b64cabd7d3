"""What a model's file tells of its inputs and outputs; one of Paddle's is looked at in another process.

    $XDG_CACHE_HOME/paddlewheel/programs/KEY/serving_server/    links to a program, with the prototxt it lacks

KEY is of the files' paths, sizes and times, so that a look is taken once for each state of them.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.engines.base import Engine, engine_named
from pipeline.engines.openvino.ir_file import inspect_id_limits
from pipeline.errors import ConfigError
from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.serving_model import SERVER_CONF, SERVER_FOLDER, find_model_files, is_serving_model
from pipeline.models.signature import Variable, read_signature, signature_text
from pipeline.process.cache_folder import cache_folder
from pipeline.process.helper_process import HelperFailed, run_helper

TIMEOUT_S = 120.0
_TELLER = "convert.programs.told"  # imports Paddle, and so is run, not imported
# Operators of ONNX, and those that ONNX Runtime's optimiser writes.
_KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})


class ProgramFacts(NamedTuple):
    """folder: that the engine loads the model from."""

    feeds: Sequence[Variable]
    fetches: Sequence[Variable]
    folder: Path


def read_program_facts(program: Path, backend: str) -> ProgramFacts:
    """Of the program in a version's folder. Raises ConfigError for one that can't be read."""
    engine = engine_named(backend)
    if (program.parent / SERVER_CONF).is_file():
        return ProgramFacts(*read_signature(program.parent / SERVER_CONF), program.parent)
    if engine.self_described and is_serving_model(program.parent):
        return ProgramFacts(*engine.signature_of(program), program.parent)
    folder = _described(program, engine)
    return ProgramFacts(*read_signature(folder / SERVER_CONF, batched=False), folder)


def find_id_limits(program: Path, backend: str) -> Mapping[str, int]:
    """Return by feed the number of embeddings that it is looked up in, as far as the files tell."""
    if program.suffix == ".onnx":
        return inspect_onnx(program).id_limits
    if program.suffix == ".xml":
        return inspect_id_limits(program)
    if backend == "paddle":
        limits: Mapping[str, int] = _read_program(program.parent)[2]
        return limits
    return {}


def unknown_operators(program: Path) -> str:
    """Return the names of operator sets that are neither ONNX's nor ONNX Runtime's; empty without any."""
    if program.suffix != ".onnx":
        return ""
    return ", ".join(sorted(inspect_onnx(program).domains - _KNOWN_DOMAINS))


def _described(program: Path, engine: Engine) -> Path:
    """A folder with links to the program's files, and the prototxt that tells its feeds."""
    files = find_model_files(program.parent, engine.name)
    paths = [path for path in (files.program, files.params) if path is not None]
    folder = cache_folder("programs") / _key(paths) / SERVER_FOLDER
    if (folder / SERVER_CONF).is_file():
        return folder
    text = (
        signature_text(*engine.signature_of(program))
        if engine.self_described
        else _find_prototxt(program.parent)
    )
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


def _find_prototxt(folder: Path) -> str:
    """The prototxt of the program in a folder."""
    feeds, fetches = (
        [Variable(name, name, dtype, tuple(shape)) for name, dtype, shape in side]
        for side in _read_program(folder)[:2]
    )
    return signature_text(feeds, fetches)


def _read_program(folder: Path) -> tuple[Any, Any, Any]:
    """Return feeds, fetches and id limits of the program in a folder, as the helper prints them."""
    try:
        helper = run_helper(_TELLER, str(folder.absolute()), timeout_s=TIMEOUT_S)
    except HelperFailed as exc:
        raise ConfigError(f"{folder}: reading its program {exc.message}") from exc
    if helper.status:
        lines = helper.stderr.strip().splitlines() or [f"left with {helper.status}"]
        raise ConfigError(f"{folder}: {lines[-1]}")
    feeds, fetches, id_limits = json.loads(helper.last_line())
    return feeds, fetches, id_limits


def _key(paths: Sequence[Path]) -> str:
    states = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(repr(states).encode()).hexdigest()[:32]

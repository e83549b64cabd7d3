"""Where choices are kept: beside the model, or in the user's cache folder where that can't be written.

A choice counts for one model on one kind of machine: the key holds a digest of the model's files, the CPU,
the number of cores, the versions of the engines, and what the configuration leaves open. So an image that
was started once holds the choice of all its replicas.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import platform
import secrets
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from pipeline.errors import ConfigError
from pipeline.models.digests import hash_sample
from pipeline.models.serving_model import ServingModel
from pipeline.plugins import ENGINES, PROJECT, find
from pipeline.process.cache_folder import cache_folder
from pipeline.process.control_group import usable_cores
from pipeline.tuning.choice import Choice

log = logging.getLogger(__name__)

FILE = "choices.json"
MOST_KEPT = 32  # the oldest goes first
_DISTRIBUTIONS = ("paddlepaddle", "paddlepaddle-gpu", "onnxruntime", "onnxruntime-gpu", "openvino")


class Kept(msgspec.Struct):
    """A file of choices. machines: what each key was made of, for people who read the file."""

    choices: dict[str, Choice] = {}
    machines: dict[str, str] = {}


def get_choice_key(model: ServingModel, besides: Sequence[str]) -> tuple[str, str]:
    """The key of a choice, and in words what it was made of.

    besides: what it depends on besides the model's own files and the machine.
    """
    files = [model.program, *([model.params] if model.params else [])]
    facts = "; ".join(
        [machine(), *versions(), *besides, *(f"{file.name} {hash_sample(file)}" for file in files)]
    )
    return hashlib.sha256(facts.encode()).hexdigest()[:24], facts


def machine() -> str:
    """The kind of this machine: its CPU's name and the cores that this process may use."""
    name = platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name}, {usable_cores()} cores"


def versions() -> list[str]:
    """The engines' distributions that are installed, each with its version."""
    found = []
    added = sorted({one.distribution for one in find(ENGINES).values()} - {PROJECT, *_DISTRIBUTIONS})
    for name in (*_DISTRIBUTIONS, *added):
        with contextlib.suppress(PackageNotFoundError):
            if told := version(name):  # None of one whose files are gone
                found.append(f"{name} {told}")
    return found


def read(model: ServingModel, key: str) -> Choice | None:
    """The choice that is kept under the key, wherever that is."""
    for path in _places(model, key):
        try:
            choice = _load(path).choices.get(key)
        except ConfigError as exc:
            log.warning("%s: measured anew", exc.message)
            continue
        if choice is not None:
            return choice
    return None


def write(model: ServingModel, key: str, facts: str, choice: Choice) -> Choice:
    """Keep a choice; returns the one that counts: that of another start which was through before, if any."""
    places = list(_places(model, key))
    for path in places:
        with contextlib.suppress(ConfigError):
            if (others := _load(path).choices.get(key)) is not None:
                return others
    for path in places:
        kept = Kept()
        with contextlib.suppress(ConfigError):
            kept = _load(path)
        kept.choices[key], kept.machines[key] = choice, facts
        for old in list(kept.choices)[:-MOST_KEPT]:
            del kept.choices[old]
            kept.machines.pop(old, None)
        if _is_written(path, kept):
            return choice
    log.warning("the choice can't be kept in %s: each start measures again", " or ".join(map(str, places)))
    return choice


def _is_written(path: Path, kept: Kept) -> bool:
    # Not by the number of the process: in containers that share the folder all have the same.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(kept)))
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        return False
    return True


def _places(model: ServingModel, key: str) -> Iterator[Path]:
    yield model.directory / FILE
    yield cache_folder("choices") / f"{key}.json"


def _load(path: Path) -> Kept:
    """What the file holds; nothing where it is not there. Raises ConfigError for a damaged one."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Kept)
    except OSError:
        return Kept()
    except msgspec.MsgspecError as exc:
        raise ConfigError(f"{path} is no file of choices ({exc})") from exc
    if not all(choice.is_whole for choice in kept.choices.values()):
        raise ConfigError(f"{path} is no file of choices (one has no times)")
    return kept

"""Prints how large environments and CPU images are, by the sum of their files: python docker/sizes.py

Run it with an environment that holds all of requirements/serving.txt: it looks there, and installs nothing.
"""

import importlib.metadata
import re
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import trim
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
BASE_IMAGE_MB = 140  # python:3.11-slim and libgomp1, unpacked
DEMO_MODEL_MB = 6  # `du -m models/demo` after `paddlewheel convert demo`
PACKAGES, COMPAT = ("pipeline", "client", "convert"), "compat"
PRINT_BYTECODE_BYTES = """
import os, sys
cached = [getattr(module, "__cached__", None) or "" for module in list(sys.modules.values())]
print(sum(os.path.getsize(path) for path in cached if "/site-packages/" in path and os.path.exists(path)))
"""


def environments_mb() -> Mapping[str, float]:
    """What `pip install paddlewheel` and its extras install, and `make setup`, by the name of the row."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed, extras = project["dependencies"], project["optional-dependencies"]
    ours = _folders_bytes(*PACKAGES)
    installed = {
        "paddlewheel": ours + _bytes(_files(_closure(needed))),
        "paddlewheel[paddle]": ours + _bytes(_files(_closure(needed + extras["paddle"]))),
        "make setup": ours + _folders_bytes(COMPAT) + _bytes(_files(_locked("serving.txt"))),
    }
    return {name: size / 1e6 for name, size in installed.items()}


def images_mb() -> Mapping[str, float]:
    """By the Dockerfile: base image, locked packages as trimmed and compiled where imported, project."""
    whole = f"{trim.IMPORTED_IN_SERVING}, {', '.join(trim.OF_EXTRAS)}"
    copied = _bytes(_context()) + _bytecode_bytes(*PACKAGES, COMPAT)
    default = _trimmed_bytes("serving.txt", whole) + copied
    onnx = _trimmed_bytes("onnx.txt", trim.IMPORTED_IN_SERVING) + _folders_bytes(*PACKAGES, COMPAT)
    return {
        "docker/Dockerfile": BASE_IMAGE_MB + DEMO_MODEL_MB + default / 1e6,
        "docker/Dockerfile.onnx": BASE_IMAGE_MB + onnx / 1e6,
    }


def _trimmed_bytes(lock: str, imported: str) -> int:
    patterns = [p for p in trim.read_patterns(ROOT / "docker/trim.txt") if not p.endswith(".pyc")]
    trimmed = set(trim.trimmed_files(Path(sysconfig.get_path("purelib")).resolve(), patterns))
    files = [path for path in _files(_locked(lock)) - trimmed if path.suffix != ".pyc"]
    command = [sys.executable, "-c", f"import {imported}\n{PRINT_BYTECODE_BYTES}"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return _bytes(files) + int(told.split()[-1])


def _closure(requirements: Iterable[str]) -> set[str]:
    """The names of what pip would install for these on this Python."""
    found: set[str] = set()
    wanted = [Requirement(line) for line in requirements]
    while wanted:
        one = wanted.pop()
        name = re.sub(r"[-_.]+", "-", one.name).lower()
        if name not in found:
            found.add(name)
            needed = map(Requirement, importlib.metadata.requires(one.name) or ())
            wanted += [r for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def _locked(lock: str) -> set[str]:
    lines = (ROOT / "requirements" / lock).read_text("utf-8").splitlines()
    return {line.split("==")[0] for line in lines if "==" in line}


def _files(names: Iterable[str]) -> set[Path]:
    files = [file for name in names for file in importlib.metadata.files(name) or ()]
    return {path for path in (Path(str(file.locate())).resolve() for file in files) if path.is_file()}


def _bytes(files: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def _folders_bytes(*names: str) -> int:
    """Of our folders, as they are installed: compiled."""
    sources = [path for path in _tracked() if path.relative_to(ROOT).parts[0] in names]
    return _bytes(sources) + _bytecode_bytes(*names)


def _bytecode_bytes(*names: str) -> int:
    cached = f"**/__pycache__/*.{sys.implementation.cache_tag}.pyc"
    return sum(_bytes((ROOT / name).glob(cached)) for name in names)


def _context() -> list[Path]:
    """The files that `COPY . .` takes, without the models."""
    left_out = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    return [path for path in _tracked() if path.relative_to(ROOT).parts[0] not in left_out]


def _tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in files if path.is_file()]


if __name__ == "__main__":
    for name, megabytes in {**environments_mb(), **images_mb()}.items():
        sys.stdout.write(f"{name:24}{megabytes:6.0f} MB\n")

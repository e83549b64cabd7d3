"""Packages of a Python model: an environment at `EXECUTION_ENV_PATH`, or a requirements.txt in its folder.

    $XDG_CACHE_HOME/paddlewheel/environments/KEY/    an unpacked environment, or the packages of a
    requirements.txt

KEY is a digest of the file's content, so all workers and all later starts share the folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.process.folders import cache_folder
from pipeline.process.helper_process import HelperFailed, HelperResult, run_helper

PARAMETER, MODEL_FOLDER = "EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY"
REQUIREMENTS = "requirements.txt"
NOT_INSTALLED = "{} is not installed; --install-requirements has pip install what is missing"
TIMEOUT_S = 600.0  # of one run of pip
_MAX_REPORT_BYTES = 128 << 20  # pip's report holds the descriptions of all packages
_INDEX_OPTIONS = (
    "--index-url",
    "-i ",
    "--extra-index-url",
    "--no-index",
    "--find-links",
    "-f ",
)  # to install from
_PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def find_requirements(folder: Path, version: str) -> list[Path]:
    """Return the paths of the existing requirements.txt files of a model and of its version."""
    return [path for path in (folder / REQUIREMENTS, folder / version / REQUIREMENTS) if path.is_file()]


def add_model_packages(
    config: Mapping[str, Any], folder: Path, version: str, install_requirements: bool
) -> list[Path]:
    """Make a Python model's packages importable in this process: its environment and its requirements.txt.

    folder: the model's folder. install_requirements: let pip install the packages. Installing runs code of
    the packages, so the operator must allow it. Returns each requirements.txt that is not installed. Raises
    ConfigError for an environment or packages that can't be used.
    """
    environment = config["parameters"].get(PARAMETER, {}).get("string_value", "")
    if environment:
        _add_to_path(_unpack_packages(Path(environment.replace(MODEL_FOLDER, str(folder)))))
    requirements = find_requirements(folder, version)
    if not install_requirements:
        return requirements
    for path in requirements:
        _add_to_path(_install_requirements(path))
    return []


def _add_to_path(packages: Path | None) -> None:
    if packages is not None and str(packages) not in sys.path:
        sys.path.insert(0, str(packages))


def _unpack_packages(path: Path) -> Path:
    """Return the site-packages folder of an environment, which is a folder or a conda-pack archive to unpack.

    Raises ConfigError for a missing environment, or an environment of another Python version.
    """
    if path.is_file():
        path = _load_or_create(path.read_bytes(), lambda folder: _unpack_archive(path, folder))
    elif not path.is_dir():
        raise ConfigError(f"{PARAMETER}: there is no {path}")
    if (path / _PACKAGES).is_dir():
        return path / _PACKAGES
    versions = (
        ", ".join(sorted(python_folder.name for python_folder in path.glob("lib/python3*"))) or "no Python"
    )
    raise ConfigError(
        f"{PARAMETER}: {path} has {versions}; this server runs Python {sys.version_info.major}."
        f"{sys.version_info.minor}: make the environment with that"
    )


def _unpack_archive(archive: Path, into: Path) -> None:
    try:
        with tarfile.open(archive) as file:
            file.extractall(into, filter="data")
    except (OSError, tarfile.TarError) as exc:
        raise ConfigError(f"{PARAMETER}: {archive} can't be unpacked: {exc}") from exc


def _install_requirements(requirements: Path) -> Path | None:
    """Install the missing packages of a requirements.txt into a cache folder, and return the folder.

    None if no package is missing. Raises ConfigError if pip fails.
    """
    if shutil.which("pip") is None and _pip("--version").status:
        raise ConfigError(
            f"{requirements} is there, and no pip to install it with: install pip, or its packages"
        )
    report = _pip("install", "--dry-run", "--quiet", "--report", "-", "-r", str(requirements))
    _check_pip_result(report, requirements)
    missing = [
        f"{package['metadata']['name']}=={package['metadata']['version']}"
        for package in json.loads(report.stdout)["install"]
    ]
    if not missing:
        return None

    index_options = [
        line for line in requirements.read_text("utf-8").splitlines() if line.startswith(_INDEX_OPTIONS)
    ]
    pinned = "\n".join([*index_options, *sorted(missing), ""])

    def install(into: Path) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(pinned)
            file.flush()
            _check_pip_result(
                _pip("install", "--quiet", "--no-deps", "--target", str(into), "-r", file.name), requirements
            )

    return _load_or_create(pinned.encode(), install)


def _pip(*arguments: str) -> HelperResult:
    try:
        return run_helper("pip", *arguments, timeout_s=TIMEOUT_S, max_output_bytes=_MAX_REPORT_BYTES)
    except HelperFailed as exc:
        return HelperResult(1, "", f"pip {exc.message}")


def _check_pip_result(helper: HelperResult, requirements: Path) -> None:
    if helper.status:
        lines = [line for line in helper.stderr.splitlines() if line.startswith("ERROR")] or [
            helper.stderr.strip()
        ]
        raise ConfigError(f"{requirements} can't be installed: {lines[-1]}")


def _load_or_create(content: bytes, make: Callable[[Path], None]) -> Path:
    """Return the cache folder for this content. If the folder does not exist, `make` fills it first.

    A file lock makes other processes wait until the folder is filled.
    """
    cache = cache_folder("environments")
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"{cache} can't be made ({exc.strerror}): set XDG_CACHE_HOME") from exc
    folder = cache / hashlib.sha256(_PACKAGES.encode() + content).hexdigest()[:32]
    with (cache / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            partial = Path(tempfile.mkdtemp(dir=cache))
            try:
                make(partial)
                partial.rename(folder)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
    return folder

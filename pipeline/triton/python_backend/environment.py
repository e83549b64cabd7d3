"""Packages that a Python model brings along: an `EXECUTION_ENV_PATH`, or a requirements.txt beside it.

    $XDG_CACHE_HOME/paddlewheel/environments/KEY/    an unpacked environment, or the packages of a
    requirements.txt

KEY is of the file's content, so that all workers, and all starts, share what was made once.
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
from pipeline.process.cache_folder import cache_folder
from pipeline.process.helper_process import HelperFailed, HelperResult, run_helper

PARAMETER, MODEL_FOLDER = "EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY"
REQUIREMENTS = "requirements.txt"
NOT_INSTALLED = "{} is not installed; --install-requirements has pip install what is missing"
TIMEOUT_S = 600.0  # of one run of pip
_MAX_REPORT_BYTES = 128 << 20  # pip's report holds the descriptions of all packages
_PLACES = ("--index-url", "-i ", "--extra-index-url", "--no-index", "--find-links", "-f ")  # to install from
_PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def find_requirements(folder: Path, version: str) -> list[Path]:
    """Return the requirements.txt of a model, and that of its version."""
    return [path for path in (folder / REQUIREMENTS, folder / version / REQUIREMENTS) if path.is_file()]


def offer_packages(
    config: Mapping[str, Any], folder: Path, version: str, install_requirements: bool
) -> list[Path]:
    """Have this process find what the model brings along. folder: the model's. Raises ConfigError.

    Returns each requirements.txt that is not installed: pip runs code of any package that the file names, so
    whoever starts the server has to allow that.
    """
    told = config["parameters"].get(PARAMETER, {}).get("string_value", "")
    if told:
        _offer(_unpack_packages(Path(told.replace(MODEL_FOLDER, str(folder)))))
    requirements = find_requirements(folder, version)
    if not install_requirements:
        return requirements
    for path in requirements:
        _offer(_installed(path))
    return []


def _offer(packages: Path | None) -> None:
    if packages is not None and str(packages) not in sys.path:
        sys.path.insert(0, str(packages))


def _unpack_packages(path: Path) -> Path:
    """The packages of an environment: a folder, or the archive of one as conda-pack makes it."""
    if path.is_file():
        path = _made(path.read_bytes(), lambda made: _unpack(path, made))
    elif not path.is_dir():
        raise ConfigError(f"{PARAMETER}: there is no {path}")
    if (path / _PACKAGES).is_dir():
        return path / _PACKAGES
    others = ", ".join(sorted(found.name for found in path.glob("lib/python3*"))) or "no Python"
    raise ConfigError(
        f"{PARAMETER}: {path} has {others}; this server runs Python {sys.version_info.major}."
        f"{sys.version_info.minor}: make the environment with that"
    )


def _unpack(archive: Path, into: Path) -> None:
    try:
        with tarfile.open(archive) as file:
            file.extractall(into, filter="data")
    except (OSError, tarfile.TarError) as exc:
        raise ConfigError(f"{PARAMETER}: {archive} can't be unpacked: {exc}") from exc


def _installed(requirements: Path) -> Path | None:
    """Where the packages are that this environment lacks; None where it has them all."""
    if shutil.which("pip") is None and _pip("--version").status:
        raise ConfigError(
            f"{requirements} is there, and no pip to install it with: install pip, or its packages"
        )
    report = _pip("install", "--dry-run", "--quiet", "--report", "-", "-r", str(requirements))
    _check(report, requirements)
    wanted = [
        f"{one['metadata']['name']}=={one['metadata']['version']}"
        for one in json.loads(report.stdout)["install"]
    ]
    if not wanted:
        return None

    places = [line for line in requirements.read_text("utf-8").splitlines() if line.startswith(_PLACES)]
    pinned = "\n".join([*places, *sorted(wanted), ""])

    def install(into: Path) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(pinned)
            file.flush()
            _check(
                _pip("install", "--quiet", "--no-deps", "--target", str(into), "-r", file.name), requirements
            )

    return _made(pinned.encode(), install)


def _pip(*arguments: str) -> HelperResult:
    try:
        return run_helper("pip", *arguments, timeout_s=TIMEOUT_S, max_output_bytes=_MAX_REPORT_BYTES)
    except HelperFailed as exc:
        return HelperResult(1, "", f"pip {exc.message}")


def _check(helper: HelperResult, requirements: Path) -> None:
    if helper.status:
        lines = [line for line in helper.stderr.splitlines() if line.startswith("ERROR")] or [
            helper.stderr.strip()
        ]
        raise ConfigError(f"{requirements} can't be installed: {lines[-1]}")


def _made(content: bytes, make: Callable[[Path], None]) -> Path:
    """The folder that was made of this content, by whoever came first."""
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

"""Pins what pyproject.toml asks for: `python requirements/lock.py` writes the .txt files beside it.

Run it with the oldest supported Python: a version chosen there also installs on the newer ones. Each pin of
the serving environment, and of what is installed beside it, has the SHA-256 of every wheel that a supported
machine may choose. pip refuses other files. `--keep-versions` writes the hashes of the present pins anew.
"""

import argparse
import atexit
import functools
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

# Each index has other builds of PyTorch. Few services need S3, Redis or Ray; groups below have them.
UNLOCKED_EXTRAS = ("torch", "ray", "s3", "redis")
SOURCES = "jieba,seqeval"  # published without wheels; paddlenlp asks for them
HERE = Path(__file__).resolve().parent
HEADER = "# Written by `make lock` from pyproject.toml, for Linux x86-64 and Python 3.11-3.13. Do not edit.\n"
PYTHONS = ("3.11", "3.12", "3.13")
HASHED = {  # locks with hashes, and the versions of Python that install them
    **dict.fromkeys(
        ("serving.txt", "onnx.txt", "dev.txt", "page.txt", "ray.txt", "system.txt", "mutants.txt"), PYTHONS
    ),
    "to-onnx.txt": ("3.11",),
}
PLATFORM = "x86_64-manylinux_2_40"  # also takes the wheels for older glibc
PIN = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)


def resolve(requirements: list[str], constraints: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the version by name of everything the requirements need, chosen by pip; install nothing."""
    with tempfile.TemporaryDirectory() as folder:
        report, bounds = Path(folder, "report.json"), Path(folder, "constraints.txt")
        bounds.write_text("".join(_lines(constraints or {})), encoding="utf-8")
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += ["--only-binary", ":all:", "--no-binary", SOURCES, "--report", str(report)]
        command += ["--constraint", str(bounds)]
        subprocess.run([*command, *requirements], check=True)
        installs = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {entry["metadata"]["name"]: entry["metadata"]["version"].split("+")[0] for entry in installs}


@functools.cache
def _uv() -> str:
    """Install uv, which tells the hashes of files without fetching them, for this run alone."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, "uv"], check=True)
    return str(Path(folder, "bin", "uv"))


def find_hashes(pins: Mapping[str, str], pythons: Iterable[str]) -> dict[str, list[str]]:
    """Return the SHA-256 of the wheels of each pin for these versions of Python, by the normalised name."""
    hashes: dict[str, set[str]] = {_normalised(name): set() for name in pins}
    with tempfile.TemporaryDirectory() as folder:
        pinned, lock = Path(folder, "pins.txt"), Path(folder, "pylock.toml")
        pinned.write_text("".join(_lines(pins)), encoding="utf-8")
        for python in pythons:
            command = [_uv(), "pip", "compile", "--quiet", "--no-deps"]
            command += ["--python-version", python, "--python-platform", PLATFORM, "--format", "pylock.toml"]
            subprocess.run([*command, "--output-file", str(lock), str(pinned)], check=True)
            for package in tomllib.loads(lock.read_text(encoding="utf-8"))["packages"]:
                hashes[package["name"]] |= set(_wheel_hashes(package))
    if missing := [name for name, found in hashes.items() if not found]:
        raise SystemExit(f"no wheels with hashes: {', '.join(missing)}")
    return {name: sorted(found) for name, found in hashes.items()}


def _wheel_hashes(package: Mapping[str, Any]) -> Iterator[str]:
    for wheel in package.get("wheels", ()):
        yield wheel["hashes"]["sha256"]


def _lines(pins: Mapping[str, str], hashes: Mapping[str, list[str]] | None = None) -> Iterator[str]:
    """Yield a line for each pin: pip takes its hashes as options on the same line."""
    for name, version in sorted(pins.items(), key=lambda pin: pin[0].lower()):
        options = [f" --hash=sha256:{digest}" for digest in (hashes or {}).get(_normalised(name), ())]
        yield f"{name}=={version}{''.join(options)}\n"


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def write(path: Path, pins: Mapping[str, str], first_lines: str = "") -> None:
    hashes = find_hashes(pins, HASHED[path.name]) if path.name in HASHED else None
    path.write_text(HEADER + first_lines + "".join(_lines(pins, hashes)), encoding="utf-8")


def read_pins(path: Path) -> dict[str, str]:
    return dict(PIN.findall(path.read_text(encoding="utf-8")))


def write_hashes() -> None:
    """Write the hashes of the locks that have them, and leave their versions."""
    for name in HASHED:
        path = HERE / name
        first_lines = re.findall(r"^-r .*\n", path.read_text(encoding="utf-8"), re.MULTILINE)
        write(path, read_pins(path), "".join(first_lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python requirements/lock.py")
    parser.add_argument("--keep-versions", action="store_true", help="write the hashes alone")
    if parser.parse_args().keep_versions:
        write_hashes()
        return
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    compat = tomllib.loads((HERE.parent / "compat" / "pyproject.toml").read_text(encoding="utf-8"))
    own = project["project"]["name"]
    core = project["project"]["dependencies"] + project["build-system"]["requires"]
    core += [name for name in compat["project"]["dependencies"] if name != own]
    options = project["project"]["optional-dependencies"]
    extras = [extra for name, extra in options.items() if name not in UNLOCKED_EXTRAS]
    asked = core + [name for extra in extras for name in extra if not name.startswith(own)]
    asked += compat["project"]["optional-dependencies"]["nlp"]
    serving = resolve(asked)
    write(HERE / "serving.txt", serving)
    # Without any extra: ONNX Runtime is the only engine.
    write(HERE / "onnx.txt", resolve(core, constraints=serving))
    tested = project["dependency-groups"]["dev"]
    tested += [
        name for extra in ("vision", "speech") for name in compat["project"]["optional-dependencies"][extra]
    ]
    both = resolve(asked + tested, constraints=serving)
    dev = {name: version for name, version in both.items() if name not in serving}
    write(HERE / "dev.txt", dev, "-r serving.txt\n")
    for group in ("page", "ray", "system", "mutants"):
        more = resolve(asked + tested + project["dependency-groups"][group], constraints=serving)
        pins = {name: version for name, version in more.items() if name not in both}
        write(HERE / f"{group}.txt", pins, "-r dev.txt\n")
    # Beside serving where Python is 3.11: not all of them have wheels for later ones.
    more = resolve(asked + project["dependency-groups"]["to-onnx"], constraints=serving)
    write(HERE / "to-onnx.txt", {name: version for name, version in more.items() if name not in serving})
    # Apart from the others: the converters need older versions of what serving has, too.
    converted = resolve(asked + project["dependency-groups"]["convert"])
    write(HERE / "convert.txt", converted)
    # Apart even from these, and without what it requires: that is among them, but for CUDA.
    write(HERE / "torch.txt", dict(pin.split("==") for pin in project["dependency-groups"]["torch"]))
    # What PaddleNLP needs of these, for who installs it beside a service: left alone, pip may choose NumPy 1.
    write(HERE / "paddlenlp-constraints.txt", resolve(["paddlenlp"], constraints=converted))


if __name__ == "__main__":
    main()

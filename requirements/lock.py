"""Pins what pyproject.toml asks for: `python requirements/lock.py` writes the .txt files beside it.

Run it with the oldest supported Python: a version chosen there also installs on the newer ones.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

SOURCES = "jieba,seqeval"  # published without wheels; paddlenlp asks for them
HERE = Path(__file__).resolve().parent
HEADER = "# Written by `make lock` from pyproject.toml, for Linux x86-64 and Python 3.11-3.13. Do not edit.\n"


def resolve(requirements: list[str], constraints: Path | None = None) -> dict[str, str]:
    """Version by name of everything the requirements need, chosen by pip; installs nothing."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += ["--only-binary", ":all:", "--no-binary", SOURCES, "--report", str(report)]
        if constraints is not None:
            command += ["--constraint", str(constraints)]
        subprocess.run([*command, *requirements], check=True)
        installs = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {entry["metadata"]["name"]: entry["metadata"]["version"].split("+")[0] for entry in installs}


def write(path: Path, pins: dict[str, str], first_lines: str = "") -> None:
    lines = [f"{name}=={version}\n" for name, version in sorted(pins.items(), key=lambda pin: pin[0].lower())]
    path.write_text(HEADER + first_lines + "".join(lines), encoding="utf-8")


def main() -> None:
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    compat = tomllib.loads((HERE.parent / "compat" / "pyproject.toml").read_text(encoding="utf-8"))
    own = project["project"]["name"]
    core = project["project"]["dependencies"] + project["build-system"]["requires"]
    core += [name for name in compat["project"]["dependencies"] if name != own]
    extras = [*project["project"]["optional-dependencies"].values()]
    asked = core + [name for extra in extras for name in extra if not name.startswith(own)]
    asked += compat["project"]["optional-dependencies"]["nlp"]
    serving = resolve(asked)
    write(HERE / "serving.txt", serving)
    # Without any extra: ONNX Runtime is the only engine.
    write(HERE / "onnx.txt", resolve(core, constraints=HERE / "serving.txt"))
    tested = project["dependency-groups"]["dev"] + compat["project"]["optional-dependencies"]["vision"]
    both = resolve(asked + tested, constraints=HERE / "serving.txt")
    dev = {name: version for name, version in both.items() if name not in serving}
    write(HERE / "dev.txt", dev, "-r serving.txt\n")
    for group in ("page", "system"):
        more = resolve(asked + tested + project["dependency-groups"][group], constraints=HERE / "serving.txt")
        pins = {name: version for name, version in more.items() if name not in both}
        write(HERE / f"{group}.txt", pins, "-r dev.txt\n")
    # Beside serving where Python is 3.11: not all of them have wheels for later ones.
    more = resolve(asked + project["dependency-groups"]["to-onnx"], constraints=HERE / "serving.txt")
    write(HERE / "to-onnx.txt", {name: version for name, version in more.items() if name not in serving})
    # Apart from the others: the converters need older versions of what serving has, too.
    converters = HERE / "convert.txt"
    write(converters, resolve(asked + project["dependency-groups"]["convert"]))
    # Apart even from these, and without what it requires: that is among them, but for CUDA.
    write(HERE / "torch.txt", dict(pin.split("==") for pin in project["dependency-groups"]["torch"]))
    # What PaddleNLP needs of these, for who installs it beside a service: left alone, pip may choose NumPy 1.
    write(HERE / "paddlenlp-constraints.txt", resolve(["paddlenlp"], constraints=converters))


if __name__ == "__main__":
    main()

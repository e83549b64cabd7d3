"""Trims the environment it runs in to what serving loads: python docker/trim.py docker/trim.txt"""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# grpc._utilities is loaded when a server has its first handlers, what pydantic has when the last two load.
IMPORTED_IN_SERVING = (
    "client.protos, grpc.aio, grpc._utilities, httptools, msgpack, msgspec, numpy, onnxruntime, "
    "prometheus_client, pydantic, rich.console, uvloop, yaml, "
    "pipeline.front.lifecycle, pipeline.worker.main, pipeline.ops.described"
)
OURS = (
    "client",
    "convert",
    "pipeline",
    "paddle_serving_",
    "paddlenlp_shims",
    "speech_shims",
)  # with their bytecode
OF_EXTRAS = ("paddle.inference", "tokenizers")


def imported_in_serving() -> str:
    """What serving imports in this environment, as an import statement takes it."""
    there = [name for name in OF_EXTRAS if importlib.util.find_spec(name.partition(".")[0])]
    return ", ".join([IMPORTED_IN_SERVING, *there])


def read_patterns(trim_list: Path) -> list[str]:
    """The globs of a trim list, without its comments."""
    lines = (line.strip() for line in trim_list.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def trimmed_files(site_packages: Path, patterns: list[str]) -> Iterator[Path]:
    """The files under site_packages that the patterns name; one may come twice. Ours all stay."""
    for pattern in patterns:
        for path in site_packages.glob(pattern):
            if path.is_file() and not path.relative_to(site_packages).parts[0].startswith(OURS):
                yield path


def main() -> None:
    site_packages = Path(sysconfig.get_path("purelib"))
    if sys.prefix == sys.base_prefix:
        sys.exit("trim: this Python is no virtual environment; nothing was removed")
    for path in set(trimmed_files(site_packages, read_patterns(Path(sys.argv[1])))):
        path.unlink()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # -P: what is installed, where this folder is the project's.
    command = [sys.executable, "-P", "-c", f"import {imported_in_serving()}"]
    subprocess.run(command, check=True, env=environment)


if __name__ == "__main__":
    main()

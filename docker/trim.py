"""Trims the environment it runs in to what serving loads: python docker/trim.py docker/trim.txt"""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# grpc._utilities is loaded when a server has its first handlers, what pydantic has when the last two load.
IMPORTED_IN_SERVING = (
    "client.protos, grpc.aio, grpc._utilities, httptools, httpx, msgpack, msgspec, numpy, onnxruntime, "
    "paddle.inference, prometheus_client, pydantic, rich.console, tokenizers, uvloop, yaml, "
    "pipeline.front.lifecycle, pipeline.worker.main"
)


def read_patterns(trim_list: Path) -> list[str]:
    """The globs of a trim list, without its comments."""
    lines = (line.strip() for line in trim_list.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def trimmed_files(site_packages: Path, patterns: list[str]) -> Iterator[Path]:
    """The files under site_packages that the patterns name; one may come twice."""
    for pattern in patterns:
        yield from (path for path in site_packages.glob(pattern) if path.is_file())


def main() -> None:
    site_packages = Path(sysconfig.get_path("purelib"))
    if sys.prefix == sys.base_prefix:
        sys.exit("trim: this Python is no virtual environment; nothing was removed")
    for path in set(trimmed_files(site_packages, read_patterns(Path(sys.argv[1])))):
        path.unlink()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-c", f"import {IMPORTED_IN_SERVING}"], check=True, env=environment)


if __name__ == "__main__":
    main()

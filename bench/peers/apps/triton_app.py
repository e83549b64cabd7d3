"""Triton with its Python backend, from PyTriton's wheel.

`python -m bench.peers.apps.triton_app PORT [MODELS [GRPC_PORT]]`. MODELS: a model repository in place of the
classifier's. Without GRPC_PORT, Triton serves HTTP alone. The working folder takes models and backends.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytriton

from bench.peers.apps.classifier import BATCH, INSTANCES, WAIT_MS

CONFIG = """
backend: "python"
max_batch_size: {batch}
input [ {{ name: "text", data_type: TYPE_STRING, dims: [ 1 ] }} ]
output [
  {{ name: "label", data_type: TYPE_STRING, dims: [ 1 ] }},
  {{ name: "confidence", data_type: TYPE_FP32, dims: [ 1 ] }}
]
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
instance_group [ {{ count: {instances}, kind: KIND_CPU }} ]
"""
SERVER = Path(pytriton.__file__).parent / "tritonserver"


def write_repository(folder: Path) -> None:
    version = folder / "classifier" / "1"
    version.mkdir(parents=True)
    shutil.copy(Path(__file__).parent / "triton_model.py", version / "model.py")
    config = CONFIG.format(batch=BATCH, delay_us=round(WAIT_MS * 1e3), instances=INSTANCES)
    (version.parent / "config.pbtxt").write_text(config)


def write_backends(folder: Path) -> None:
    """Copy the backends of PyTriton's wheel, with the stub for this Python version."""
    shutil.copytree(SERVER / "backends", folder)
    stub = SERVER / "python_backend_stubs" / sysconfig.get_python_version() / "triton_python_backend_stub"
    (folder / "python" / stub.name).symlink_to(stub)  # it finds its libraries relative to its own path


def main() -> None:
    port, repository, grpc_port = (*sys.argv[1:], "", "")[:3]
    models, backends = Path(repository or "models").absolute(), Path("backends").absolute()
    if not repository:
        write_repository(models)
    write_backends(backends)
    server = str(SERVER / "bin" / "tritonserver")
    options = [f"--model-repository={models}", f"--backend-directory={backends}"]
    options += ["--http-address=127.0.0.1", f"--http-port={port}"]
    options += [f"--grpc-port={grpc_port}"] if grpc_port else ["--allow-grpc=false"]
    options += ["--allow-metrics=false"]
    os.execv(server, [server, *options])


if __name__ == "__main__":
    main()

"""MLServer: `python -m bench.peers.apps.mlserver_app PORT`. The working folder takes its settings."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from bench.peers.apps.classifier import BATCH, INSTANCES, WAIT_MS
from bench.running import free_ports


def write_settings(folder: Path, port: int) -> None:
    rpc_port, metrics_port = free_ports(2)
    server = {
        "debug": False, "host": "127.0.0.1", "http_port": port, "grpc_port": rpc_port,
        "metrics_port": metrics_port, "parallel_workers": INSTANCES,
    }  # fmt: skip
    model = {
        "name": "classifier", "implementation": "bench.peers.apps.mlserver_runtime.TextClassifier",
        "max_batch_size": BATCH, "max_batch_time": WAIT_MS / 1e3,
    }  # fmt: skip
    (folder / "settings.json").write_text(json.dumps(server))
    (folder / "model-settings.json").write_text(json.dumps(model))


if __name__ == "__main__":
    write_settings(Path.cwd(), int(sys.argv[1]))
    os.execvp("mlserver", ["mlserver", "start", "."])

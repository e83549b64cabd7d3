"""Triton's Model Analyzer in local mode: it starts `tritonserver`, runs perf_analyzer and writes reports."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import yaml

from bench.perf_analyzer import Analyzer
from tests.support.free_ports import free_port
from tests.support.triton_repository import DOUBLES, write_model

PACKAGES = Path(sys.prefix) / "model_analyzer"  # of requirements/model_analyzer.txt
PATIENCE_S = 280
CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: 4 }
output { name: "Y" data_type: TYPE_FP32 dims: 4 }
"""
WINDOWS = {"measurement-request-count": 10, "stability-percentage": 999, "max-trials": 3}


def write_settings(folder: Path, analyzer: Analyzer) -> Path:
    """Write a search over one and two instances of the model `doubles`."""
    http, grpc, metrics = (free_port() for _ in range(3))
    groups = [{"kind": "KIND_CPU", "count": 2}]
    model = {
        "parameters": {"concurrency": [1], "batch_sizes": [1]},
        "model_config_parameters": {"instance_group": [groups]},
        "perf_analyzer_flags": WINDOWS,
    }
    settings = {
        "model_repository": str(folder / "models"),
        "output_model_repository_path": str(folder / "variants"),
        "checkpoint_directory": str(folder / "checkpoints"),
        "export_path": str(folder / "results"),
        "triton_launch_mode": "local",
        "triton_server_path": str(Path(sys.executable).with_name("tritonserver")),
        "triton_output_path": str(folder / "triton.log"),
        "triton_http_endpoint": f"127.0.0.1:{http}",
        "triton_grpc_endpoint": f"127.0.0.1:{grpc}",
        "triton_metrics_url": f"http://127.0.0.1:{metrics}/metrics",
        "triton_server_flags": {"http-port": http, "grpc-port": grpc, "metrics-port": metrics},
        "perf_analyzer_path": str(analyzer.program),
        "perf_analyzer_timeout": PATIENCE_S,
        "run_config_search_mode": "brute",
        "profile_models": {"doubles": model},
    }
    path = folder / "settings.yml"
    path.write_text(yaml.safe_dump(settings), "utf-8")
    return path


def test_the_instances_of_a_model_are_profiled_and_reported(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "doubles", CONFIG, DOUBLES)
    analyzer = Analyzer()
    settings = write_settings(tmp_path, analyzer)
    paths = [str(PACKAGES), os.environ.get("PYTHONPATH", "")]
    env = {**analyzer.env, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "MPLBACKEND": "agg"}
    command = [sys.executable, "-m", "model_analyzer.entrypoint", "profile", "-f", str(settings)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    log = tmp_path / "triton.log"
    assert done.returncode == 0, done.stdout + done.stderr + (log.read_text("utf-8") if log.exists() else "")
    table = (tmp_path / "results/results/metrics-model-inference.csv").read_text("utf-8")
    rows = {row["Model Config Path"]: row for row in csv.DictReader(table.splitlines())}
    groups = {name: row["Instance Group"] for name, row in rows.items()}
    assert groups == {"doubles_config_default": "1:CPU", "doubles_config_0": "2:CPU"}
    assert all(float(row["Throughput (infer/sec)"]) > 0 for row in rows.values())
    reports = {path.parent.name for path in (tmp_path / "results/reports").rglob("*.html")}
    assert reports == {"doubles", *groups}

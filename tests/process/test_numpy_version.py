"""A service on NumPy 1, which `pip install paddlenlp` puts in NumPy 2's place: told, with the remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.service_process import APPS, ROOT

# Run by each Python that finds it: NumPy without what 1.26 lacks.
SITE = """
import numpy

numpy.__version__ = "1.26.4"
for name in (
    "acos acosh asin asinh astype atan atan2 atanh bitwise_count bitwise_invert bitwise_left_shift "
    "bitwise_right_shift bool concat cumulative_prod cumulative_sum isdtype long matrix_transpose matvec "
    "permute_dims pow trapezoid ulong unique_all unique_counts unique_inverse unique_values unstack vecdot "
    "vecmat"
).split():
    vars(numpy).pop(name, None)
"""
FLAW = "NumPy 1.26.4 is installed; a service needs NumPy 2"
REMEDY = (
    "Put that back with python3 -m pip install 'numpy>=2'; where paddlenlp has brought NumPy 1, install it "
    "with --constraint requirements/paddlenlp-constraints.txt."
)
COMPAT_APP = """
from paddle_serving_app.reader import ChineseBertReader
from paddle_serving_server.web_service import Op, WebService


class EchoService(WebService):
    def get_pipeline_response(self, read_op):
        return Op(name="echo", input_ops=[read_op])


service = EchoService(name="echo")
service.prepare_pipeline_config(yml_dict={"http_port": 18082, "op": {"echo": {}}})
service.run_service()
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment in which NumPy 1.26.4 seems to be installed."""
    folder = tmp_path / "numpy_1"
    info = folder / "numpy-1.26.4.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.26.4\n", "utf-8")
    (folder / "sitecustomize.py").write_text(SITE, "utf-8")
    (tmp_path / "config.yml").write_text("http_port: 18082\nop:\n  echo: {}\n", "utf-8")
    path = os.pathsep.join(map(str, (folder, ROOT, ROOT / "compat")))
    return os.environ | {"PYTHONPATH": path, "SERVICE_CONFIG": str(tmp_path / "config.yml")}


def run(env: dict[str, str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_service_ends_at_its_start_with_the_sentence(env: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "web_service.py"
    script.write_text(COMPAT_APP, "utf-8")
    for arguments in (
        [APPS / "echo.py"],
        [script],
        ["-m", "pipeline", "run", script],
        ["-m", "pipeline", "run", "--print-config", script],
        ["-m", "pipeline", "serve", "--model-repository", tmp_path],
    ):
        done = run(env, *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{FLAW}. {REMEDY}\n"), arguments


def test_the_doctor_misses_numpy_2(env: dict[str, str]) -> None:
    done = run(env, "-m", "pipeline", "doctor", "--json")
    (finding,) = [each for each in json.loads(done.stdout)["findings"] if each["check"] == "NumPy"]
    assert (done.returncode, finding["status"]) == (1, "miss")
    assert (finding["found"], finding["remedy"]) == (FLAW, REMEDY)

"""Commands and conversions in folders with modules that are named as our packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from convert.steps.new_environment import LOCKS
from pipeline import __version__
from tests.support.command_line import refused
from tests.support.service_process import ROOT

PROGRAM = str(Path(sys.executable).with_name("paddlewheel"))
HOSTILE = "from pathlib import Path\n\nPath('imported').touch()\n"
FACTORY = """
import paddle
from client import WIDTH


def create_model():
    return paddle.nn.Linear(WIDTH, 2)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder whose modules tell that they were imported."""
    for name in ("client.py", "grpc.py", "yaml.py", "rich.py"):
        (tmp_path / name).write_text(HOSTILE, "utf-8")
    (tmp_path / "pipeline").mkdir()  # no package of Python's, but found before an editable install
    (tmp_path / "convert").mkdir()
    return tmp_path


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "command",
    [
        (PROGRAM, "convert", "serving", "nothing", "out"),
        (sys.executable, "-m", "convert", "serving", "nothing", "out"),
        (sys.executable, "-m", "pipeline", "convert", "serving", "nothing", "out"),
    ],
    ids=["program", "-m convert", "-m pipeline"],
)
def test_a_command_imports_nothing_of_the_working_folder(folder: Path, command: tuple[str, ...]) -> None:
    done = run(folder, *command)
    assert done.returncode == 2
    assert "nothing is neither a folder nor a .onnx file" in done.stderr
    assert not (folder / "imported").exists()


def test_python_m_pipeline_runs_beside_a_folder_of_that_name(folder: Path) -> None:
    done = run(folder, sys.executable, "-m", "pipeline", "--version")
    assert (done.stdout, done.stderr) == (f"paddlewheel {__version__}\n", "")


def test_a_factory_imports_its_neighbour_that_is_named_as_our_package(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text("WIDTH = 3\n", "utf-8")
    (tmp_path / "mine.py").write_text(FACTORY, "utf-8")
    done = run(
        tmp_path, PROGRAM, "convert", "paddle", "mine:create_model", "out", "--input-spec", "x:float32[-1,3]"
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_convert_env_keeps_off_a_folder_with_other_files(folder: Path) -> None:
    told = refused(run(folder, PROGRAM, "convert-env", "."))
    assert f"{folder} is not an environment, and not empty" in told
    assert {path.name for path in LOCKS.iterdir()} == {"convert.txt", "torch.txt"}
    assert (LOCKS / "convert.txt").samefile(ROOT / "requirements/convert.txt")

"""`--format pdmodel` where it can't be: without the older Paddle, and for what has no Layer of Paddle's."""

from __future__ import annotations

from pathlib import Path

import pytest

from convert.cli import main
from convert.steps import conversion_environment
from convert.steps.conversion_environment import PDMODEL_PADDLE

PDMODEL = ("--format", "pdmodel")
LAYER = ("paddle", "own:Layer", "out", "--input-spec", "x:float32[-1,4]", *PDMODEL)


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder; nobody has made the environment with the older Paddle."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(PDMODEL_PADDLE, raising=False)
    monkeypatch.setattr(conversion_environment, "PDMODEL_FOLDER", tmp_path / "absent")
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence of a command that can't be done and writes nothing."""
    assert main([*arguments]) == 2
    assert not Path("out").exists()
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments", [LAYER, ("paddle", "folder", "out", *PDMODEL), ("torch", "folder", "out", *PDMODEL)]
)
def test_without_the_older_paddle_the_command_that_gets_it_is_told(
    arguments: tuple[str, ...], work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = told(capsys, *arguments)
    assert message.startswith("a .pdmodel program is written by an older Paddle, which is not there")
    assert "`make pdmodel-env` (187 MB to fetch, 0.7 GB on the disk)" in message


def test_a_folder_without_a_paddle_is_told(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PDMODEL_PADDLE, "empty")
    (work / "empty").mkdir()
    assert f"{PDMODEL_PADDLE} names {work}/empty, which holds no paddlepaddle" in told(capsys, *LAYER)


def test_what_has_no_layer_is_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = str(root / "tests" / "fixtures" / "onnx" / "classifier.onnx")
    message = told(capsys, "all", onnx, "out", *PDMODEL)
    assert message.startswith(
        "--format pdmodel is for a paddle.nn.Layer or a model of PaddleNLP or a PyTorch"
    )

"""What every command of `paddlewheel convert` keeps to: dry runs, kills, full disks, no right to write."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from convert.cli import main
from convert.steps.conversion_environment import CONVERT_PYTHON
from tests.support import onnx_models

ROOT = Path(__file__).parents[2]
CLASSIFIER = str(onnx_models.onnx_file("classifier"))
BERT = str(ROOT / "tests/fixtures/pdmodel/bert")
LAYER = ("own_promises:create", "--input-spec", "x:float32[-1,4]")

MODULE = """
import os
import signal

import paddle


def create():
    paddle.seed(1)
    return paddle.nn.Linear(4, 3)


class Killed(paddle.nn.Linear):
    # Dies while its dynamic form is compared with the static one.
    def __init__(self):
        super().__init__(4, 3)

    def forward(self, x):
        if paddle.in_dynamic_mode():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)
"""
CONFIG = {"model_type": "ernie", "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 1}

# What each command is asked for; OUT is the last thing it is told.
COMMANDS: dict[str, tuple[str, ...]] = {
    "demo": ("demo", "--out"),
    "paddle, a Layer": ("paddle", *LAYER),
    "paddle, of PaddleNLP": ("paddle", "config.json", "--random-weights"),
    "serving": ("serving", CLASSIFIER),
    "onnx": ("onnx", CLASSIFIER),
    "to-onnx": ("to-onnx", BERT),
    "precision": ("precision", BERT, "--to", "int8-dynamic"),
    "all, of ONNX": ("all", CLASSIFIER),
    "all, of a Layer": ("all", *LAYER),
    "shapes": ("shapes", BERT, "--lengths", "16", "--batches", "1"),
}


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module and a configuration; no converter is at hand."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "own_promises.py").write_text(MODULE, "utf-8")
    (folder / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "own_promises", raising=False)
    monkeypatch.setenv(CONVERT_PYTHON, sys.executable)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return folder


def listing() -> list[str]:
    return sorted(path.name for path in Path().iterdir() if path.name != "__pycache__")


def started(*arguments: str, preexec: Callable[[], None] | None = None) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "convert", *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:."},
        preexec_fn=preexec,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_dry_run_writes_nothing_and_says_what_it_would(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    before = listing()
    assert main([*command, "out", "--dry-run"]) == 0
    assert "would" in capsys.readouterr().out
    assert listing() == before


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_place_that_can_not_be_written_to_is_told_with_the_remedy(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody makes folders in /sys, not even root."""
    assert main([*command, "/sys/nowhere/out"]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("/sys/nowhere/out can't be written (")
    assert told.endswith(("; name a folder that you may write to.", "; name another place."))
    assert main([*command, "own_promises.py/out"]) == 2
    assert "own_promises.py/out can't be " in capsys.readouterr().err.splitlines()[-1]


@pytest.fixture
def earlier() -> dict[str, str]:
    """The content of `out`, where an earlier conversion left its result."""
    content = {"convert.json": '{"source": "earlier"}', "model.txt": "as it was"}
    Path("out").mkdir()
    for name, text in content.items():
        Path("out", name).write_text(text, "utf-8")
    return content


def assert_a_kill_did_no_harm(process: subprocess.Popen[str], earlier: dict[str, str]) -> None:
    """The earlier result stands as it was; what lies beside it, hidden, goes with the next conversion."""
    process.communicate(timeout=100)
    assert process.returncode == -signal.SIGKILL
    assert {path.name: path.read_text("utf-8") for path in Path("out").iterdir()} == earlier
    left = set(listing()) - {"out", "own_promises.py", "config.json", "python"}
    assert len(left) == 1 and left.pop().startswith(".out.")
    assert main(["serving", CLASSIFIER, "out"]) == 0
    assert Path("out/serving_server").is_dir()
    assert set(listing()) - {"python"} == {"out", "own_promises.py", "config.json"}


@pytest.mark.parametrize("command", ["paddle, of PaddleNLP", "onnx", "to-onnx", "precision", "all, of ONNX"])
def test_a_kill_while_a_converter_runs_leaves_the_old_result(
    command: str, earlier: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The converter's interpreter kills the command that started it."""
    killer = Path("python").absolute()
    killer.write_text("#!/bin/sh\nkill -9 $PPID\n", "utf-8")
    killer.chmod(0o755)
    monkeypatch.setenv(CONVERT_PYTHON, str(killer))
    assert_a_kill_did_no_harm(started(*COMMANDS[command], "out"), earlier)


@pytest.mark.parametrize("command", ["paddle", "all"])
def test_a_kill_during_a_comparison_leaves_the_old_result(command: str, earlier: dict[str, str]) -> None:
    killed = ("own_promises:Killed", *LAYER[1:])
    assert_a_kill_did_no_harm(started(command, *killed, "out"), earlier)


@pytest.mark.parametrize("command", ["demo", "serving"])
def test_a_kill_while_its_result_is_being_made_leaves_the_old_result(
    command: str, earlier: dict[str, str]
) -> None:
    """As soon as its scratch folder is there; with so many lengths it is at it for seconds."""
    lengths = ("--lengths", ",".join(map(str, range(400, 512))))
    process = started(*COMMANDS[command], "out", *lengths)
    while process.poll() is None and not any(name.startswith(".out.") for name in listing()):
        pass
    process.kill()
    assert_a_kill_did_no_harm(process, earlier)


@pytest.mark.parametrize(
    "command", ["paddle, a Layer", "serving", "all, of ONNX", "all, of a Layer", "shapes"]
)
def test_a_disk_that_fills_up_leaves_the_old_result(
    command: str, earlier: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file may be longer than 100 bytes."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)  # its data would not fit, either

    def full_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    before = listing()
    out = "shapes.pbtxt" if command == "shapes" else "out"
    engine = ("--engine", "onnxruntime") if command == "all, of ONNX" else ()
    process = started(*COMMANDS[command], out, *engine, preexec=full_disk)
    _, err = process.communicate(timeout=100)
    assert (process.returncode, "Traceback" in err) == (2, False), err
    told = err.splitlines()[-1]
    assert "can't be written (File too large); make room" in told or "see that the disk has room" in told
    assert listing() == before
    assert {path.name: path.read_text("utf-8") for path in Path("out").iterdir()} == earlier

"""`paddlewheel convert to-onnx`: Paddle programs of both formats become ONNX files with the same outputs."""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from convert.cli import main
from convert.programs.inference_program import read_program
from convert.programs.runners import program_runner
from convert.steps.conversion_environment import CONVERT_PYTHON, FOLDER
from pipeline.engines import create_predictor
from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.serving_model import ServingModel, load_serving_model
from tests.support import models, old_models
from tests.support.service_process import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
DEMO = str(ROOT / "models" / "demo")

LAYERS = '''
import paddle
from paddle.nn import functional


class Gelus(paddle.nn.Layer):
    """One of each form, the one by tanh last, where both forms differ most."""

    def __init__(self):
        super().__init__()
        self.first = paddle.nn.Linear(4, 4)

    def forward(self, x):
        exact = functional.gelu(self.first(x))
        return functional.gelu(exact * 10) - functional.gelu(x * 3, approximate=True)


class Softplus(Gelus):
    """Has an operator that ONNX has in another form alone, at which paddle2onnx aborts."""

    def forward(self, x):
        return functional.softplus(self.first(x), beta=3)


class Kth(Gelus):
    """Has an operator that ONNX can't have from paddle2onnx."""

    def forward(self, x):
        return paddle.kthvalue(self.first(x), 2)[0]
'''


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the module `own_layers`."""
    (tmp_path / "own_layers.py").write_text(LAYERS, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_layers", raising=False)
    monkeypatch.delenv(CONVERT_PYTHON, raising=False)
    return tmp_path


def export(layer: str) -> None:
    assert main(["paddle", f"own_layers:{layer}", "--input-spec", "x:float32[-1,4]", layer]) == 0


def run_onnx(file: str, feeds: dict[str, Any]) -> list[Any]:
    return onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"]).run(None, feeds)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The sentence on stderr, below the bars, of a command that can't be done and has written nothing."""
    before = sorted(Path().iterdir())
    capsys.readouterr()
    assert main(["to-onnx", *arguments]) == 2
    assert sorted(Path().iterdir()) == before
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err.splitlines()[-1]


def test_the_demo_as_onnx_answers_as_its_serving_model_does() -> None:
    assert main(["to-onnx", DEMO, "onnx"]) == 0
    served = load_serving_model(DEMO)
    predictor = create_predictor(served, models.local_conf())
    ids = np.random.default_rng(5).integers(1, 7000, (3, 20))
    feeds = {"input_ids": ids, "token_type_ids": ids * 0, "attention_mask": ids * 0 + 1}
    feeds["attention_mask"][1, 7:] = 0
    (expected,) = predictor.run(feeds).values()
    np.testing.assert_allclose(run_onnx("onnx/model.onnx", feeds)[0], expected, rtol=0, atol=1e-5)


def test_the_file_keeps_names_types_and_open_lengths_and_its_report_is_beside_it() -> None:
    assert main(["to-onnx", DEMO, "onnx"]) == 0
    facts = inspect_onnx(Path("onnx/model.onnx"))
    program = read_program(Path(DEMO, "serving_server"))
    assert [(v.name, v.dtype, v.shape) for v in (*facts.feeds, *facts.fetches)] == [
        (v.name, v.dtype, v.shape) for v in (*program.feeds, *program.fetches)
    ]
    (report,) = json.loads(Path("onnx/parity.json").read_text("utf-8"))
    assert report["step"] == "Paddle to ONNX" and report["passed"] and report["max_abs_diff"] <= 1e-5
    assert {p.name for p in Path("onnx").iterdir()} == {"convert.json", "model.onnx", "parity.json"}


def test_a_program_of_paddle_2_becomes_onnx(pdmodel: ServingModel) -> None:
    assert main(["to-onnx", str(pdmodel.directory), "onnx"]) == 0
    ids = np.array([[3, 9, 4], [8, 1, 0]])
    feeds = {"input_ids": ids, "attention_mask": np.array([[1, 1, 1], [1, 1, 0]])}
    (expected,) = create_predictor(pdmodel, models.local_conf()).run(feeds).values()
    np.testing.assert_allclose(run_onnx("onnx/model.onnx", feeds)[0], expected, rtol=0, atol=1e-5)


def test_outputs_of_paddle_2_keep_their_names_in_onnx_and_on_to_the_serving_model() -> None:
    source = ROOT / "tests/fixtures/pdmodel/ernie"
    names = [fetch.name for fetch in read_program(source).fetches]
    assert main(["to-onnx", str(source), "onnx"]) == 0
    assert [fetch.name for fetch in inspect_onnx(Path("onnx/model.onnx")).fetches] == names
    assert main(["all", str(source), "served", "--engine", "onnxruntime"]) == 0
    assert [fetch.alias for fetch in load_serving_model("served").fetches] == names


def test_each_gelu_keeps_its_form() -> None:
    export("Gelus")
    assert main(["to-onnx", "Gelus", "onnx"]) == 0
    x = np.linspace(-2, 2, 400, dtype=np.float32).reshape(100, 4)
    (expected,) = program_runner(read_program(Path("Gelus")))({"x": x})
    np.testing.assert_allclose(run_onnx("onnx/model.onnx", {"x": x})[0], expected, rtol=0, atol=1e-5)


def test_an_operator_set_that_is_too_low_is_raised_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["to-onnx", DEMO, "onnx", "--opset", "11"]) == 0
    assert "Opset 13: an operator of the model needs more than 11." in capsys.readouterr().err


def test_a_result_that_is_up_to_date_is_not_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["to-onnx", DEMO, "onnx", "--dry-run"]) == 0
    assert not Path("onnx").exists()
    assert main(["to-onnx", DEMO, "onnx"]) == 0
    made = Path("onnx").stat().st_ino
    assert main(["to-onnx", DEMO, "onnx"]) == 0
    assert "onnx is up to date." in capsys.readouterr().out
    assert Path("onnx").stat().st_ino == made
    assert main(["to-onnx", DEMO, "onnx", "--opset", "21"]) == 0
    assert Path("onnx").stat().st_ino != made


def test_outputs_over_the_tolerance_fail_and_leave_the_old_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["to-onnx", DEMO, "onnx"]) == 0
    made = Path("onnx").stat().st_ino
    assert main(["to-onnx", DEMO, "onnx", "--tolerance", "1e-12"]) == 1
    told = capsys.readouterr().err
    assert "over the tolerance of 1e-12 " in told and "; nothing was written." in told
    assert Path("onnx").stat().st_ino == made


def test_an_operator_without_onnx_form_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    export("Kth")
    assert refused(capsys, "Kth", "onnx") == (
        "Kth/inference.json: paddle2onnx 2.1.0 has no ONNX form of kthvalue; "
        "serve the model with Paddle, or write it without."
    )
    export("Softplus")
    told = refused(capsys, "Softplus", "onnx")
    assert told.startswith("Softplus/inference.json: paddle2onnx crashed in native code (SIGABRT); ")
    assert "[OP: pd_op.softplus] Only support softplus with beta == 1.0" in told
    assert told.endswith("; serve the model with Paddle, or write it without.")


def test_a_step_that_takes_too_long_is_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, DEMO, "onnx", "--step-timeout", "0.01")
    assert told.startswith("paddle2onnx took longer than 0.01 s and was stopped; give it more with --step-t")


def test_a_disk_that_fills_up_is_told_whatever_the_converter_says(work: Path) -> None:
    """No file may be longer than 1,000 bytes."""

    def full_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    before = sorted(work.iterdir())
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "convert",
            "to-onnx",
            str(ROOT / "tests/fixtures/pdmodel/bert"),
            str(work / "o"),
        ],
        preexec_fn=full_disk,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"{work / 'o'} can't be written (File too large); make room for it, or name a folder on another disk."
    )
    assert sorted(work.iterdir()) == before


def test_a_command_that_is_stopped_leaves_neither_files_nor_processes(work: Path) -> None:
    started = work / "started"
    os.mkfifo(started)
    converter = work / "python"
    converter.write_text(f'#!/bin/sh\necho $$ >{started}\nexec {FOLDER}/bin/python "$@"\n', "utf-8")
    converter.chmod(0o755)
    before = sorted(work.iterdir())
    with subprocess.Popen(
        [sys.executable, "-m", "convert", "to-onnx", DEMO, str(work / "onnx")],
        env={**os.environ, CONVERT_PYTHON: str(converter)},
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    ) as command:
        process = os.pidfd_open(int(started.read_text("utf-8")))  # waits until the step's process runs
        command.terminate()
        assert command.wait(PATIENCE_S) == 130
    assert select.select([process], [], [], PATIENCE_S)[0] == [process]
    os.close(process)
    assert sorted(work.iterdir()) == before


def test_an_environment_without_the_converter_is_told_with_the_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(CONVERT_PYTHON, sys.executable)
    hidden = "import sys; sys.modules['paddle2onnx'] = sys.modules['onnx'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(hidden, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # nothing is to be written here, by nobody
    told = refused(capsys, DEMO, "onnx")
    assert told.startswith(f"{sys.executable} lacks paddle2onnx, onnx, which") and "make convert-env" in told


def test_what_can_not_become_onnx_is_told(
    capsys: pytest.CaptureFixture[str], model_folder: Path, work: Path
) -> None:
    assert "build/x.onnx is to be a folder" in refused(capsys, DEMO, "build/x.onnx")
    assert "opset 9 can't be written; name one from 11 to 21" in refused(capsys, DEMO, "o", "--opset", "9")
    assert "nowhere is neither a folder nor" in refused(capsys, "nowhere", "onnx")
    ragged = str(old_models.bag_of_words(model_folder))
    assert "feed 'words' holds sequences (LoD)" in refused(capsys, ragged, "onnx")
    words = str(old_models.single_words(model_folder))
    assert "is not a *.json or *.pdmodel program" in refused(capsys, words, "onnx")
    onnx = str(ROOT / "tests" / "fixtures" / "onnx" / "classifier.onnx")
    assert refused(capsys, onnx, "onnx") == f"{onnx} is an ONNX model already; serve it as it is."
    export("Gelus")
    program = work / "Gelus" / "inference.json"
    program.write_bytes(program.read_bytes()[:-300])
    assert "Gelus/inference.json" in refused(capsys, "Gelus", "onnx")

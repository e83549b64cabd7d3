"""`paddlewheel convert onnx`: ONNX models become Paddle programs with the same outputs, or are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from convert.cli import main
from convert.programs.inference_program import read_program
from convert.programs.runners import program_runner
from convert.steps.conversion_environment import CONVERT_PYTHON
from convert.steps.isolation import run_isolated
from pipeline.engines import create_predictor
from pipeline.models.serving_model import load_serving_model
from tests.support import models

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "onnx"
Node = list[Any]


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.delenv(CONVERT_PYTHON, raising=False)
    return tmp_path


def step(name: str, **arguments: object) -> str:
    """Make model.onnx by a step in the conversion environment."""
    arguments["file"] = "model.onnx"
    run_isolated(f"environment_steps:{name}", arguments, converter="the exporter", needs=("onnx", "torch"))
    return "model.onnx"


def operators(*nodes: Node, opset: int = 15) -> str:
    return step("onnx_operators", nodes=nodes, opset=opset)


def run_onnx(file: str | Path, feeds: dict[str, Any]) -> Any:
    (output,) = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"]).run(None, feeds)
    return output


def assert_paddle_agrees(file: str, folder: str) -> None:
    x = np.random.default_rng(6).standard_normal((3, 4)).astype(np.float32)
    program = read_program(Path(folder))
    assert program.format == "pir"
    (answer,) = program_runner(program)({"x": x})
    np.testing.assert_allclose(answer, run_onnx(file, {"x": x}), rtol=0, atol=1e-5)


def assert_kept(capsys: pytest.CaptureFixture[str], file: str, why: str) -> None:
    """The ONNX model lies in out, byte for byte, and both that and the reason are told; exit code 0."""
    assert main(["onnx", file, "out"]) == 0
    out = capsys.readouterr().out
    assert why in out and "out holds the ONNX model as it is" in out
    assert Path("out", Path(file).name).read_bytes() == Path(file).read_bytes()
    assert read_program(Path("out")).format == "onnx"
    assert main(["onnx", file, "strict", "--no-fallback"]) in (1, 2)
    assert why in capsys.readouterr().err.splitlines()[-1] and not Path("strict").exists()


@pytest.mark.parametrize(("family", "head", "opset"), [("Bert", "Sequence", 14), ("Roberta", "Token", 17)])
def test_an_encoder_exported_by_pytorch_is_served_by_paddle(family: str, head: str, opset: int) -> None:
    step("torch_onnx", family=family, head=head, opset=opset)
    assert main(["onnx", "model.onnx", "out"]) == 0
    padding = ["--padding", "input_ids=1,attention_mask=0"]
    assert main(["serving", "out", "served", "--with-notes", *padding]) == 0
    model = load_serving_model("served")
    assert model.format == "pir"
    assert [(feed.alias, feed.dtype, feed.shape) for feed in model.feeds] == [
        ("input_ids", "int64", (-1, -1)),
        ("attention_mask", "int64", (-1, -1)),
    ]
    ids = np.array([[5, 9, 2, 40, 7], [3, 8, 99, 1, 1]])
    feeds = {"input_ids": ids, "attention_mask": (ids != 1).astype(np.int64)}
    answers = create_predictor(model, models.local_conf()).run(feeds)
    np.testing.assert_allclose(answers["logits"], run_onnx("model.onnx", feeds), rtol=0, atol=1e-4)
    (report,) = json.loads(Path("out/parity.json").read_text("utf-8"))
    assert report["step"] == "ONNX to Paddle" and report["passed"]


def test_the_demo_goes_to_onnx_and_back() -> None:
    assert main(["to-onnx", str(ROOT / "models" / "demo"), "onnx", "--opset", "21"]) == 0
    assert main(["onnx", "onnx", "out", "--no-fallback"]) == 0
    assert [feed.name for feed in read_program(Path("out")).feeds] == [
        feed.name for feed in read_program(Path("onnx")).feeds
    ]


@pytest.mark.parametrize(
    ("nodes", "opset"),
    [
        ([["LayerNormalization", ["x", "one", "one"], "y", {"epsilon": 1e-6}]], 17),
        ([["LayerNormalization", ["x", "one"], "y", {"axis": 1}]], 17),
        ([["Gelu", ["x"], "y", {}]], 20),
        ([["Gelu", ["x"], "y", {"approximate": "tanh"}]], 20),
        ([["ReduceMean", ["x", "axis"], "y", {"keepdims": 0}]], 18),
        (
            [
                ["Unsqueeze", ["x", "axis"], "wide", {}],
                ["Conv", ["wide", "kernel"], "once", {"kernel_shape": [1]}],
                ["Identity", ["kernel"], "same", {}],
                ["Conv", ["once", "same"], "twice", {"kernel_shape": [1]}],
                ["Conv", ["twice", "kernel"], "thrice", {"kernel_shape": [1]}],
                ["Squeeze", ["thrice", "axis"], "y", {}],
            ],
            15,
        ),
        (
            [
                ["Unsqueeze", ["x", "axis"], "wide", {}],
                ["MaxPool", ["wide"], "most", {"kernel_shape": [2], "strides": [2], "dilations": [1]}],
                ["Squeeze", ["most", "axis"], "y", {}],
            ],
            15,
        ),
        (
            [
                ["Cast", ["x"], "whole", {"to": 6}],
                ["CumSum", ["whole", "axis_0d"], "sums", {}],
                ["Mul", ["sums", "whole"], "product", {}],
                ["Cast", ["product"], "y", {"to": 1}],
            ],
            14,
        ),
        (
            [
                ["Shape", ["x"], "shape", {}],
                ["ConstantOfShape", ["shape"], "indices", {"fill": 2}],
                ["Gather", ["table", "indices"], "y", {}],
            ],
            13,
        ),
    ],
)
def test_what_x2paddle_lacks_is_written_in_operators_it_has(nodes: list[Node], opset: int) -> None:
    file = operators(*nodes, opset=opset)
    assert main(["onnx", file, "out", "--no-fallback"]) == 0
    assert_paddle_agrees(file, "out")


def test_a_model_that_can_not_be_converted_is_kept_as_onnx_and_served(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = operators(["Celu", ["x"], "y", {}])
    assert_kept(capsys, file, "model.onnx can't become a Paddle model: x2paddle has no Paddle form of Celu")
    assert main(["serving", "out", "served", "--with-notes"]) == 0
    assert [fetch.alias for fetch in load_serving_model("served").fetches] == ["y"]


def test_operators_of_others_and_later_meanings_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    file = operators(["BiasGelu", ["x", "one"], "y", {"domain": "com.microsoft"}])
    assert_kept(capsys, file, "BiasGelu of com.microsoft is no operator of the standard")
    file = operators(["Scaler", ["x"], "y", {"domain": "ai.onnx.ml", "offset": [0.5], "scale": [2.0]}])
    assert_kept(capsys, file, "Scaler of ai.onnx.ml is no operator of the standard")
    file = operators(["Split", ["x"], "y", {"num_outputs": 1}], opset=18)
    assert_kept(capsys, file, "Split of opset 18 can't be written as that of 15; export it again at 15")


def test_outputs_over_the_tolerance_are_a_reason_to_keep_onnx(capsys: pytest.CaptureFixture[str]) -> None:
    file = operators(["Gelu", ["x"], "y", {}], opset=20)
    assert main(["onnx", file, "out", "--tolerance", "1e-12"]) == 0
    told = capsys.readouterr().out
    told = " ".join(told.split())
    assert "over the tolerance of 1e-12 " in told and "; out holds the ONNX model as it is" in told
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "convert.json",
        "model.onnx",
        "model_notes.json",
    ]
    assert main(["onnx", file, "strict", "--tolerance", "1e-12", "--no-fallback"]) == 1
    assert not Path("strict").exists()


def test_a_result_that_is_up_to_date_is_not_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(FIXTURES / "classifier.onnx")
    assert main(["onnx", file, "out", "--dry-run"]) == 0
    assert not Path("out").exists()
    assert main(["onnx", file, "out"]) == 0
    made = Path("out").stat().st_ino
    assert main(["onnx", file, "out"]) == 0
    assert "out is up to date." in capsys.readouterr().out and Path("out").stat().st_ino == made


def test_what_is_no_onnx_model_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    def refused(source: str) -> str:
        assert main(["onnx", source, "out"]) == 2
        assert not Path("out").exists()
        return capsys.readouterr().err.splitlines()[-1]

    whole = (FIXTURES / "classifier.onnx").read_bytes()
    Path("cut.onnx").write_bytes(whole[: len(whole) // 2])
    Path("text.onnx").write_text("not a model", "utf-8")
    Path("empty").mkdir()
    for source in ("cut.onnx", "text.onnx", "empty", "nowhere.onnx"):
        assert refused(source).startswith(source)
    demo = str(ROOT / "models" / "demo" / "serving_server")
    assert "is a Paddle program already; serve it as it is" in refused(demo)

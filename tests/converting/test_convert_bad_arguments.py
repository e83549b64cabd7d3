"""What `paddle` and `serving` say of specs, factories, weights and other arguments that they can't use."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import pytest

from convert.cli import main
from convert.programs.program_feeds import ProgramTensor, parse_input_spec
from tests.support.sentiment import SENTIMENT, SPEC

MODULE = (
    SENTIMENT
    + """


def broken():
    raise RuntimeError("no such checkpoint")


def not_a_layer():
    return 3
"""
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the module `own_arguments`."""
    (tmp_path / "own_arguments.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_arguments", raising=False)
    return tmp_path


def export(name: str, *more: str) -> int:
    return main(["paddle", f"own_arguments:{name}", "--input-spec", SPEC, "inference", *more])


BAD_SPECS = {
    "": "--input-spec is empty",
    "input_ids": "'input_ids' is not name:dtype[dims]",
    "input_ids:int63[-1]": "dtype 'int63'",
    "input_ids:int64[-1,x]": "'x' in 'input_ids:int64[-1,x]' is not a dimension",
    "input_ids:int64[-1,0]": "'0' in 'input_ids:int64[-1,0]' is not a dimension",
    "in put:int64[-1]": "'in put' in 'in put:int64[-1]' is not a name",
    "x:int64[-1];x:int64[-1]": "names 'x' twice",
}


@pytest.mark.parametrize(("spec", "told"), BAD_SPECS.items(), ids=lambda text: text or "empty")
def test_a_bad_input_spec_is_told_with_the_bad_part(
    spec: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["paddle", "m:f", "--input-spec", spec, "out"]) == 2
    assert_one_sentence(capsys.readouterr().err, told)


def test_an_input_spec_is_read_as_it_is_written() -> None:
    assert parse_input_spec(" a:int64[-1, 7] ;b:float32[-1];image:float32[1,3,-1,-1];rate:float32[]") == (
        ProgramTensor("a", "int64", (-1, 7)),
        ProgramTensor("b", "float32", (-1,)),
        ProgramTensor("image", "float32", (1, 3, -1, -1)),
        ProgramTensor("rate", "float32", ()),
    )


@pytest.mark.parametrize(
    ("factory", "told"),
    [
        ("own_arguments", "own_arguments is neither a folder here nor among PaddleNLP's downloads"),
        ("absent_models:create", "there is no module 'absent_models'"),
        ("own_arguments:Absent", "has no function or class 'Absent'"),
        ("own_arguments:broken", "RuntimeError: no such checkpoint"),
        ("own_arguments:not_a_layer", "returned a int, not a paddle.nn.Layer"),
    ],
)
def test_a_factory_that_gives_no_layer_is_told_in_one_sentence(
    project: Path, factory: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["paddle", factory, "--input-spec", SPEC, "inference"]) == 2
    assert_one_sentence(capsys.readouterr().err, told)
    assert not Path("inference").exists()


def test_params_of_another_model_are_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import paddle

    paddle.save(paddle.nn.Linear(2, 2).state_dict(), "other.pdparams")
    assert export("Sentiment", "--params", "other.pdparams") == 2
    assert_one_sentence(capsys.readouterr().err, "other.pdparams lacks 'out.bias'")
    assert export("Sentiment", "--params", "absent.pdparams") == 2
    assert_one_sentence(capsys.readouterr().err, "absent.pdparams can't be read")


def test_a_params_file_can_not_run_code(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Touch:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, ("touched",)

    Path("evil.pdparams").write_bytes(pickle.dumps({"out.bias": Touch()}))
    assert export("Sentiment", "--params", "evil.pdparams") == 2
    assert_one_sentence(capsys.readouterr().err, "mkdir, which no array needs")
    assert not Path("touched").exists()


def test_arguments_of_serving_that_can_not_be_used_are_told(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    Path("foreign").mkdir()
    Path("foreign/thesis.txt").write_text("years of work")
    assert export("Sentiment") == 0
    capsys.readouterr()
    for arguments, told in (
        (["absent", "served"], "absent is neither a folder nor a .onnx file"),
        (["empty", "served"], "empty holds no model"),
        (["inference", "foreign"], "foreign holds files that convert didn't write"),
        (["inference", "own_arguments.py"], "own_arguments.py is not a folder"),
        (["inference", "served", "--fetch-alias", "a,b"], "the model has 1 outputs (fetch_name_0)"),
        (["inference", "served", "--padding", "ids=0"], "'ids' is not a feed"),
        (["inference", "served", "--padding", "input_ids=x"], "'input_ids=x' is not feed=value"),
        (["inference", "served", "--padding", "input_ids=0"], "declare 'attention_mask', too"),
        (["inference", "served", "--file", "vocab.txt"], "vocab.txt is not a file"),
        (["inference", "served", "--tolerance", "-1"], "the tolerance -1.0"),
    ):
        assert main(["serving", *arguments]) == 2, arguments
        assert_one_sentence(capsys.readouterr().err, told)
    assert not Path("served").exists()
    assert Path("foreign/thesis.txt").read_text() == "years of work"


def test_a_program_cut_short_is_told_in_one_sentence(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export("Sentiment") == 0
    program = Path("inference/inference.json")
    program.write_bytes(program.read_bytes()[:700])
    capsys.readouterr()
    assert main(["serving", "inference", "served"]) == 2
    assert_one_sentence(capsys.readouterr().err, "inference.json is not a Paddle program")


def assert_one_sentence(err: str, told: str) -> None:
    """The last line tells it; whatever progress was shown, nothing looks like a traceback."""
    assert "Traceback" not in err
    assert told in err.strip().splitlines()[-1]
    assert err.rstrip().endswith((".", "?"))

"""`paddlewheel convert shapes`: the shapes of BERT's and ERNIE's inner tensors, as Paddle finds them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from convert.cli import main
from pipeline.engines import DynamicShapes
from pipeline.engines.dynamic_shape import read_ranges
from pipeline.errors import ConfigError
from pipeline.models.serving_model import ServingModel
from tests.support.models import local_conf

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "tests" / "fixtures" / "pdmodel"
SIZES = ("--lengths", "16,40", "--batches", "1,4")

# Paddle's own collection, in a process that has nothing of ours.
COLLECT = """
import sys
import numpy as np
from paddle import inference

config = inference.Config(sys.argv[1], sys.argv[2])
if sys.argv[1].endswith(".json"):
    config.enable_new_ir(True)
    config.enable_new_executor(True)
config.collect_shape_range_info(sys.argv[3])
predictor = inference.create_predictor(config)
for rows in (1, 4):
    for length in (16, 40):
        for name in predictor.get_input_names():
            predictor.get_input_handle(name).copy_from_cpu(np.ones((rows, length), "int64"))
        predictor.run()
"""


def collected_by_paddle(folder: Path, out: Path) -> dict[str, dict[str, list[int]]]:
    """{tensor: {field: numbers}} of all tensors, read by protobuf's own parser."""
    (program,) = [p for p in folder.iterdir() if p.suffix in (".pdmodel", ".json")]
    command = [sys.executable, "-W", "ignore", "-c", COLLECT]
    arguments = [str(program), str(program.with_suffix(".pdiparams")), str(out)]
    subprocess.run([*command, *arguments], check=True, capture_output=True)
    return parsed(out)


def parsed(path: Path) -> dict[str, dict[str, list[int]]]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    file = descriptor_pb2.FileDescriptorProto(name="shapes.proto", package="shapes", syntax="proto2")
    entry = file.message_type.add(name="Entry")
    entry.field.add(name="name", number=1, type=9, label=2)
    for number, field in enumerate(FIELDS, 2):
        entry.field.add(name=field, number=number, type=5, label=3)
    whole = file.message_type.add(name="All")
    whole.field.add(name="shape_range_info", number=1, type=11, label=3, type_name=".shapes.Entry")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    message: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shapes.All"))()
    text_format.Parse(path.read_text(), message)
    return {e.name: {field: list(getattr(e, field)) for field in FIELDS} for e in message.shape_range_info}


FIELDS = [f"{bound}_{kind}" for kind in ("shape", "value") for bound in ("min", "max", "opt")]
RANGES = [field for field in FIELDS if not field.startswith("opt")]


def varying(tensors: dict[str, dict[str, list[int]]]) -> dict[str, list[list[int]]]:
    """The ranges of those that have one; Paddle's opt is the usual shape, ours the likeliest."""
    return {
        name: [of[field] for field in RANGES]
        for name, of in tensors.items()
        if of["min_shape"] != of["max_shape"] or of["min_value"] != of["max_value"]
    }


@pytest.mark.parametrize("model", ["bert", "ernie"])
def test_the_inner_tensors_are_those_that_paddle_reports(model: str, tmp_path: Path) -> None:
    assert main(["shapes", str(MODELS / model), str(tmp_path / "shapes.pbtxt"), *SIZES]) == 0
    ours, paddles = (
        parsed(tmp_path / "shapes.pbtxt"),
        collected_by_paddle(MODELS / model, tmp_path / "own"),
    )
    assert varying(ours) == varying(paddles)
    assert ours.keys() == varying(ours).keys(), "weights and constants have no range"
    assert {"input_ids", "token_type_ids", "unsqueeze2_0.tmp_0", "tmp_2", "softmax_1.tmp_0"} < ours.keys()
    assert ("shape_0.tmp_0" in ours) is (model == "ernie")
    assert {"embedding_0.w_0", "linear_0.b_0"} < paddles.keys() - ours.keys()
    assert ours["softmax_1.tmp_0"] == {
        "min_shape": [1, 2, 16, 16],
        "max_shape": [4, 2, 40, 40],
        "opt_shape": [4, 2, 40, 40],
        "min_value": [],
        "max_value": [],
        "opt_value": [],
    }


def test_what_a_tensor_of_a_shape_held_is_in_the_file(tmp_path: Path) -> None:
    assert main(["shapes", str(MODELS / "ernie"), str(tmp_path / "shapes.pbtxt"), *SIZES]) == 0
    found = parsed(tmp_path / "shapes.pbtxt")["shape_0.tmp_0"]
    assert [found[field] for field in FIELDS] == [[2], [2], [2], [1, 16], [4, 40], [4, 40]]


def test_inner_tensors_of_a_paddle_3_program_go_by_their_place(
    classifier: ServingModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "shapes.pbtxt"
    assert main(["shapes", str(classifier.directory), str(out), *SIZES]) == 0
    ours = parsed(out)
    paddles = collected_by_paddle(classifier.directory, tmp_path / "own")
    assert not ours.keys() >= varying(paddles).keys()
    places = {re.sub(r"0x[0-9a-f]+_(?=inner_var)", "", name): of for name, of in paddles.items()}
    assert varying(ours) == varying(places)
    assert len([name for name in ours if name.startswith("inner_var_")]) > 3
    assert hook(capsys.readouterr().out).max.keys() == {"input_ids", "token_type_ids", "attention_mask"}


def hook(printed: str) -> DynamicShapes:
    """The shapes of an Op that has the printed hook."""
    start = printed.index("def set_dynamic_shape_info")
    names: dict[str, Any] = {}
    code = printed[start : printed.index("\n    }\n", start) + 7]
    exec(compile(code, "printed", "exec"), names)  # noqa: S102
    op = SimpleNamespace()
    names["set_dynamic_shape_info"](op)
    return DynamicShapes.from_info(op.dynamic_shape_info)


def test_the_printed_hook_gives_an_op_the_shapes_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "shapes.pbtxt"
    assert main(["shapes", str(MODELS / "ernie"), str(out), *SIZES]) == 0
    printed = capsys.readouterr().out
    shapes, stored = hook(printed), DynamicShapes.from_file(out)
    assert shapes.max == {name: shape for name, shape in stored.max.items() if name != "shape_0.tmp_0"}
    assert (shapes.min["input_ids"], shapes.opt["tmp_2"]) == ((1, 16), (4, 40))
    assert "│ unsqueeze2_0.tmp_0" in printed
    assert "2 -> 4 40" in printed


def test_inputs_of_few_numbers_are_in_the_hook_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--lengths", "3", "--batches", "1,2")
    assert main(["shapes", str(MODELS / "ernie"), str(tmp_path / "shapes.pbtxt"), *few]) == 0
    assert hook(capsys.readouterr().out).max["input_ids"] == (2, 3)


def test_one_length_leaves_no_inner_tensor_out(tmp_path: Path) -> None:
    wide, narrow = tmp_path / "wide", tmp_path / "narrow"
    assert main(["shapes", str(MODELS / "ernie"), str(wide), *SIZES]) == 0
    longest = ("--lengths", "128", "--batches", "1")  # there is no position 129
    assert main(["shapes", str(MODELS / "ernie"), str(narrow), *longest]) == 0
    ranges = read_ranges(narrow)
    assert ranges.keys() == read_ranges(wide).keys()
    shapes = ranges["softmax_0.tmp_0"]
    assert shapes.min == shapes.opt == shapes.max == (1, 2, 128, 128)


def test_the_likeliest_shape_is_the_median_length_with_most_rows(tmp_path: Path) -> None:
    out = tmp_path / "shapes.pbtxt"
    sizes = ("--lengths", "100,5,20", "--batches", "8,1")
    assert main(["shapes", str(MODELS / "bert"), str(out), *sizes]) == 0
    assert read_ranges(out)["input_ids"].opt == (8, 20)
    assert read_ranges(out)["softmax_0.tmp_0"].opt == (8, 2, 20, 20)


def test_batches_of_the_users_own_are_run(tmp_path: Path) -> None:
    batches = []
    for rows, length in ((2, 7), (3, 9)):
        feeds = {name: np.ones((rows, length), np.int32) for name in ("input_ids", "token_type_ids")}
        np.savez(tmp_path / f"{rows}.npz", **feeds)
        batches += ["--inputs", str(tmp_path / f"{rows}.npz")]
    out = tmp_path / "shapes.pbtxt"
    assert main(["shapes", str(MODELS / "bert"), str(out), *batches]) == 0
    found = read_ranges(out)["softmax_0.tmp_0"]
    assert (found.min, found.max) == ((2, 2, 7, 7), (3, 2, 9, 9))


def test_of_an_onnx_model_the_inputs_are_described(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "shapes.pbtxt"
    assert main(["shapes", str(ROOT / "tests/fixtures/onnx/classifier.onnx"), str(out), *SIZES]) == 0
    ranges = read_ranges(out)
    assert ranges.keys() == {"input_ids", "token_type_ids", "attention_mask"}
    found = ranges["input_ids"]
    assert (found.min, found.opt, found.max) == ((1, 16), (4, 40), (4, 40))
    assert hook(capsys.readouterr().out).max["attention_mask"] == (4, 40)


def test_shapes_that_are_up_to_date_are_not_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "shapes.pbtxt"
    command = ["shapes", str(MODELS / "bert"), str(out)]
    assert main([*command, *SIZES]) == 0
    first, made = capsys.readouterr().out, out.stat().st_ino
    assert main([*command, *SIZES]) == 0
    again = capsys.readouterr().out
    assert out.stat().st_ino == made
    assert again.splitlines()[:-1] == first.splitlines()[:-1], "the same table and hook"
    assert again.splitlines()[-1].endswith("is up to date.")
    assert main([*command, "--lengths", "16,41", "--batches", "1,4"]) == 0
    assert read_ranges(out)["input_ids"].max == (4, 41)
    before = out.stat().st_ino
    assert main([*command, "--lengths", "16,41", "--batches", "1,4", "--force"]) == 0
    assert out.stat().st_ino != before
    assert [path.name for path in tmp_path.iterdir()] == ["shapes.pbtxt"]


def test_a_dry_run_writes_no_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "shapes.pbtxt"
    assert main(["shapes", str(MODELS / "bert"), str(out), *SIZES, "--dry-run"]) == 0
    assert "would run 4 batches" in capsys.readouterr().out
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "out"], "nowhere is neither a folder nor"),
        (["damaged", "out"], "damaged.pdmodel is not a Paddle program"),
        (["BERT", "."], "is a folder; name a file"),
        (["BERT", "notes.txt"], "notes.txt is not a file of collected shapes; name another place"),
        (["BERT", "notes.txt/out"], "notes.txt/out can't be"),
        (
            ["BERT", "out", "--lengths", "200"],
            r"can't run .*expected >= 0 and < 128.*name others with --lengths",
        ),
        (["BERT", "out", "--batches", "0"], r"batch sizes \(0,\) are not whole numbers from 1"),
        (["BERT", "out", "--inputs", "notes.txt"], "has neither tokenizer.json nor vocab.txt"),
        (["BERT", "out", "--inputs", "none.npz"], "none.npz"),
        (
            ["BERT", "out", "--inputs", "half.npz"],
            "half.npz holds input_ids, but .* takes input_ids, token_type_ids",
        ),
        (["BERT", "out", "--inputs", "text.npz"], r"text.npz: input_ids is <U1\[1, 1\], but .* takes int64"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("mine\n")
    np.savez("half.npz", input_ids=np.ones((1, 4), np.int64))
    np.savez("text.npz", input_ids=np.array([["a"]]), token_type_ids=np.ones((1, 1), np.int64))
    Path("damaged").mkdir()
    Path("damaged/damaged.pdmodel").write_bytes(b"\x0a\x07\x08\x00\x10\x00\x1a\x01\x00")
    before = sorted(path.name for path in tmp_path.iterdir())
    model = str(MODELS / "bert") if arguments[0] == "BERT" else arguments[0]
    assert main(["shapes", model, *arguments[1:]]) == 2
    told = capsys.readouterr().err
    assert re.search(message, told), told
    assert "Traceback" not in told
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"tensorrt\.shapes: there is no file .*: make it with `paddlewheel convert shapes"),
        ("", "is empty: collect the shapes again"),
        ('shape_range_info {\n  name: "x"\n', r'line 2: Expected "}".*: collect the shapes again'),
        ("input_ids: [1, 2]\n", "line 1: unknown field 'input_ids' in ShapeRangeInfos: collect"),
        (
            'shape_range_info {\n  name: "x"\n  min_shape: 3\n  max_shape: 2\n  opt_shape: 2\n}\n',
            r"tensor 'x' breaks min \(3,\) <= opt \(2,\)",
        ),
    ],
)
def test_a_file_that_can_t_be_used_is_told_with_its_flaw(
    content: str | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "shapes.pbtxt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        DynamicShapes.from_file(path)


def test_config_yml_takes_a_path_or_ranges() -> None:
    assert local_conf(tensorrt={"shapes": "models/mine/shapes.pbtxt"}).tensorrt.shapes == (
        "models/mine/shapes.pbtxt"
    )
    ranges = {"x": {"min": [1], "opt": [1], "max": [2]}}
    assert DynamicShapes.from_ranges(local_conf(tensorrt={"shapes": ranges}).tensorrt.shapes).max == {
        "x": (2,)
    }

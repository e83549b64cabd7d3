"""`--sample`: a model is tried on inputs of its user's, from every kind of file, by every command."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from convert.cli import main
from convert.steps.conversion_environment import CONVERT_PYTHON
from convert.to_serving.build_serving_model import store_texts
from pipeline.engines.dynamic_shape import read_ranges
from tests.support import onnx_models
from tests.support.service_process import APPS, ROOT, ServiceProcess

LOGARITHM, SPEECH = onnx_models.onnx_file("logarithm"), onnx_models.onnx_file("speech")
IMAGES = onnx_models.onnx_file("images")
CLASSIFIER = onnx_models.onnx_file("classifier")
BERT = ROOT / "tests/fixtures/pdmodel/bert"
POSITIVE = np.array([[0.5, 1, 2, 3], [4, 5, 6, 7]], np.float32)
IDS = np.array([[5, 3, 2], [1, 1, 1]])


def parity(model: Path, sample: Path | str, *more: object) -> dict[str, object]:
    """What the parity report of a model's own two runs says with this sample."""
    report = Path("report.json")
    command = ["check", model, model, "--sample", sample, "--report", report, *more]
    assert main([str(part) for part in command]) == 0
    found: dict[str, object] = json.loads(report.read_text("utf-8"))[0]
    return found


def refused(capsys: pytest.CaptureFixture[str], *command: object, code: int = 2) -> str:
    assert main([str(part) for part in command]) == code
    told = capsys.readouterr().err
    assert "Traceback" not in told
    return told.strip().splitlines()[-1]


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def speech_sample(path: str = "speech.npz") -> dict[str, np.ndarray]:
    frame = np.sin(np.arange(64, dtype=np.float32) / 3)[None]
    feeds = {"input": frame, "state": np.zeros((2, 1, 4), np.float32), "sr": np.array(16000)}
    np.savez(path, **feeds)
    return feeds


def test_a_model_with_a_state_and_a_sample_rate_is_converted_and_served(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = refused(capsys, "serving", SPEECH, "served")
    assert "can't run input [1, 16]" in told and "--sample" in told
    told = refused(capsys, "serving", SPEECH, "served", "--lengths", "64", code=1)
    assert "output 'output' of the original is nan in 100.0% of its values" in told and "--sample" in told
    assert not Path("served").exists()
    feeds = speech_sample()
    assert main(["serving", str(SPEECH), "served", "--sample", "speech.npz"]) == 0
    (report,) = json.loads(Path("served/serving_server/parity.json").read_text("utf-8"))
    assert report["batches"] == [[1, 64]] and report["passed"]
    assert main(["check", "served", "--sample", "speech.npz"]) == 0
    conf = {"model_config": str(Path("served").resolve()), "thread_num": 1}
    with ServiceProcess(APPS / "model.py", {"op": {"model": {"local_service_conf": conf}}}) as service:
        answer = service.predict({name: json.dumps(array.tolist()) for name, array in feeds.items()})
    loud = np.pad(feeds["input"], ((0, 0), (0, 32)), mode="reflect").mean() * np.sqrt(16000 - 7999)
    np.testing.assert_allclose(json.loads(answer["output"]), [[2 * loud] * 4], rtol=1e-4)


def test_random_numbers_miss_a_logarithm_and_a_sample_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, "serving", LOGARITHM, "served", code=1)
    assert "output 'y' of the original is nan in" in told and told.endswith(
        "(--sample FILE); nothing was written."
    )
    np.savez("x.npz", x=POSITIVE)
    assert main(["serving", str(LOGARITHM), "served", "--sample", "x.npz"]) == 0
    before = Path("served").stat().st_ino
    assert main(["serving", str(LOGARITHM), "served", "--sample", "x.npz"]) == 0
    assert Path("served").stat().st_ino == before, "it is up to date"
    np.savez("x.npz", x=POSITIVE + 1)
    assert main(["serving", str(LOGARITHM), "served", "--sample", "x.npz"]) == 0
    assert Path("served").stat().st_ino != before, "the sample is another"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", "0.5,1,2,3\n4,5,6,7\n"),
        ("x.csv", "a,b,c,d\n0.5,1,2,3\n4,5,6,7\n"),
        ("x.csv", "label,x.0,x.1,x.2,x.3\n9,0.5,1,2,3\n-9,4,5,6,7\n"),
        ("x.csv", "x,x,x,x\r\n0.5,1,2,3\r\n\r\n4,5,6,7\r\n"),
        ("x.jsonl", '{"x": [0.5, 1, 2, 3]}\n\n{"x": [[4, 5, 6, 7]]}\n'),
        ("x.jsonl", "[0.5, 1, 2, 3]\n[4, 5, 6, 7]\n"),
    ],
)
def test_rows_of_numbers_are_a_batch(name: str, content: str) -> None:
    Path(name).write_text(content, "utf-8", newline="")
    found = parity(LOGARITHM, name)
    assert found["batches"] == [[2, 4], [1, 4]]
    (output,) = found["outputs"]  # type: ignore[misc]
    assert output["largest"] == pytest.approx(np.log(7))


def test_a_single_array_is_the_only_feed() -> None:
    np.save("x.npy", POSITIVE)
    assert parity(LOGARITHM, "x.npy")["batches"] == [[2, 4], [1, 4]]


def test_columns_and_values_go_to_their_feeds() -> None:
    line = {"attention_mask": [1, 1], "input_ids": [5, 3], "token_type_ids": [0, 0]}
    Path("ids.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(line) + "\n", "utf-8")
    assert parity(CLASSIFIER, "ids.jsonl")["batches"] == [[2, 2], [1, 2]]
    header = "input_ids,input_ids,token_type_ids.0,token_type_ids.1,attention_mask,attention_mask"
    Path("ids.csv").write_text(f"{header}\n5,3,0,0,1,1\n", "utf-8")
    assert parity(CLASSIFIER, "ids.csv")["batches"] == [[1, 2], [2, 2], [5, 2]]


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_an_image_is_decoded_to_0_to_1_in_the_feed_s_layout(mode: str) -> None:
    Image.new(mode, (6, 8), "white").save("white.png")
    found = parity(IMAGES, "white.png")
    assert found["batches"] == [[1, 3, 8, 6], [2, 3, 8, 6], [5, 3, 8, 6]]
    (output,) = found["outputs"]  # type: ignore[misc]
    assert output["largest"] == 4, "twice as much, and 2 for the last channel"


def test_texts_are_tokenised_by_the_model_s_own_tokenizer() -> None:
    Path("model").mkdir()
    shutil.copy(CLASSIFIER, "model/model.onnx")
    Path("model/vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\ngood\nbad\n", "utf-8")
    Path("texts.txt").write_text("good\nbad good\n", "utf-8")
    found = parity(Path("model"), "texts.txt")
    assert found["batches"] == [[1, 3], [1, 4], [2, 3], [5, 3]]


def test_several_files_are_all_run_and_the_old_name_of_the_option_goes_on() -> None:
    for number in (2, 3):
        np.savez(f"{number}.npz", **dict.fromkeys(onnx_models.FEEDS, np.ones((2, number), int)))
    assert parity(CLASSIFIER, "2.npz", "--inputs", "3.npz")["batches"] == [[2, 2], [2, 3], [1, 2]]


def test_padding_is_proven_on_the_sample_cut_to_several_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    feeds = {name: np.ones((1, 12), np.int64) for name in onnx_models.FEEDS}
    np.savez("ids.npz", **feeds)
    padding = ["--padding", ",".join(f"{name}=0" for name in feeds)]
    command = [*padding, "--sample", "ids.npz"]
    assert main(["serving", str(CLASSIFIER), "served", *command]) == 0
    reports = json.loads(Path("served/serving_server/parity.json").read_text("utf-8"))
    lengths = {shape[1] for shape in reports[1]["batches"]}
    assert lengths == {3, 6, 9, 12}
    told = refused(capsys, "serving", onnx_models.onnx_file("ignores_mask"), "other", *command, code=1)
    assert "padding: output 'logits' is off by" in told


def test_shapes_are_those_of_the_sample() -> None:
    for length in (7, 9):
        np.savez(
            f"{length}.npz", input_ids=np.ones((2, length), int), token_type_ids=np.zeros((2, length), int)
        )
    command = ["shapes", str(BERT), "shapes.pbtxt", "--sample", "7.npz", "--sample", "9.npz"]
    assert main(command) == 0
    found = read_ranges(Path("shapes.pbtxt"))["input_ids"]
    assert (found.min, found.max) == ((2, 7), (2, 9))


def test_a_layer_is_exported_on_its_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("logarithm_layer.py").write_text(
        "import paddle\n\n\nclass Logarithm(paddle.nn.Layer):\n"
        "    def forward(self, x):\n        return paddle.log(x)\n",
        "utf-8",
    )
    monkeypatch.syspath_prepend(".")
    Path("x.csv").write_text("1,2,3\n4,5,6\n", "utf-8")
    command = ["paddle", "logarithm_layer:Logarithm", "program", "--input-spec", "x:float32[-1,3]"]
    assert main(command) == 1
    assert main([*command, "--sample", "x.csv"]) == 0
    command = ["all", "logarithm_layer:Logarithm", "served", "--input-spec", "x:float32[-1,3]"]
    assert main([*command, "--sample", "x.csv"]) == 0
    reports = json.loads(Path("served/serving_server/parity.json").read_text("utf-8"))
    assert [report["batches"] for report in reports] == [[[2, 3], [1, 3]]] * 2


COMMANDS = {
    "demo": ["demo", "--dry-run"],
    "paddle": ["paddle", "no_module:factory", "out", "--input-spec", "x:int64[-1]"],
    "torch": ["torch", "no_module:factory", "out"],
    "serving": ["serving", CLASSIFIER, "out"],
    "onnx": ["onnx", CLASSIFIER, "out"],
    "to-onnx": ["to-onnx", BERT, "out"],
    "precision": ["precision", CLASSIFIER, "out", "--to", "fp16"],
    "shapes": ["shapes", BERT, "out"],
    "check": ["check", CLASSIFIER, CLASSIFIER],
    "all": ["all", CLASSIFIER, "out"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_a_sample(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, *COMMANDS[command], "--sample", "absent.npz")
    assert told == "absent.npz is not a file; name one with inputs for the model (--sample)."


@pytest.mark.parametrize(
    ("model", "name", "content", "told"),
    [
        (
            LOGARITHM,
            "x.csv",
            "1,2,3\n",
            "x.csv, line 1 has 3 columns, which can't be shared out among x float32",
        ),
        (LOGARITHM, "x.csv", "x.0,x.1,x.2,x.3\n1,2,3\n", "x.csv, line 2 has only 3 columns"),
        (LOGARITHM, "x.csv", "1,2,3,4\n1,2,three,4\n", "x.csv, line 2 holds what is no number of x, float32"),
        (LOGARITHM, "x.csv", "", "x.csv holds no row; give it numbers"),
        (
            CLASSIFIER,
            "x.csv",
            "input_ids\n1\n",
            "x.csv has no column 'token_type_ids'; name one for each feed",
        ),
        (CLASSIFIER, "x.csv", "1,2,3\n", "name the columns in a header, or give a .npz file"),
        (LOGARITHM, "x.jsonl", "[1,2\n", "x.jsonl, line 1 is not JSON"),
        (LOGARITHM, "x.jsonl", '[1,2,3,4]\n["a"]\n', "x.jsonl, line 2: x holds what is no number"),
        (LOGARITHM, "x.jsonl", "[[1,2],[3]]\n", "x.jsonl, line 1: the lists of x are of different length"),
        (LOGARITHM, "x.jsonl", "[1,2,3]\n", "x.jsonl, line 1: x is int64[1, 3], but"),
        (LOGARITHM, "x.jsonl", "\n", "x.jsonl holds no row; give it an object"),
        (LOGARITHM, "x.jsonl", '{"y": [1]}\n', "x.jsonl, line 1 holds nothing, but"),
        (CLASSIFIER, "x.jsonl", "[1,2,3]\n", "holds one value, but"),
        (CLASSIFIER, "x.npy", None, "x.npy holds one array, but"),
        (LOGARITHM, "x.npy", "text", "x.npy is no .npy file of a plain array"),
        (IMAGES, "x.png", "text", "x.png is no image that can be decoded"),
        (LOGARITHM, "x.png", None, "x.png is an image, but x of"),
        (CLASSIFIER, "x.txt", "good\n", "has neither tokenizer.json nor vocab.txt"),
        (IMAGES, "x.txt", "good\n", "x.txt holds texts, from which 'image'"),
    ],
)
def test_a_sample_that_can_t_be_used_is_told_in_a_sentence(
    model: Path, name: str, content: str | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path(name).write_text(content, "utf-8")
    elif name.endswith(".npy"):
        np.save(name, POSITIVE)
    else:
        Image.new("RGB", (4, 4)).save(name)
    assert told in refused(capsys, "serving", model, "out", "--sample", name)
    assert not Path("out").exists()


def test_a_precision_is_judged_on_the_sample(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CONVERT_PYTHON, sys.executable)
    np.savez("ids.npz", **dict.fromkeys(onnx_models.FEEDS, IDS * 10**6))
    command = ["precision", CLASSIFIER, "out", "--to", "int8-calibrated", "--calibration", "ids.npz"]
    told = refused(capsys, *command, "--sample", "ids.npz")
    assert f"{CLASSIFIER} can't run input_ids [2, 3]" in told


# What is left beside the serving model

PADDING = "input_ids=0,token_type_ids=0,attention_mask=0"


def ids_file(*lengths: int) -> str:
    lines = [
        {"input_ids": [5] * length, "token_type_ids": [1] * length, "attention_mask": [1] * length}
        for length in lengths
    ]
    Path("ids.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return "ids.jsonl"


def left_rows(out: str = "served") -> dict[str, np.ndarray]:
    with np.load(Path(out) / "serving_server/sample.npz", allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


@pytest.mark.parametrize("command", ["serving", "all"])
def test_the_rows_of_a_sample_are_left_beside_the_model_padded(command: str) -> None:
    engine = ["--engine", "onnxruntime"] if command == "all" else []
    sample = ["--padding", PADDING, "--sample", ids_file(2, 4, 3)]
    assert main([command, str(CLASSIFIER), "served", *sample, *engine]) == 0
    rows = left_rows()
    assert set(rows) == set(onnx_models.FEEDS)
    assert rows["input_ids"].tolist() == [[5, 5, 0, 0], [5, 5, 5, 5], [5, 5, 5, 0]]
    assert rows["attention_mask"].sum(axis=1).tolist() == [2, 4, 3]
    stamp = json.loads(Path("served/convert.json").read_text("utf-8"))
    assert "serving_server/sample.npz" in stamp["files"]


def test_of_many_texts_a_few_are_left_as_bodies_of_requests() -> None:
    Path("served/serving_server").mkdir(parents=True)
    texts = [f"text {number}" for number in range(1000)]
    store_texts(Path("served"), texts)
    store_texts(Path("served"), ["an existing file stays"])
    bodies = Path("served/serving_server/sample.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(body) for body in bodies] == [
        {"key": ["text"], "value": [text]} for text in texts[::4]
    ]


def test_of_rows_that_can_t_be_padded_those_of_the_most_common_shape_are_left() -> None:
    assert main(["serving", str(CLASSIFIER), "served", "--sample", ids_file(2, 3, 3)]) == 0
    assert left_rows()["input_ids"].tolist() == [[5, 5, 5], [5, 5, 5]]


def test_without_rows_nothing_is_left() -> None:
    speech_sample()
    assert main(["serving", str(SPEECH), "speech", "--sample", "speech.npz"]) == 0
    assert main(["serving", str(CLASSIFIER), "served"]) == 0
    assert not Path("speech/serving_server/sample.npz").exists()
    assert not Path("served/serving_server/sample.npz").exists()


def test_a_file_of_rows_that_is_given_beside_the_model_stays() -> None:
    np.savez("sample.npz", x=POSITIVE)
    np.save("others.npy", POSITIVE + 1)
    command = ["serving", str(LOGARITHM), "served", "--sample", "others.npy", "--file", "sample.npz"]
    assert main(command) == 0
    np.testing.assert_array_equal(left_rows()["x"], POSITIVE)

"""Serving models on disk: what is written is read back, the original's files load, flaws are named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.models.serving_model import (
    FeedPadding,
    Padding,
    Variable,
    load_serving_model,
    write_serving_model,
)

FEEDS = (Variable("x", "input_ids", "int64", (-1, -1)), Variable('odd "name"\\', "mask", "float32", (-1, 8)))
FETCHES = (Variable("save_infer_model/scale_0.tmp_0", "logits", "float32", (-1, 3)),)
PIR = '{"base_code":{"magic":"pir","version":4},"program":{}}'

ORIGINAL = """
feed_var { name: "x" alias_name: "words" is_lod_tensor: false
  feed_type: 0 shape: -1 shape: 128 }
feed_var {
  name: "image"
  alias_name: "image"
  is_lod_tensor: false
  feed_type: 1
  shape: 3
  shape: 224
  shape: 224
}
fetch_var { name:"fc_0.tmp_2",alias_name:'prob' , fetch_type:1 shape: [ -1, 10 ] }  # as printed
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    program, params = tmp_path / "in" / "bert.json", tmp_path / "in" / "bert.pdiparams"
    program.parent.mkdir()
    program.write_text(PIR)
    params.write_bytes(b"weights")
    return program, params


def server_folder(tmp_path: Path, conf: str = ORIGINAL, additions: str | None = None) -> Path:
    """A serving_server/ of the original's kind; its model files are never opened here."""
    folder = tmp_path / "model" / "serving_server"
    folder.mkdir(parents=True)
    (folder / "serving_server_conf.prototxt").write_text(conf)
    (folder / "inference.pdmodel").write_bytes(b"program")
    (folder / "inference.pdiparams").write_bytes(b"weights")
    if additions is not None:
        (folder / "serving.yml").write_text(additions)
    return folder


def test_what_is_written_is_read_back(tmp_path: Path, files: tuple[Path, Path]) -> None:
    extra = tmp_path / "vocab.txt"
    extra.write_text("[PAD]\n")
    padding = Padding({"input_ids": FeedPadding(1, 0)}, {}, max_length=256)
    write_serving_model(
        tmp_path / "out",
        *files,
        FEEDS,
        FETCHES,
        padding=padding,
        labels=["体育", "no"],
        additions={"parity": {"max_abs_diff": 0.5}},
        extra_files=[extra],
    )
    model = load_serving_model(tmp_path / "out")
    assert (model.feeds, model.fetches, model.padding) == (FEEDS, FETCHES, padding)
    assert (model.labels, model.additions["parity"]) == (("体育", "no"), {"max_abs_diff": 0.5})
    assert model.directory == tmp_path / "out" / "serving_server"
    assert model.program.name == "bert.json"
    assert model.params is not None and model.params.read_bytes() == b"weights"
    assert model.format == "pir"
    assert (model.directory / "vocab.txt").read_text() == "[PAD]\n"
    assert load_serving_model(model.directory) == model
    client = tmp_path / "out" / "serving_client" / "serving_client_conf.prototxt"
    assert client.read_text() == (model.directory / "serving_server_conf.prototxt").read_text()


def test_files_of_paddle_serving_load(tmp_path: Path) -> None:
    model = load_serving_model(server_folder(tmp_path).parent)
    assert model.feeds == (
        Variable("x", "words", "int64", (-1, 128)),
        Variable("image", "image", "float32", (-1, 3, 224, 224)),
    )
    assert model.fetches == (Variable("fc_0.tmp_2", "prob", "float32", (-1, 10)),)
    assert (model.format, model.padding, model.labels) == ("pdmodel", None, ())


@pytest.mark.parametrize(
    ("program", "params"), [("__model__", "__params__"), ("m.pdmodel", "other.pdiparams"), ("m.onnx", None)]
)
def test_model_files_are_found_whatever_their_names(tmp_path: Path, program: str, params: str | None) -> None:
    folder = server_folder(tmp_path)
    (folder / "inference.pdmodel").rename(folder / program)
    (folder / "inference.pdiparams").rename(folder / (params or "notes.bin"))
    (folder / "tokenizer.json").write_text('{"model": {}}')
    model = load_serving_model(folder)
    assert model.program.name == program
    assert (model.params.name if model.params else None) == params


def test_a_second_program_is_refused(tmp_path: Path) -> None:
    folder = server_folder(tmp_path)
    (folder / "inference.json").write_text(PIR)
    with pytest.raises(ConfigError, match=r"several models \(inference.json, inference.pdmodel\)"):
        load_serving_model(folder)


def test_a_missing_directory_and_a_directory_without_description_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not there"):
        load_serving_model(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="paddlewheel convert serving"):
        load_serving_model(tmp_path)


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ('feed_var { name: "x" ', 'line 1: Expected "}"'),
        ('\n\nfeed_var { name "x" }', 'line 3: \'feed_var { name "x" }\': Expected ":"'),
        ("feed_var { name: \x00 }", "Expected string but found: '\\x00'"),
        ("feed_var {\n" * 40, "line 2: unknown field 'feed_var' in FeedVar"),
        ("", "0 entries of feed_var"),
        (
            'feed_var { name: "x" name: "y" }',
            'line 1: message "FeedVar" should not have multiple "name" fields',
        ),
        ('feed_var { name: "' + "x" * 1000, "line 1: ..." + "x" * 200),
        ("feed_vars { }", "line 1: unknown field 'feed_vars' in GeneralModelConfig; did you mean feed_var?"),
        (
            'feed_var { name: "x" type: 1 }',
            "line 1: unknown field 'type' in FeedVar; did you mean",
        ),
        ('feed_var { name: "x" feed_type: 10 }', "feed_type 10 is not one of 0 int64"),
        (
            'feed_var { name: "x" feed_type: "0" }',
            'line 1: \'feed_var { name: "x" feed_type: "0" }\': Couldn\'t parse integer: "0"',
        ),
        ('feed_var { name: "x" shape: -2 }', "shape [-2] is not a list of lengths"),
        ("feed_var { shape: 1 }", "feed_var 0 has no name"),
        ('feed_var { name: "x" } feed_var { name: "x" }', "two entries of feed_var have the name 'x'"),
        ('feed_var { name: "x" }' + " " * (5 << 20), "is over 4194304 bytes"),
    ],
    ids=lambda value: str(value)[:24].strip(),
)
def test_a_flawed_description_is_named_with_file_and_place(tmp_path: Path, conf: str, message: str) -> None:
    folder = server_folder(tmp_path, conf)
    with pytest.raises(ConfigError) as caught:
        load_serving_model(folder)
    assert message in caught.value.message
    assert str(folder / "serving_server_conf.prototxt") in caught.value.message


@pytest.mark.parametrize(
    ("additions", "message"),
    [
        ("paddings: {}", "unknown key 'paddings', did you mean 'padding'?"),
        ("labels: [yes]", "labels is not a list of strings"),
        ("- 1", "is not a mapping"),
        ("padding: {feeds: {x: {axis: 1}}}", "padding.feeds.x: the model has only words, image"),
        ("padding: {feeds: {words: {axis: 1}}}", "axis 1 always has length 128"),
        ("padding: {feeds: {words: {axis: 0}}}", "axis 0 is not one of 1 to 1"),
        ("padding: {feeds: {words: 1}}", "is not of the form {axis: 1, value: 0}"),
        ("padding: {fetches: {prob: 2}}", "axis 2 is not one of 1 to 1"),
        ("padding: {feeds: {words: {axis: 1, value: .nan}}}", "is not a number"),
        ("padding: {max_length: 0}", "padding.max_length 0 is not a whole number from 1 up"),
        ("padding: {longest: 9}", "padding is not a mapping with feeds, fetches and max_length"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_flawed_serving_yml_is_named(tmp_path: Path, additions: str, message: str) -> None:
    folder = server_folder(tmp_path, additions=additions)
    with pytest.raises(ConfigError) as caught:
        load_serving_model(folder)
    assert message in caught.value.message
    assert str(folder / "serving.yml") in caught.value.message


def test_what_could_not_be_read_back_leaves_the_old_model_in_place(
    tmp_path: Path, files: tuple[Path, Path]
) -> None:
    out = tmp_path / "out"
    write_serving_model(out, *files, FEEDS, FETCHES)
    wrong = Padding({"mask": FeedPadding(1)}, {})
    with pytest.raises(
        ConfigError, match=r"out/serving_server/serving\.yml: padding\.feeds\.mask: axis 1 always"
    ):
        write_serving_model(out, *files, FEEDS, FETCHES, padding=wrong)
    assert load_serving_model(out).padding is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_feeds_that_do_not_begin_with_the_batch_keep_their_shapes(
    tmp_path: Path, files: tuple[Path, Path]
) -> None:
    feeds = (
        Variable("image", "image", "float32", (1, 3, 8, 8)),
        Variable("state", "state", "float32", (2, -1, 4)),
        Variable("rate", "rate", "float32", ()),
    )
    write_serving_model(tmp_path / "out", *files, feeds, FETCHES)
    assert load_serving_model(tmp_path / "out").feeds == feeds


def test_batched_is_true_or_false(tmp_path: Path) -> None:
    folder = server_folder(tmp_path, additions="batched: maybe")
    with pytest.raises(ConfigError, match=r"serving\.yml: batched is 'maybe', expected true or false"):
        load_serving_model(folder)


def test_a_model_is_replaced_but_a_foreign_folder_is_not(tmp_path: Path, files: tuple[Path, Path]) -> None:
    out = tmp_path / "out"
    write_serving_model(out, *files, FEEDS, FETCHES, labels=["a"])
    write_serving_model(out, *files, FEEDS, FETCHES, labels=["b"])
    assert load_serving_model(out).labels == ("b",)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]
    with pytest.raises(ConfigError, match=r"bert\.json, which is no part of a serving model"):
        write_serving_model(files[0].parent, *files, FEEDS, FETCHES)


def test_reading_a_model_imports_no_framework() -> None:
    code = "import pipeline.models.serving_model, pipeline.engines, sys; sys.exit('paddle' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

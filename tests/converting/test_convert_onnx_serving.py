"""ONNX models through `paddlewheel convert serving`, and the service that `paddlewheel new` makes of one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from client.values import parse_value
from convert.cli import main
from pipeline.engines import create_predictor
from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.serving_model import load_serving_model
from tests.support import onnx_models, padding_models
from tests.support.command_line import paddlewheel
from tests.support.free_ports import free_port
from tests.support.models import local_conf
from tests.support.service_process import ServiceProcess

PADDING = "input_ids=0,token_type_ids=0,attention_mask=0"


def convert(source: Path, out: Path, *more: str) -> int:
    return main(["serving", str(source), str(out), *more])


def sample(rows: int, length: int) -> dict[str, np.ndarray[Any, Any]]:
    ids = np.random.default_rng(length).integers(0, 64, (rows, length))
    return {"input_ids": ids, "token_type_ids": ids % 2, "attention_mask": np.ones_like(ids)}


def own_logits(feeds: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """What the file itself answers, by ONNX Runtime alone."""
    session = onnxruntime.InferenceSession(str(onnx_models.onnx_file("classifier")))
    logits: np.ndarray[Any, Any] = session.run(["logits"], feeds)[0]
    return logits


def test_an_onnx_file_becomes_a_serving_model_with_its_own_names_dtypes_and_answers(tmp_path: Path) -> None:
    source, out = onnx_models.onnx_file("classifier"), tmp_path / "out"
    more = ["--padding", PADDING, "--fetch-alias", "scores", "--labels", "a,b,c"]
    assert convert(source, out, *more) == 0
    model = load_serving_model(out)
    assert [(v.name, v.alias, v.dtype, v.shape) for v in (*model.feeds, *model.fetches)] == [
        ("input_ids", "input_ids", "int64", (-1, -1)),
        ("token_type_ids", "token_type_ids", "int64", (-1, -1)),
        ("attention_mask", "attention_mask", "int64", (-1, -1)),
        ("logits", "scores", "float32", (-1, 3)),
    ]
    assert (model.format, model.labels) == ("onnx", ("a", "b", "c"))
    feeds = sample(4, 9)
    scores = create_predictor(model, local_conf()).run(feeds)["scores"]
    np.testing.assert_allclose(scores, own_logits(feeds), atol=1e-6)


def test_what_was_proven_is_stored_and_declared(tmp_path: Path) -> None:
    assert convert(onnx_models.onnx_file("classifier"), tmp_path / "out", "--padding", PADDING) == 0
    reports = json.loads((tmp_path / "out/serving_server/parity.json").read_text())
    assert [(report["step"], report["passed"]) for report in reports] == [
        ("static to serving", True),
        ("padding", True),
    ]
    assert len(reports[0]["batches"]) > 5
    padding = load_serving_model(tmp_path / "out").padding
    assert padding is not None
    assert {name: (feed.axis, feed.value) for name, feed in padding.feeds.items()} == dict.fromkeys(
        onnx_models.FEEDS, (1, 0)
    )


def test_a_folder_with_weights_in_a_file_of_their_own_is_copied_whole(tmp_path: Path) -> None:
    assert convert(onnx_models.FIXTURES / "external", tmp_path / "out") == 0
    assert (tmp_path / "out/serving_server/classifier.data").is_file()
    feeds = sample(2, 5)
    predictor = create_predictor(load_serving_model(tmp_path / "out"), local_conf())
    np.testing.assert_allclose(predictor.run(feeds)["logits"], own_logits(feeds), atol=1e-6)


def test_every_dtype_is_described_as_the_model_has_it(tmp_path: Path) -> None:
    assert convert(onnx_models.onnx_file("dtypes"), tmp_path / "out") == 0
    assert [feed.dtype for feed in load_serving_model(tmp_path / "out").feeds] == [
        "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool", "string",
    ]  # fmt: skip


def test_a_model_whose_mask_is_wrong_is_not_written_with_padding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = onnx_models.onnx_file("ignores_mask"), tmp_path / "out"
    assert convert(source, out, "--padding", PADDING) == 1
    told = capsys.readouterr()
    assert "padding: output 'logits' is off by" in told.err
    assert "cosine" in told.out and "7.96e+00" in told.out
    assert list(tmp_path.iterdir()) == []
    assert convert(source, out) == 0
    assert load_serving_model(out).padding is None


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("scaled_by_the_logarithm_of_lengths_over_64", "input_ids=0,attention_mask=0"),
        ("positions_from_the_end_over_300", "input_ids=0,attention_mask=0"),
        ("argmax_of_integers", "x=0"),
    ],
)
def test_the_conversion_proves_padding_as_repositories_do(
    name: str, values: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lengths and the content of the conversion's own rows would let these models pass."""
    source, out = tmp_path / "source.onnx", tmp_path / "out"
    source.write_bytes(padding_models.model(name))
    assert convert(source, out, "--padding", values) == 1
    assert "padding: padded rows answer otherwise than alone" in capsys.readouterr().err
    assert convert(source, out) == 0
    assert load_serving_model(out).padding is None


def test_padding_is_declared_up_to_the_length_that_was_proven(tmp_path: Path) -> None:
    source, values = tmp_path / "source.onnx", "input_ids=0,attention_mask=0"
    for name, longest, max_length in (("encoder", (1, 512), None), ("token_classes", None, 1024)):
        source.write_bytes(padding_models.model(name))
        assert convert(source, tmp_path / name, "--padding", values) == 0
        model = load_serving_model(tmp_path / name)
        assert {feed.longest for feed in model.feeds} == {longest}
        assert model.padding is not None and model.padding.max_length == max_length


def test_a_result_is_made_again_only_when_its_model_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(onnx_models.FIXTURES / "external", source)
    for told in ("holds the serving model", "is up to date"):
        assert convert(source, out) == 0
        assert told in capsys.readouterr().out
    weights = source / "classifier.data"
    content = weights.read_bytes()
    weights.write_bytes(bytes([content[0] ^ 1]) + content[1:])  # the last bit of a float
    assert convert(source, out, "--dry-run") == 0
    assert "would write" in capsys.readouterr().out
    assert convert(source, out) == 0
    assert (out / "serving_server/classifier.data").read_bytes() == weights.read_bytes()


def test_a_label_that_is_declared_for_one_row_is_described_as_it_is(tmp_path: Path) -> None:
    assert main(["serving", str(onnx_models.onnx_file("table")), str(tmp_path / "served")]) == 0
    shapes = {fetch.alias: fetch.shape for fetch in load_serving_model(tmp_path / "served").fetches}
    assert shapes == {"label": (-1,), "probabilities": (-1, 3)}


def test_paddle_is_not_imported_for_it(tmp_path: Path) -> None:
    code = (
        "import sys; from convert.cli import main; code = main(sys.argv[1:]);"
        "sys.exit(99 if 'paddle' in sys.modules else code)"
    )
    source = str(onnx_models.onnx_file("images"))
    command = [sys.executable, "-c", code, "serving", source, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["fixed", "stateful"])
def test_a_model_whose_feeds_do_not_all_begin_with_the_batch_keeps_their_shapes(
    tmp_path: Path, name: str
) -> None:
    source, out = onnx_models.onnx_file(name), tmp_path / "out"
    assert convert(source, out) == 0
    model, facts = load_serving_model(out), inspect_onnx(source)
    assert (model.feeds, model.fetches) == (facts.feeds, facts.fetches)
    assert not create_predictor(model, local_conf()).merges


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("missing.onnx", "is neither a folder nor a .onnx file"),
        ("cut.onnx", "cut.onnx is not an ONNX model (it ends within a field): copy or export"),
        ("several", "holds several models (one.onnx, two.onnx)"),
        ("no_data", "has weights in classifier.data, which is not beside it; copy it there"),
        ("sequence.onnx", "output 'all' is no tensor of a type that can be served"),
    ],
)
def test_what_can_t_be_converted_is_told_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, told: str
) -> None:
    given, out = tmp_path / "given", tmp_path / "out"
    for folder in ("several", "no_data"):
        (given / folder).mkdir(parents=True)
    whole = onnx_models.onnx_file("classifier").read_bytes()
    for name, content in {
        "cut.onnx": whole[:-20],
        "several/one.onnx": whole,
        "several/two.onnx": whole,
    }.items():
        (given / name).write_bytes(content)
    shutil.copy(onnx_models.FIXTURES / "external/classifier.onnx", given / "no_data")
    shutil.copy(onnx_models.FIXTURES / "sequence.onnx", given)
    assert convert(given / source, out) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert told in error
    assert not out.exists()


def test_the_service_that_new_makes_of_it_answers_as_the_file_does(tmp_path: Path) -> None:
    model, app = tmp_path / "model", tmp_path / "news"
    source = onnx_models.onnx_file("classifier")
    assert convert(source, model, "--padding", PADDING, "--labels", "a,b,c") == 0
    ports = {"http_port": free_port(), "rpc_port": free_port()}
    done = paddlewheel(
        "new", app, "--model", model,
        "--http-port", str(ports["http_port"]), "--rpc-port", str(ports["rpc_port"]),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with ServiceProcess(app, ports, name="news") as service:
        for rows, length in ((1, 3), (2, 17)):
            feeds = sample(rows, length)
            answer = service.predict({name: json.dumps(array.tolist()) for name, array in feeds.items()})
            expected = own_logits(feeds)
            np.testing.assert_allclose(parse_value(answer["logits"]), expected, atol=1e-5)
            assert parse_value(answer["label"]) == ["abc"[best] for best in expected.argmax(-1)]


def test_an_output_that_ends_with_a_sigmoid_is_described_with_several_labels(tmp_path: Path) -> None:
    topics = onnx_models.onnx_file("topics")
    assert convert(topics, tmp_path / "served", "--labels", "a,b,c") == 0
    output = load_serving_model(tmp_path / "served").description.outputs["scores"]
    assert (output.kind, output.model_dump()["activation"]) == ("multilabel", "none")


def test_a_configuration_for_several_labels_is_believed(tmp_path: Path) -> None:
    source = onnx_models.bare(tmp_path, "classifier")
    config = {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "a", "1": "b", "2": "c"},
        "problem_type": "multi_label_classification",
    }
    (source / "config.json").write_text(json.dumps(config), "utf-8")
    assert main(["all", str(source), str(tmp_path / "served"), "--engine", "onnxruntime"]) == 0
    model = load_serving_model(tmp_path / "served")
    output = model.description.outputs["logits"]
    assert (model.labels, output.kind) == (("a", "b", "c"), "multilabel")
    assert output.model_dump()["activation"] == "sigmoid"

"""The command that `paddlewheel new` prints is answered, whatever the model takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from client.values import parse_value
from convert.cli import main
from convert.to_serving.next_step import next_step
from pipeline.launch.commands import paddlewheel
from pipeline.models.serving_model import SERVER_FOLDER
from tests.support import embedding_models, old_models, onnx_models
from tests.support.curl_commands import run_curl
from tests.support.free_ports import free_port
from tests.support.new_services import NewService, command_in, new_service
from tests.support.service_process import ServiceProcess
from tests.support.text_services import NLI, classifier

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "text", "good", "bad"]


def text_classifier(folder: Path) -> Path:
    """A classifier of texts with the vocabulary of its tokenizer beside it."""
    model = onnx_models.serving(folder)
    (model / SERVER_FOLDER / "vocab.txt").write_text("\n".join(WORDS), "utf-8")
    return model


def key_values(new: NewService) -> dict[str, Any]:
    """What the printed command is answered with over key/value."""
    answer = new.ask()
    assert (answer.status, answer.json["err_no"]) == (200, 0), answer
    values = map(parse_value, answer.json["value"])
    return dict(zip(answer.json["key"], values, strict=True))


def prediction(new: NewService) -> dict[str, Any]:
    answer = new.ask()
    assert answer.status == 200, answer
    (row,) = answer.json["predictions"]
    return dict(row)


@pytest.mark.parametrize(
    ("model", "answer"),
    [
        ("series", {"mean": [[1.0] * 6]}),  # [-1, -1, 6]
        ("board", {"y": [[2.0] * 4] * 8}),  # [8, 4]
        ("words", {"logits": [[-1, 0.5, 1]]}),  # a text, unknown to it
        ("stateful", {"y": [[4.0] * 4], "next": [[[2.0] * 4]] * 2}),  # several inputs, the batch not in front
        ("fixed", {"y": [[1.0] * 4]}),
    ],
)
def test_tensors_of_every_kind(tmp_path: Path, model: str, answer: dict[str, Any]) -> None:
    with new_service(tmp_path, onnx_models.bare(tmp_path / "models", model), "tensors") as new:
        assert key_values(new) == answer
        same_over_other_endpoints(new)


def test_the_sample_of_a_model_without_a_batch_axis(tmp_path: Path) -> None:
    """The model rejects lengths of the usual warm-up."""
    sample = {
        "input": np.sin(np.arange(64, dtype=np.float32) / 3)[None],
        "state": np.zeros((2, 1, 4), np.float32),
        "sr": np.array(16000),
    }
    np.savez(tmp_path / "speech.npz", **sample)
    arguments = ["serving", str(onnx_models.onnx_file("speech")), str(tmp_path / "speech")]
    assert main([*arguments, "--sample", str(tmp_path / "speech.npz")]) == 0
    with new_service(tmp_path, tmp_path / "speech", "listens", measures=True) as new:
        assert np.isfinite(key_values(new)["output"]).all()
        same_over_other_endpoints(new)
        assert "is warm" in new.service.log and "not warmed up" not in new.service.log


def test_a_tensor_too_large_for_a_command_is_sent_from_a_file(tmp_path: Path) -> None:
    model = onnx_models.bare(tmp_path / "models", "photos_of_four")
    with new_service(tmp_path, model, "large") as new:
        assert "-binary @large/example.json" in new.question
        (first, *others) = key_values(new)["logits"]
    assert len(others) == 3 and len(first) == 10


def test_every_dtype(tmp_path: Path) -> None:
    with new_service(tmp_path, onnx_models.bare(tmp_path / "models", "dtypes"), "dtypes") as new:
        answer = key_values(new)
    assert answer["text_out"] == [["text", "text"]] and answer["flag_out"] == [[True, True]]
    assert len(answer) == 9


def test_a_sequence_of_unequal_length(tmp_path: Path) -> None:
    """Of an old Paddle model, which is run by Paddle."""
    with new_service(tmp_path, old_models.bag_of_words(tmp_path), "words", measures=True) as new:
        assert key_values(new) == {"prediction": [[1.5, 1.0]]}


def test_a_text_without_a_line_of_code(tmp_path: Path) -> None:
    model = text_classifier(tmp_path / "models")
    with new_service(tmp_path, model, "news", "--input", "text") as new:
        row = prediction(new)
        assert row.keys() == {"label", "score", "labels", "scores"} and row["label"] in onnx_models.LABELS
        same_over_other_endpoints(new)
        ids = {"input_ids": [[2, 4, 3]], "token_type_ids": [[0] * 3], "attention_mask": [[1] * 3]}
        body = {"instances": [{name: value[0] for name, value in ids.items()}]}
        logits = new.service.http("/v1/models/news_model:predict", json.dumps(body)).json
        ((scores,),) = (list(one.values()) for one in logits["predictions"])
        assert onnx_models.LABELS[scores.index(max(scores))] == row["label"]


def test_an_encoder_makes_vectors_and_its_own_files_stay(tmp_path: Path) -> None:
    model = embedding_models.encoder(tmp_path / "models" / "finder", {"kind": "embedding"})
    described = model / "serving_server" / "serving.yml"
    noted = {"task": "feature-extraction", "padding": yaml.safe_load(described.read_text("utf-8"))["padding"]}
    described.write_text(yaml.safe_dump(noted), "utf-8")
    assert next_step(model) == f"{paddlewheel()} text {model}"
    with new_service(tmp_path, model, "finder_texts", "--input", "text") as new:
        vector = prediction(new)["embedding"]
        assert len(vector) == 8 and sum(number**2 for number in vector) == pytest.approx(1, abs=1e-4)
    assert yaml.safe_load(described.read_text("utf-8")) == noted
    own = yaml.safe_load((tmp_path / "finder_texts" / "serving.yml").read_text("utf-8"))
    assert own["outputs"] == {"last_hidden_state": {"kind": "embedding"}}


def test_a_text_for_a_model_that_reads_texts_itself(tmp_path: Path) -> None:
    model = onnx_models.bare(tmp_path / "models", "words")
    with new_service(tmp_path, model, "moves", "--input", "text", "--labels", "fall,stay,rise") as new:
        assert prediction(new)["label"] == "rise"  # of a word that it does not know
        body = json.dumps({"instances": [{"text": "down"}, {"text": "up"}]})
        told = new.service.http("/v1/models/moves:predict", body).json["predictions"]
    assert [one["label"] for one in told] == ["stay", "fall"]


@pytest.mark.parametrize(
    ("model", "options"),
    [("people", ()), ("flowers", ("--columns", "length,width,petal length (cm),petals"))],
)
def test_a_row_of_a_table(tmp_path: Path, model: str, options: tuple[str, ...]) -> None:
    with new_service(
        tmp_path, onnx_models.bare(tmp_path / "models", model), "rows", "--input", "table", *options
    ) as new:
        assert prediction(new).keys() == {"label", "score"}
        same_over_other_endpoints(new)


@pytest.mark.parametrize(
    ("create", "options", "expected"),
    [
        (text_classifier, ("--input", "text", "--output", "multilabel"), {"labels", "scores"}),
        (lambda folder: embedding_models.similarity(folder / "alike"), (), {"score", "truncated"}),
        (lambda folder: embedding_models.cross_encoder(folder / "ranks"), (), {"score", "truncated"}),
    ],
    ids=["multilabel", "similarity", "relevance"],
)
def test_every_other_kind_of_texts(
    tmp_path: Path, create: Callable[[Path], Path], options: tuple[str, ...], expected: set[str]
) -> None:
    with new_service(tmp_path, create(tmp_path / "models"), "asked", *options) as new:
        assert prediction(new).keys() == expected
        for path in ("/v1/models/asked:predict", "/asked/prediction"):
            content = new.service.http("/openapi.json").json["paths"][path]["post"]["requestBody"]["content"]
            body = content["application/json"]["example"]
            assert new.service.http(path, json.dumps(body)).status == 200


def same_over_other_endpoints(new: NewService) -> None:
    """Every example that the service shows of itself is answered, with the same outputs."""
    name = new.service.name
    paths = new.service.http("/openapi.json").json["paths"]
    endpoints = {
        f"/{name}/prediction": "key",
        f"/v1/models/{name}:predict": "",
        f"/v2/models/{name}/infer": "",
    }
    outputs = []
    for path in endpoints:
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["example"]
        answer = new.service.http(path, json.dumps(body))
        assert (answer.status, answer.json.get("err_no", 0)) == (200, 0), answer
        told = answer.json
        if "outputs" in told:
            outputs.append({one["name"] for one in told["outputs"]})
        else:
            outputs.append(set(told["key"] if "key" in told else told["predictions"][0]))
    assert outputs[0] and outputs == [outputs[0]] * 3


def test_a_service_that_new_starts_itself_answers_what_it_prints_and_ends_at_a_signal(tmp_path: Path) -> None:
    model = onnx_models.bare(tmp_path / "models", "series")
    ports = {"http_port": free_port(), "rpc_port": free_port()}
    listening = ["--http-port", str(ports["http_port"]), "--rpc-port", str(ports["rpc_port"])]
    command = ["pipeline", "new", "series", "--model", str(model), "--run", *listening]
    with ServiceProcess("-m", ports, name="series", arguments=command, folder=tmp_path) as service:
        question = command_in(service.log, "curl")
        assert run_curl(question, service, tmp_path).status == 200
        assert "The service starts." in service.log and "python3" not in service.log
        service.terminate()
        assert service.exit_code() == 0


@pytest.mark.parametrize(
    ("labels", "options", "told"),
    [
        (("O", "B-A", "I-A"), (), {"entities"}),
        (NLI, ("--output", "zero-shot"), {"label", "score", "labels", "scores"}),
    ],
)
def test_texts_to_entities_and_to_labels_of_the_caller(
    tmp_path: Path, labels: tuple[str, ...], options: tuple[str, ...], told: set[str]
) -> None:
    model = classifier(tmp_path / "models") if options else onnx_models.bare(tmp_path / "models", "tags")
    (model / "vocab.txt").write_text("\n".join(WORDS), "utf-8")
    given = ("--input", "text", "--labels", ",".join(labels), *options)
    with new_service(tmp_path, model, "texts", *given) as new:
        assert prediction(new).keys() == told

"""Vectors, similarity and relevance of texts, as in serving.yml: over every endpoint, against figures
worked out here."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.models.serving_model import load_serving_model
from pipeline.ops.text_tasks.tasks import text_task
from tests.support.embedding_models import (
    cross_encoder,
    encoder,
    ids_of,
    projected,
    projected_vector,
    projection,
    relevance,
    similarity,
    token_vectors,
)
from tests.support.service_process import APPS, ServiceProcess

Array = np.ndarray[Any, Any]
TEXTS = ["w1 w2 w3", "w7", "国 足 客 场 取 胜", "w1 " * 20, "w3 unknown w4"]


@contextlib.contextmanager
def serving(model: Path) -> Iterator[ServiceProcess]:
    local = {"client_type": "local_predictor", "model_config": str(model), "thread_num": 1}
    section = {"concurrency": 1, "batch_size": 8, "local_service_conf": local}
    config = {"dag": {"http_errors": "status"}, "op": {"model": section}}
    with ServiceProcess(APPS / "described.py", config) as service:
        yield service


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("encoder") / "model"
    with serving(encoder(folder, {"kind": "embedding"})) as service:
        yield service


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with serving(cross_encoder(tmp_path_factory.mktemp("pairs") / "model")) as service:
        yield service


def predict(service: ServiceProcess, rows: list[Any], **parameters: Any) -> list[Any]:
    answer = service.http(
        "/v1/models/test:predict", json.dumps({"instances": rows, "parameters": parameters})
    )
    assert answer.status == 200, answer.body
    found: list[Any] = answer.json["predictions"]
    return found


def unit(vector: Array) -> Array:
    return np.asarray(vector / np.linalg.norm(vector))


def mean_of(text: str) -> Array:
    return np.asarray(token_vectors(ids_of(text)).mean(axis=0))


def test_a_vector_is_the_mean_of_its_own_tokens_whoever_shares_the_batch(embeddings: ServiceProcess) -> None:
    answers = predict(embeddings, [{"text": text} for text in TEXTS])
    for text, answer in zip(TEXTS, answers, strict=True):
        np.testing.assert_allclose(answer["embedding"], unit(mean_of(text)), atol=1e-5)
        assert answer["tokens"] == len(ids_of(text)) and answer["truncated"] is False


def test_requests_say_length_and_dimensions(embeddings: ServiceProcess) -> None:
    (whole,) = predict(embeddings, [{"text": TEXTS[0]}], normalize=False)
    np.testing.assert_allclose(whole["embedding"], mean_of(TEXTS[0]), atol=1e-5)
    (short,) = predict(embeddings, [{"text": TEXTS[0]}], dimensions=3)
    np.testing.assert_allclose(short["embedding"], unit(mean_of(TEXTS[0])[:3]), atol=1e-5)


def test_one_text_has_one_vector_over_every_endpoint(embeddings: ServiceProcess) -> None:
    (expected,) = predict(embeddings, [{"text": TEXTS[2]}])
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXTS[2]]}
    v2 = embeddings.http("/v2/models/test/infer", json.dumps({"inputs": [tensor]})).json
    by_name = {one["name"]: one["data"] for one in v2["outputs"]}
    np.testing.assert_allclose(by_name["embedding"], expected["embedding"], rtol=1e-6)
    keyed = embeddings.ask({"text": TEXTS[2]})
    values = dict(zip(keyed["key"], keyed["value"], strict=True))
    told = np.array(json.loads(values["embedding"].split("(")[1].rsplit("]]", 1)[0] + "]]"))
    np.testing.assert_allclose(told[0], expected["embedding"], atol=1e-6)


@pytest.mark.parametrize(
    ("row", "parameters", "expected"),
    [
        ({"text": "w1 " * 30}, {}, "32 tokens, the model reads 24"),
        ({"text": "w1"}, {"dimensions": 9}, "'dimensions' is 9; the model's vectors have 8"),
        ({"text": "w1"}, {"dimensions": 0}, "'dimensions' is 0"),
        ({"text": "w1"}, {"normalise": True}, "did you mean 'normalize'?"),
        ({"text": " "}, {}, "is empty"),
    ],
)
def test_bad_input_is_told(
    row: dict[str, Any], parameters: dict[str, Any], expected: str, embeddings: ServiceProcess
) -> None:
    body = json.dumps({"instances": [row], "parameters": parameters})
    answer = embeddings.http("/v1/models/test:predict", body)
    assert answer.status == 400 and expected in answer.json["error"], answer.body


def test_the_end_of_a_long_text_is_left_out_where_a_request_says_so(embeddings: ServiceProcess) -> None:
    (answer,) = predict(embeddings, [{"text": "w1 " * 30}], truncate=True)
    expected = token_vectors([2, *[ids_of("w1")[1]] * 22, 3]).mean(axis=0)
    np.testing.assert_allclose(answer["embedding"], unit(expected), atol=1e-5)
    assert answer["truncated"] is True and answer["tokens"] == 24


def test_pairs_have_their_relevance(ranks: ServiceProcess) -> None:
    pairs = [("w1 w2", "w3 w4 w5"), ("w1 w2", "w6"), ("w9", "w1 w2")]
    answers = predict(ranks, [{"text": first, "text_pair": second} for first, second in pairs])
    raw = [relevance(ids_of(first), ids_of(second)[1:]) for first, second in pairs]
    np.testing.assert_allclose([one["score"] for one in answers], 1 / (1 + np.exp(-np.array(raw))), atol=1e-5)
    body = [{"text": first, "text_pair": second} for first, second in pairs]
    np.testing.assert_allclose(
        [one["score"] for one in predict(ranks, body, raw_scores=True)], raw, rtol=1e-4, atol=1e-5
    )


def test_two_texts_are_as_alike_as_their_vectors(tmp_path: Path) -> None:
    with serving(similarity(tmp_path / "model")) as service:
        rows = [{"text": TEXTS[0], "other": other} for other in TEXTS]
        answers = predict(service, rows)
    expected = [unit(mean_of(TEXTS[0])) @ unit(mean_of(other)) for other in TEXTS]
    np.testing.assert_allclose([one["score"] for one in answers], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("output", "fetch", "expected"),
    [
        ({"pooling": "cls"}, "last_hidden_state", lambda tokens: tokens[0]),
        ({}, "pooler_output", lambda tokens: tokens.mean(axis=0) / 2),
    ],
    ids=["cls", "none"],
)
def test_other_ways_to_one_vector(output: dict[str, Any], fetch: str, expected: Any, tmp_path: Path) -> None:
    model = encoder(tmp_path / "model", {"kind": "embedding", "normalize": False, **output}, fetch=fetch)
    with serving(model) as service:
        answers = predict(service, [{"text": text} for text in TEXTS])
    for text, answer in zip(TEXTS, answers, strict=True):
        np.testing.assert_allclose(answer["embedding"], expected(token_vectors(ids_of(text))), atol=1e-5)


def test_poolings_layers_and_prompts_make_the_vector(tmp_path: Path) -> None:
    with serving(projected(tmp_path / "model")) as service:
        for name, prompt in (("query", "w9 w8 "), ("passage", "w7 "), ("", "")):
            answers = predict(service, [{"text": text} for text in TEXTS[:3]], prompt_name=name)
            for text, answer in zip(TEXTS[:3], answers, strict=True):
                expected = projected_vector(text, prompt)
                np.testing.assert_allclose(answer["embedding"], expected, atol=1e-5)
        (usual,) = predict(service, [{"text": TEXTS[0].upper()}])
        np.testing.assert_allclose(usual["embedding"], projected_vector(TEXTS[0], "w9 w8 "), atol=1e-5)
        # Token ids of a client have no prompt before them, and so none that is left out.
        body = {"model": "test", "input": [ids_of(TEXTS[0])]}
        (sent,) = service.http("/v1/embeddings", json.dumps(body)).json["data"]
        np.testing.assert_allclose(sent["embedding"], projected_vector(TEXTS[0], ""), atol=1e-5)


def test_windows_after_the_first_have_no_prompt_to_leave_out(tmp_path: Path) -> None:
    model = load_serving_model(projected(tmp_path / "model"))
    given = model.description.inputs["text"].model_copy(
        update={"too_long": "windows", "max_windows": 9, "max_tokens": 6, "stride": 1}
    )
    task: Any = text_task(
        dataclasses.replace(model, description=dataclasses.replace(model.description, inputs={"text": given}))
    )
    task.load()
    request = task.rows({"text": ["w1 w2 w3 w4"]}, {})
    assert [row.ids[1:-1] for row in request.rows] == [
        ids_of(text)[1:-1] for text in ("w9 w8 w1 w2", "w8 w1 w2 w3", "w1 w2 w3 w4")
    ]
    assert request.skips == [3, 2, 0]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"0.weight": np.ones((6, 8))}, r"layer 0: weight is \[6, 8\], expected \[6, 16\]"),
        ({"2.bias": np.ones(5)}, r"layer 2: bias is \[5\], expected \[6\]"),
        ({"2.weight": None}, r"layer 2: weight is absent, expected \[6, 6\]"),
        ({"0.bias": np.array([{}], object)}, "can't be read .*convert the model again"),
        (None, "sentence_layers.npz can't be read"),
    ],
)
def test_layers_without_their_weights_are_told_at_start(
    change: dict[str, Any] | None, expected: str, tmp_path: Path
) -> None:
    model = load_serving_model(projected(tmp_path / "model"))
    file = model.directory / "sentence_layers.npz"
    if change is None:
        file.unlink()
    else:
        arrays = projection() | change
        np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    task: Any = text_task(model)
    with pytest.raises(ConfigError, match=expected):
        task.load()


def test_sentence_transformers_file_says_the_pooling(tmp_path: Path) -> None:
    model = load_serving_model(encoder(tmp_path / "model", {"kind": "embedding"}))
    pooling = model.directory / "1_Pooling" / "config.json"
    pooling.parent.mkdir()
    known = {
        "cls_token": "cls",
        "mean_tokens": "mean",
        "max_tokens": "max",
        "mean_sqrt_len_tokens": "mean_sqrt_len",
        "weightedmean_tokens": "weightedmean",
        "lasttoken": "lasttoken",
    }
    for told, expected in known.items():
        pooling.write_text(
            json.dumps({**{f"pooling_mode_{one}": False for one in known}, f"pooling_mode_{told}": True}),
            "utf-8",
        )
        task: Any = text_task(model)
        assert task.poolings == (expected,)
    pooling.write_text(json.dumps({"pooling_mode_median_tokens": True}), "utf-8")
    named = ", ".join(f"pooling_mode_{one}" for one in ("cls_token", "max_tokens", "mean_tokens"))
    with pytest.raises(ConfigError, match=f"pooling_mode_median_tokens; known are {named}"):
        text_task(model)


@pytest.mark.parametrize(
    ("output", "fetch", "expected"),
    [
        ({"dimensions": 9}, "last_hidden_state", "dimensions: 9, but last_hidden_state has 8"),
        ({"pooling": "median"}, "last_hidden_state", "pooling.*'mean', 'cls', 'max'.*'lasttoken'"),
        ({"kind": "relevance"}, "last_hidden_state", r"is for \[N, 1\] or \[N, 2\]"),
        ({"kind": "similarity"}, "last_hidden_state", "reads pairs; name the second text"),
    ],
)
def test_what_does_not_fit_the_model_is_told_at_start(
    output: dict[str, Any], fetch: str, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=expected):
        model = encoder(tmp_path / "model", {"kind": "embedding", **output}, fetch=fetch)
        text_task(load_serving_model(model))


def test_dimensions_are_those_after_the_layers(tmp_path: Path) -> None:
    assert text_task(load_serving_model(projected(tmp_path / "model", dimensions=6))) is not None
    with pytest.raises(ConfigError, match="dimensions: 7, but last_hidden_state has 6"):
        load_serving_model(projected(tmp_path / "other", dimensions=7))

"""Scores become labels: the best, all over a threshold, one for each token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.values import parse_value
from pipeline.errors import ServingError
from pipeline.models.description import describe
from pipeline.models.serving_model import Variable
from pipeline.ops.labels import OutputPrinter
from tests.support import onnx_models
from tests.support.new_services import new_service

LABELS = ("low", "mid", "high")
Array = np.ndarray[Any, np.dtype[Any]]


def answered(fetch: Array, labels: tuple[str, ...] = LABELS, **keys: Any) -> dict[str, Any]:
    """The answer that is made of one fetch."""
    variable = Variable("y", "y", str(fetch.dtype), (-1, *fetch.shape[1:]))
    described = describe({"outputs": {"y": keys}}, [], [variable], labels, Path("serving.yml"))
    return OutputPrinter(variable, described.outputs["y"], "", labels).build_outputs({"y": fetch})


def test_the_best_label_has_its_softmax_as_score() -> None:
    logits = np.array([[0, 1, 3], [2, 2, -50]], np.float32)
    answer = answered(logits, kind="classes")
    assert answer["label"].tolist() == ["high", "low"]
    powers = np.exp(logits[0])
    assert answer["score"] == pytest.approx([powers[2] / powers.sum(), 0.5])


def test_probabilities_are_left_as_they_are_beside_rows_that_are_none() -> None:
    rows = np.array([[0.7, 0.2, 0.1], [7, 2, 1]], np.float32)
    together = answered(rows, kind="classes")["score"]
    assert together[0] == pytest.approx(0.7)
    assert together[1] == answered(rows[1:], kind="classes")["score"][0] > 0.99


def test_the_best_few_are_sorted_and_never_more_than_there_are() -> None:
    answer = answered(np.array([[0.1, 0.7, 0.2]], np.float32), kind="classes", top_k=5)
    assert answer["labels"].tolist() == [["mid", "high", "low"]]
    np.testing.assert_allclose(answer["scores"], [[0.7, 0.2, 0.1]])


def test_logits_without_bounds_make_no_row_of_nan() -> None:
    answer = answered(np.array([[1e38, -1e38, 0]], np.float32), kind="classes")
    assert (answer["label"][0], answer["score"][0]) == ("low", 1.0)


def test_of_several_labels_those_over_the_threshold_are_meant() -> None:
    logits = np.array([[3, -3, 1], [-9, -9, -9], [-1, 5, -1]], np.float32)
    answer = answered(logits, kind="multilabel")
    assert answer["labels"].tolist() == [["low", "high"], ["", ""], ["mid", ""]]
    scores = 1 / (1 + np.exp(-np.array([3, 1, 5])))
    np.testing.assert_allclose(answer["scores"][[0, 0, 2], [0, 1, 0]], scores, rtol=1e-6)
    assert answered(logits[1:2], kind="multilabel")["labels"].shape == (1, 0)
    lenient = answered(logits[1:2], kind="multilabel", threshold=1e-5)
    assert lenient["labels"].tolist() == [["low", "mid", "high"]]


def test_classes_without_names_are_called_by_their_numbers() -> None:
    assert answered(np.array([[0, 0, 1]], np.float32), (), kind="classes")["label"].tolist() == ["2"]


def test_labels_of_any_text_stay_what_they_are() -> None:
    labels = ('say "no"', "back\\slash", "两\n行")
    answer = answered(np.array([[0, 0, 1]], np.float32), labels, kind="classes")
    assert answer["label"].tolist() == ["两\n行"]


def test_what_the_model_chose_itself_is_told_by_its_name() -> None:
    assert answered(np.array([2, 0]), kind="label")["label"].tolist() == ["high", "low"]
    texts = np.array([["a"], ["b"]], object)
    assert answered(texts, kind="label")["label"].tolist() == ["a", "b"]
    with pytest.raises(ServingError, match="chose class 3 of 3 labels"):
        answered(np.array([3]), kind="label")


def test_scores_of_more_classes_than_labels_are_an_error_of_the_server() -> None:
    variable = Variable("y", "y", "float32", (-1, -1))
    described = describe({"outputs": {"y": {"kind": "classes"}}}, [], [variable], LABELS, Path("x"))
    printer = OutputPrinter(variable, described.outputs["y"], "", LABELS)
    with pytest.raises(ServingError, match=r"gives 4 scores in 'y', and serving\.yml has 3 labels"):
        printer.build_outputs({"y": np.zeros((1, 4), np.float32)})


def test_a_model_that_ends_with_a_sigmoid_is_served_with_several_labels(tmp_path: Path) -> None:
    model = onnx_models.bare(tmp_path / "models", "topics")
    options = ("--input", "table", "--columns", "a,b,c,d", "--labels", ",".join(LABELS))
    with new_service(tmp_path, model, "topics", *options) as new:
        rows = [dict.fromkeys("abcd", value) for value in (2.0, -2.0)]
        path = "/v1/models/topics:predict"
        many, few = (
            new.service.http(path, json.dumps({"instances": [row]})).json["predictions"][0] for row in rows
        )
        raw = {name: json.dumps([row[name] for row in rows]) for name in "abcd"}
        both = parse_value(new.service.predict(raw)["labels"])
    assert sorted([*many["labels"], *few["labels"]]) == sorted(LABELS)
    assert all(score >= 0.5 for one in (many, few) for score in one["scores"])
    assert both == [[*one["labels"], *[""] * (len(both[0]) - len(one["labels"]))] for one in (many, few)]


def test_the_labels_of_tokens_in_serving_yml_are_served(tmp_path: Path) -> None:
    """Of a tagger of names: one label for each token."""
    model = onnx_models.serving(tmp_path, "tags", padded=False)
    with new_service(tmp_path, model, "tags") as new:
        answer = new.service.predict({"input_ids": "[[5, 9, 2], [7, 1, 3]]"})
        logits = np.array(parse_value(answer["logits"]))
        chosen = np.array(onnx_models.LABELS)[logits.argmax(-1)]
        assert parse_value(answer["label"]) == chosen.tolist()
        rows = {"instances": [{"input_ids": [5, 9, 2]}]}
        (row,) = new.service.http("/v1/models/tags:predict", json.dumps(rows)).json["predictions"]
        assert row["label"] == chosen[0].tolist()

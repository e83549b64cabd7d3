"""A service of classes of texts: `paddlewheel text` of a usual folder, with requests over every endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as v2_grpc
import tritonclient.http as v2_http

from client.values import parse_value
from tests.support.text_services import TextProcess, classifier, logits_of, softmax

LABELS = ("体育", "财经", "科技")
TEXTS = ("国足客场两球取胜", "央行宣布下调存款准备金率", "新电动车", "a", "这是体育，这是财经。" * 3)
LONG = "国足客场两球取胜，央行宣布下调存款准备金率。" * 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifier(tmp_path_factory.mktemp("news"), LABELS)


@pytest.fixture(scope="module")
def service(model: Path) -> Iterator[TextProcess]:
    with TextProcess(model, "--max-tokens", "40") as service:
        yield service


def expected(model: Path, text: str | tuple[str, str], count: int = 1) -> list[tuple[str, float]]:
    """The best labels with their probabilities, by the model alone."""
    (scores,) = softmax(logits_of(model, [text]))
    return [(LABELS[at], float(scores[at])) for at in np.argsort(-scores)[:count]]


def check(row: dict[str, Any], best: list[tuple[str, float]]) -> None:
    assert (row["label"], row["labels"]) == (best[0][0], [label for label, _ in best])
    assert row["scores"] == pytest.approx([score for _, score in best], abs=1e-5)
    assert row["score"] == pytest.approx(best[0][1], abs=1e-5)


class TestEveryEndpoint:
    def test_several_texts_are_answered_in_order(self, service: TextProcess, model: Path) -> None:
        for row, text in zip(service.rows(*TEXTS), TEXTS, strict=True):
            check(row, expected(model, text))

    def test_each_text_alone_is_answered_alike(self, service: TextProcess, model: Path) -> None:
        for text in TEXTS:
            check(service.rows(text)[0], expected(model, text))

    @pytest.mark.parametrize("keys", [{"text": TEXTS[0], "top_k": "2"}, {"0": TEXTS[0], "top_k": "2"}])
    def test_key_value_over_http_and_grpc(
        self, service: TextProcess, model: Path, keys: dict[str, str]
    ) -> None:
        over_rpc = service.rpc(keys)
        for told in (service.predict(keys), dict(zip(over_rpc.key, over_rpc.value, strict=True))):
            row = {name: parse_value(text)[0] for name, text in told.items()}  # type: ignore[index]
            check(row, expected(model, TEXTS[0], 2))

    @pytest.mark.parametrize(("module", "port"), [(v2_http, "http_port"), (v2_grpc, "rpc_port")])
    def test_v2_with_parameters(self, service: TextProcess, model: Path, module: Any, port: str) -> None:
        with module.InferenceServerClient(f"127.0.0.1:{getattr(service, port)}") as client:
            given = module.InferInput("text", [2], "BYTES")
            given.set_data_from_numpy(np.array(TEXTS[:2], object))
            answer = client.infer("texts", [given], parameters={"top_k": 3})
        for at, text in enumerate(TEXTS[:2]):
            row = {name: answer.as_numpy(name)[at].tolist() for name in ("score", "scores")}
            row["labels"] = [name.decode() for name in answer.as_numpy("labels")[at]]
            check({**row, "label": answer.as_numpy("label")[at].decode()}, expected(model, text, 3))

    def test_generate_takes_the_parameter_beside_the_text(self, service: TextProcess, model: Path) -> None:
        body = json.dumps({"text": TEXTS[0], "top_k": 3})
        answer = service.http("/v2/models/texts/generate", body)
        assert answer.status == 200, answer
        assert answer.json["labels"] == [label for label, _ in expected(model, TEXTS[0], 3)]

    def test_every_example_of_its_description_is_answered(self, service: TextProcess) -> None:
        paths = service.http("/openapi.json").json["paths"]
        asked = ("/texts/prediction", "/v1/models/texts:predict", "/v2/models/texts/infer")
        for path in (*asked, "/v2/models/texts/generate"):
            for told in paths[path]["post"]["requestBody"]["content"].values():
                assert service.http(path, json.dumps(told["example"])).status == 200, path


class TestParameters:
    def test_callers_in_one_batch_get_their_own(self, service: TextProcess, model: Path) -> None:
        wanted = [1 + number % 3 for number in range(24)]
        with ThreadPoolExecutor(24) as pool:
            rows = list(pool.map(lambda count: service.rows(TEXTS[0], top_k=count)[0], wanted))
        for row, count in zip(rows, wanted, strict=True):
            check(row, expected(model, TEXTS[0], count))

    def test_a_label_below_the_threshold_is_left_out(self, service: TextProcess, model: Path) -> None:
        scores = [score for _, score in expected(model, TEXTS[0], 3)]
        (row,) = service.rows(TEXTS[0], top_k=3, threshold=(scores[0] + scores[1]) / 2)
        assert row["labels"][1:] == ["", ""] and row["scores"][1:] == [0, 0]
        (row,) = service.rows(TEXTS[0], threshold=1)
        assert (row["label"], row["score"]) == ("", 0)

    @pytest.mark.parametrize(
        ("name", "value", "told"),
        [
            ("top_k", 0, "'top_k' is 0: send a whole number from 1"),
            ("top_k", 1.5, "'top_k' is 1.5"),
            ("top_k", "many", "'top_k' is 'many'"),
            ("top_k", True, "'top_k' is True"),
            ("top_k", 10**9, "to 1000"),
            ("threshold", -0.1, "'threshold' is -0.1: send a number from 0 to 1"),
            ("threshold", "nan", "'threshold' is 'nan'"),
            ("threshhold", 0.5, "did you mean 'threshold'?"),
            ("topk", 2, "did you mean 'top_k'?"),
        ],
    )
    def test_one_that_can_t_be_used_is_told_by_name_over_every_endpoint(
        self, service: TextProcess, name: str, value: Any, told: str
    ) -> None:
        assert told in service.rows(TEXTS[0], status=400, **{name: value})
        if isinstance(value, bool):
            return
        as_text = told.replace(f"is {value}", f"is '{value}'")
        assert as_text in service.ask({"text": TEXTS[0], name: str(value)})["err_msg"]
        assert as_text in service.rpc({"text": TEXTS[0], name: str(value)}).err_msg
        tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXTS[0]]}
        body = json.dumps({"inputs": [tensor], "parameters": {name: value}})
        answer = service.http("/v2/models/texts/infer", body)
        assert (answer.status, told in answer.json["error"]) == (400, True), answer

    def test_others_of_a_client_s_own_are_left_alone(self, service: TextProcess) -> None:
        assert service.rows(TEXTS[0], trace="abc", priority_class=3)


class TestBadTexts:
    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("", "is empty"),
            ("  \n", "is empty"),
            ("\ufffd" * 9, "U+FFFD"),
            ("国" * 39, "has 41 tokens, the model reads 40"),
            ("国" * 1_000_000, "has 1000000 characters, 800 are allowed"),
        ],
        ids=["empty", "blank", "GBK", "long", "a megabyte"],
    )
    def test_each_is_told_with_its_row(self, service: TextProcess, text: str, told: str) -> None:
        good = TEXTS[0]
        refusal = service.rows(good, text, status=400)
        assert told in refusal and "text 1 of 'text'" in refusal
        assert told in service.ask({"text": text})["err_msg"]
        assert service.rows(good)

    def test_more_texts_than_a_request_may_have_are_refused(self, service: TextProcess) -> None:
        told = service.rows(*["a"] * 1025, status=400)
        assert "takes at most 1024 a request" in told and "limits.kserve_rows" in told

    def test_neighbours_of_a_bad_request_are_answered(self, service: TextProcess, model: Path) -> None:
        asked = [TEXTS[0], "", TEXTS[1], "国" * 50] * 6

        def ask(text: str) -> Any:
            return service.ask({"text": text})

        with ThreadPoolExecutor(len(asked)) as pool:
            answers = list(pool.map(ask, asked))
        assert [answer["err_no"] == 0 for answer in answers] == [True, False] * 12


def test_a_pair_is_read_as_in_training(tmp_path: Path) -> None:
    model = classifier(tmp_path, LABELS)
    pairs = [("国足客场", "两球取胜"), ("a", "央行宣布下调存款"), ("这是", "b")]
    instances = [{"text": first, "text_pair": second} for first, second in pairs]
    with TextProcess(model, "--pair", "--max-tokens", "20") as service:
        for row, pair in zip(service.rows(*instances), pairs, strict=True):
            check(row, expected(model, pair))
        assert "lacks the field 'text_pair'" in service.rows(instances[0], {"text": "a"}, status=400)
        assert "'text_pair' is missing" in service.ask({"text": "a"})["err_msg"]
        assert "'text' is missing" in service.ask({"0": "a", "1": "b"})["err_msg"]
        assert "'text_pair' is missing" in service.ask({"text": "a", "0": "b"})["err_msg"]
        empty = service.rows(instances[0], {"text": "a", "text_pair": ""}, status=400)
        assert "text 1 of 'text_pair' is empty" in empty
        long = service.rows({"text": "a", "text_pair": "国" * 17}, status=400)
        assert "the text of 'text_pair' has 17 tokens" in long


def test_several_labels_over_a_threshold(tmp_path: Path) -> None:
    model = classifier(tmp_path, LABELS, problem_type="multi_label_classification")
    likely = 1 / (1 + np.exp(-logits_of(model, TEXTS)))
    with TextProcess(model) as service:
        for row, scores in zip(service.rows(*TEXTS), likely, strict=True):
            order = [at for at in np.argsort(-scores) if scores[at] >= 0.5]
            assert [label for label in row["labels"] if label] == [LABELS[at] for at in order]
        (row,) = service.rows(TEXTS[0], threshold=0, top_k=2)
        assert row["scores"] == pytest.approx(sorted(likely[0])[:0:-1], abs=1e-5)


class TestLongTexts:
    def test_the_scores_of_windows_are_pooled_and_told(self, model: Path) -> None:
        room, stride = 18, 13
        tokens = list(LONG)
        starts = [*range(0, len(tokens) - room, stride), len(tokens) - room]
        windows = ["".join(tokens[start : start + room]) for start in starts]
        mean = softmax(logits_of(model, windows)).mean(axis=0)
        with TextProcess(model, "--too-long", "windows", "--max-tokens", "20") as service:
            long, short = service.rows(LONG, TEXTS[0], top_k=3)
            assert "which are" in service.rows("国" * 20_000, status=400)
            values = service.predict({"text": LONG})
        assert (long["windows"], long["truncated"], short["windows"]) == (len(windows), False, 1)
        assert long["scores"] == pytest.approx(sorted(mean, reverse=True), abs=1e-5)
        check({k: short[k] for k in ("label", "score", "labels", "scores")}, expected(model, TEXTS[0], 3))
        assert parse_value(values["windows"]) == [len(windows)]

    def test_what_is_cut_off_is_told(self, model: Path) -> None:
        with TextProcess(model, "--too-long", "truncate", "--max-tokens", "20") as service:
            long, short, huge = service.rows(LONG, TEXTS[0], "国" * 1_000_000)
        check(long, expected(model, LONG[:18]))
        assert [row["truncated"] for row in (long, short, huge)] == [True, False, True]

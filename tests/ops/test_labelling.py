"""A service of entities: labels of tokens become entities with their places, over every endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as v2_grpc
import tritonclient.http as v2_http

from tests.support.text_services import TextProcess, entity_model

BIO = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG")
WORDS = {
    "王": "B-PER",
    "小": "I-PER",
    "明": "I-PER",
    "李": "B-PER",
    "北": "B-LOC",
    "京": "I-LOC",
    "wash": "B-LOC",
    "##ington": "B-LOC",
    "beyonce": "B-PER",
    "east": "B-LOC",
    "river": "I-LOC",
    "🚀": "B-LOC",
    "👨👩👧": "B-ORG",
    "ｔｏｋｙｏ": "B-LOC",
    "2": "B-LOC",
    "##3": "O",
    "去": "O",
    "了": "O",
    "in": "O",
    "the": "O",
    "，": "O",
}
COMBINED = "Beyonce\u0301 in the 🚀"
FAMILY = "王👨\u200d👩\u200d👧去"
# Of each text the entities: what they are called, and where.
GOLD: list[tuple[str, list[tuple[str, str, int, int]]]] = [
    ("王小明去了北京", [("王小明", "PER", 0, 3), ("北京", "LOC", 5, 7)]),
    ("去了", []),
    ("王李小", [("王", "PER", 0, 1), ("李小", "PER", 1, 3)]),
    ("王京", [("王", "PER", 0, 1), ("京", "LOC", 1, 2)]),
    ("小明去京", [("小明", "PER", 0, 2), ("京", "LOC", 3, 4)]),
    ("in Washington", [("Washington", "LOC", 3, 13)]),
    ("the east river, in 23", [("east river", "LOC", 4, 14), ("23", "LOC", 19, 21)]),
    ("  北 京  ", [("北 京", "LOC", 2, 5)]),
    (COMBINED, [("Beyonce\u0301", "PER", 0, 8), ("🚀", "LOC", 16, 17)]),
    ("去🚀北京", [("🚀", "LOC", 1, 2), ("北京", "LOC", 2, 4)]),
    ("ＴＯＫＹＯ，北京", [("ＴＯＫＹＯ", "LOC", 0, 5), ("北京", "LOC", 6, 8)]),
    (FAMILY, [("王", "PER", 0, 1), (FAMILY[1:6], "ORG", 1, 6)]),
    ("北\u0000京", [("北\u0000京", "LOC", 0, 3)]),
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextProcess]:
    model = entity_model(tmp_path_factory.mktemp("bio"), BIO, WORDS)
    with TextProcess(model, "--too-long", "windows", "--max-tokens", "12", "--stride", "4") as service:
        yield service


def places(entities: list[dict[str, Any]]) -> list[tuple[str, str, int, int]]:
    return [(one["text"], one["label"], one["start"], one["end"]) for one in entities]


@pytest.mark.parametrize(("text", "expected"), GOLD, ids=range(len(GOLD)))
def test_hand_checked_sentences(
    service: TextProcess, text: str, expected: list[tuple[str, str, int, int]]
) -> None:
    (row,) = service.rows(text)
    assert places(row["entities"]) == expected
    assert all(text[one["start"] : one["end"]] == one["text"] for one in row["entities"])


def test_an_entity_s_score_is_the_mean_of_its_words(service: TextProcess) -> None:
    (row,) = service.rows("王小明")
    expected = np.exp(6) / (np.exp(6) + 8)
    assert row["entities"][0]["score"] == pytest.approx(expected, abs=1e-6)


def test_an_entity_over_the_end_of_a_window_is_one(service: TextProcess) -> None:
    text = "去了" * 4 + "王小明" + "，了" * 9 + "北京"
    (row,) = service.rows(text)
    assert places(row["entities"]) == [("王小明", "PER", 8, 11), ("北京", "LOC", 29, 31)]
    assert row["windows"] > 2 and row["truncated"] is False
    (short,) = service.rows("王小明")
    assert (short["windows"], short["truncated"]) == (1, False)


def test_every_place_of_a_text_is_read_alike_in_windows(service: TextProcess) -> None:
    for before in range(30):
        (row,) = service.rows("去" * before + "王小明" + "了" * (30 - before))
        assert places(row["entities"]) == [("王小明", "PER", before, before + 3)]


class TestTokensOfTheCallersOwn:
    def test_entities_tell_their_tokens_and_their_text(self, service: TextProcess) -> None:
        tokens = json.dumps(["王小", "明", "in", "east", "river", "Beyonce\u0301"])
        (row,) = service.rows(tokens, pre_split=True)
        told = [(one["text"], one["label"], one["tokens"]) for one in row["entities"]]
        assert told == [
            ("王小明", "PER", [0, 2]),
            ("east river", "LOC", [3, 5]),
            ("Beyonce\u0301", "PER", [5, 6]),
        ]

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("北京", "text 0 of 'text' is no list of tokens"),
            ("[]", "text 0 of 'text' has no tokens"),
            ('["a", 3]', "text 0 of 'text': token 1 is no text but int"),
            ('["a", null]', "token 1 is no text but NoneType"),
        ],
    )
    def test_what_is_no_list_of_tokens_is_told_by_row(
        self, service: TextProcess, text: str, told: str
    ) -> None:
        assert told in service.rows(text, status=400, pre_split=True)
        second = service.rows('["北"]', text, status=400, pre_split=True)
        assert told.replace("text 0", "text 1") in second

    @pytest.mark.parametrize(
        ("tokens", "told"),
        [
            ("[['北'], [1, 2]]", "text 1 of 'tokens': token 0 is no text but int"),
            ("[['北'], '京']", "text 1 of 'tokens' is no list of tokens"),
            ("[['北'], []]", "text 1 of 'tokens' has no tokens"),
            ("['北', 3]", "text 1 of 'tokens' is no text but int"),
            ("array([__import__('os')])", "'tokens' is neither a text, nor a list of texts"),
            ("[" * 5000, "'tokens' is neither a text, nor a list of texts"),
        ],
    )
    def test_tokens_that_are_no_texts_are_told_over_key_value(
        self, service: TextProcess, tokens: str, told: str
    ) -> None:
        assert told in service.ask({"tokens": tokens})["err_msg"]
        assert told in service.rpc({"tokens": tokens}).err_msg

    def test_tokens_that_are_no_texts_are_told_over_v2(self, service: TextProcess) -> None:
        tensor = {"name": "text", "datatype": "BYTES", "shape": [2], "data": ['["北"]', '["京", 1]']}
        body = json.dumps({"inputs": [tensor], "parameters": {"pre_split": True}})
        answer = service.http("/v2/models/texts/infer", body)
        assert answer.status == 400
        assert "text 1 of 'text': token 1 is no text but int" in answer.json["error"]


class TestEveryEndpoint:
    def test_key_value_answers_as_services_of_paddlenlp(self, service: TextProcess) -> None:
        for key, value in (
            ("text", "王小明去了北京"),
            ("tokens", "array(['王小明去了北京'], dtype='<U7')"),
            ("tokens", "['王小明去了北京']"),
        ):
            answer = service.predict({key: value})
            ((first, second),) = json.loads(answer["value"])
            assert (first["pos"], first["entity"], first["label"]) == ([0, 2], "王小明", "PER")
            assert (second["pos"], second["entity"], second["label"]) == ([5, 6], "北京", "LOC")
            assert json.loads(answer["tokens_label"]) == [[1, 2, 2, 0, 0, 3, 4]]

    def test_texts_in_tokens_as_clients_of_paddlenlp_print_them(self, service: TextProcess) -> None:
        printed = "array([['王', '小', '明'], ['去', '北', '京']], dtype='<U1')"
        ragged = "array([list(['王', '小', '明']), list(['去', '北', '京', '了'])], dtype=object)"
        for tokens in (printed, ragged):
            first, second = json.loads(service.rpc({"tokens": tokens}).value[0])
            assert [(one["pos"], one["entity"]) for one in (*first, *second)] == [
                ([0, 2], "王小明"),
                ([1, 2], "北京"),
            ]

    @pytest.mark.parametrize(("module", "port"), [(v2_http, "http_port"), (v2_grpc, "rpc_port")])
    def test_v2_has_a_row_of_tensors_for_each_text(
        self, service: TextProcess, module: Any, port: str
    ) -> None:
        with module.InferenceServerClient(f"127.0.0.1:{getattr(service, port)}") as client:
            given = module.InferInput("text", [2], "BYTES")
            given.set_data_from_numpy(np.array(["王小明去了北京", "李"], object))
            answer = client.infer("texts", [given])
        assert answer.as_numpy("text").tolist() == [
            ["王小明".encode(), "北京".encode()],
            ["李".encode(), b""],
        ]
        assert answer.as_numpy("label").tolist() == [[b"PER", b"LOC"], [b"PER", b""]]
        assert answer.as_numpy("start").tolist() == [[0, 5], [0, -1]]
        assert answer.as_numpy("end").tolist() == [[3, 7], [1, -1]]
        assert answer.as_numpy("windows").tolist() == [1, 1]

    def test_a_threshold_holds_for_its_own_request(self, service: TextProcess) -> None:
        assert service.rows("北京", threshold=0.999)[0]["entities"] == []
        assert json.loads(service.predict({"text": "北京", "threshold": "0.999"})["value"]) == [[]]
        assert len(service.rows("北京", threshold=0.5)[0]["entities"]) == 1


SCHEMES = {
    "BIOES": (("O", "B-A", "I-A", "E-A", "S-A"), "auto"),
    "BIOUL": (("O", "B-A", "I-A", "L-A", "U-A"), "bioul"),
    "suffixes": (("O", "A-B", "A-I", "A-E", "A-S"), "auto"),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_labels_that_tell_ends(tmp_path: Path, scheme: str) -> None:
    labels, option = SCHEMES[scheme]
    words = dict(zip("去王小明李", labels, strict=True))
    with TextProcess(entity_model(tmp_path, labels, words), "--scheme", option) as service:
        for text, expected in (
            ("王小明李", [("王小明", "A", 0, 3), ("李", "A", 3, 4)]),
            ("李李", [("李", "A", 0, 1), ("李", "A", 1, 2)]),
            ("王明王明去", [("王明", "A", 0, 2), ("王明", "A", 2, 4)]),
            ("王去明", [("王", "A", 0, 1), ("明", "A", 2, 3)]),
        ):
            assert places(service.rows(text)[0]["entities"]) == expected


def test_labels_without_a_scheme_join_equal_neighbours(tmp_path: Path) -> None:
    words = {"王": "name", "明": "name", "北": "place", "去": "O"}
    with TextProcess(entity_model(tmp_path, ("O", "name", "place"), words)) as service:
        (row,) = service.rows("王明北北去王")
    assert places(row["entities"]) == [("王明", "name", 0, 2), ("北北", "place", 2, 4), ("王", "name", 5, 6)]

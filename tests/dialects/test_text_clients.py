"""OpenAI's and Hugging Face's own clients ask the service; mistakes are told in their forms."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from huggingface_hub import InferenceClient

from pipeline.models.additions import read_additions, write_additions
from pipeline.models.serving_model import ADDITIONS, SERVER_FOLDER
from tests.support.embedding_models import WORDS, cross_encoder, encoder, ids_of, token_vectors
from tests.support.service_process import APPS, ServiceProcess
from tests.support.text_services import TextProcess, classifier

TEXTS = ["w1 w2 w3", "w7", "w1 w2"]


def started(model: Path) -> ServiceProcess:
    local = {"client_type": "local_predictor", "model_config": str(model), "thread_num": 1}
    section = {"concurrency": 1, "batch_size": 8, "local_service_conf": local}
    config = {"dag": {"http_errors": "status"}, "limits": {"text_chars": 400}, "op": {"model": section}}
    return ServiceProcess(APPS / "described.py", config)


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with started(encoder(tmp_path_factory.mktemp("encoder") / "model", {"kind": "embedding"})) as service:
        yield service


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with started(cross_encoder(tmp_path_factory.mktemp("pairs") / "model")) as service:
        yield service


@pytest.fixture(scope="module")
def client(embeddings: ServiceProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{embeddings.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def unit(text: str, size: int = 8) -> np.ndarray[Any, Any]:
    mean = token_vectors(ids_of(text)).mean(axis=0)[:size]
    return np.asarray(mean / np.linalg.norm(mean))


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_openais_client_gets_vectors(encoding: Any, client: openai.OpenAI) -> None:
    more = {"encoding_format": encoding} if encoding else {}
    answer = client.embeddings.create(model="test", input=TEXTS, **more)
    assert (answer.model, [one.index for one in answer.data]) == ("test", [0, 1, 2])
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(len(ids_of(text)) for text in TEXTS)
    for text, one in zip(TEXTS, answer.data, strict=True):
        told: Any = one.embedding
        vector = np.frombuffer(base64.b64decode(told), "<f4") if isinstance(told, str) else told
        np.testing.assert_allclose(vector, unit(text), atol=1e-5)


def test_one_text_fewer_dimensions_and_another_servers_model_name(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="text-embedding-3-small", input=TEXTS[0], dimensions=3)
    (only,) = answer.data
    np.testing.assert_allclose(only.embedding, unit(TEXTS[0], 3), atol=1e-5)
    assert answer.model == "test"


def test_null_is_as_good_as_nothing(embeddings: ServiceProcess) -> None:
    body = {"input": TEXTS[0], **dict.fromkeys(("model", "encoding_format", "dimensions", "user"))}
    answer = embeddings.http("/v1/embeddings", json.dumps(body))
    assert answer.status == 200, answer
    np.testing.assert_allclose(answer.json["data"][0]["embedding"], unit(TEXTS[0]), atol=1e-5)


@pytest.mark.parametrize("many", [False, True])
def test_token_ids_are_taken_as_they_are(many: bool, client: openai.OpenAI) -> None:
    ids = ids_of(TEXTS[0])
    answer = client.embeddings.create(model="test", input=[ids, ids_of("w7")] if many else ids)
    np.testing.assert_allclose(answer.data[0].embedding, unit(TEXTS[0]), atol=1e-5)
    assert len(answer.data) == 1 + many and answer.usage.prompt_tokens == len(ids) + many * len(ids_of("w7"))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "'input' is missing"),
    "no texts": ({"input": []}, "'input' is an empty list"),
    "an object": ({"input": {"a": 1}}, "'input' is no text"),
    "an empty text": ({"input": ["w1", ""]}, "text 1 of 'input' is empty"),
    "a number among texts": ({"input": ["w1", 5]}, "text 1 of 'input' is no text"),
    "both": ({"input": ["w1", [2, 3]]}, "texts beside lists of token ids"),
    "a stranger's token": ({"input": [2, 999, 3]}, "has the token 999"),
    "too many": ({"input": ["w1"] * 2049}, "2048 are allowed"),
    "too long": ({"input": "w1 " * 30}, "the model reads 24"),
    "far too long": ({"input": "w" * 401}, "limits.text_chars is 400"),
    "an encoding": ({"input": "w1", "encoding_format": "hex"}, "'encoding_format' is 'hex'"),
    "too few dimensions": ({"input": "w1", "dimensions": 0}, "'dimensions' is 0"),
    "too many dimensions": ({"input": "w1", "dimensions": 9}, "vectors have 8"),
    "dimensions of a large model": ({"input": "w1", "dimensions": 1536}, "vectors have 8"),
    "dimensions in words": ({"input": "w1", "dimensions": "three"}, "dimensions"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_told_as_openai_does(case: str, client: openai.OpenAI) -> None:
    body, expected = WRONG[case]
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/embeddings", body=body, cast_to=object)
    told: Any = caught.value.body
    assert expected in told["message"], told
    assert told["type"] == "invalid_request_error" and set(told) == {"message", "type", "param", "code"}


def test_what_is_no_json_and_another_method_are_told(embeddings: ServiceProcess) -> None:
    answer = embeddings.http("/v1/embeddings", b'{"input": "a')
    assert answer.status == 400 and "no JSON" in answer.json["error"]["message"]
    answer = embeddings.http("/v1/embeddings")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


def test_a_service_without_vectors_says_so(ranks: ServiceProcess) -> None:
    with (
        openai.OpenAI(base_url=f"{ranks.url}/v1", api_key="none", max_retries=0) as other,
        pytest.raises(openai.NotFoundError, match="no model here does embeddings"),
    ):
        other.embeddings.create(model="test", input="w1")


def test_hugging_faces_client_gets_vectors(embeddings: ServiceProcess) -> None:
    asks = InferenceClient(f"{embeddings.url}/embed")
    np.testing.assert_allclose(asks.feature_extraction(TEXTS[0]), [unit(TEXTS[0])], atol=1e-5)
    raw = asks.feature_extraction(TEXTS[0], normalize=False)
    np.testing.assert_allclose(raw[0], token_vectors(ids_of(TEXTS[0])).mean(axis=0), atol=1e-5)
    cut = asks.feature_extraction("w1 " * 30, truncate=True)
    assert cut.shape == (1, 8)


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """An encoder with what a conversion has found beside it."""
    model = encoder(tmp_path_factory.mktemp("prompted") / "model", {"kind": "embedding"})
    described = model / SERVER_FOLDER / ADDITIONS
    prompts = {"query": "w1 w2 ", "document": "w3 "}
    sentence = {"pooling": "weightedmean", "max_tokens": 6, "prompts": prompts, "default_prompt": "document"}
    additions = read_additions(described)
    del additions["inputs"]["text"]["max_tokens"]
    write_additions(described, {**additions, "sentence": sentence})
    with started(model) as service:
        yield service


@pytest.mark.parametrize(
    ("name", "prompt"), [(None, "w3 "), ("document", "w3 "), ("query", "w1 w2 "), ("", "")]
)
def test_what_stands_beside_an_encoder_counts_over_every_endpoint(
    name: str | None, prompt: str, prompted: ServiceProcess
) -> None:
    states = token_vectors(ids_of(f"{prompt}w5 w6"))
    vector = np.arange(1, len(states) + 1) @ states
    expected = vector / np.linalg.norm(vector)
    more = {} if name is None else {"prompt_name": name}
    told = prompted.http("/v1/embeddings", json.dumps({"input": "w5 w6", **more})).json
    np.testing.assert_allclose(told["data"][0]["embedding"], expected, atol=1e-5)
    np.testing.assert_allclose(tei(prompted, "/embed", {"inputs": "w5 w6", **more})[0], expected, atol=1e-5)


def test_the_length_and_the_prompts_of_an_encoder_are_its_own(prompted: ServiceProcess) -> None:
    answer = prompted.http("/embed", json.dumps({"inputs": "w1 w2 w3 w4 w5", "prompt_name": ""}))
    assert (answer.status, "the model reads 6" in answer.body.decode()) == (422, True), answer
    answer = prompted.http("/embed", json.dumps({"inputs": "w1", "prompt_name": "passage"}))
    assert "'prompt_name' is 'passage'; the model has query, document" in answer.body.decode()


def test_hugging_faces_client_gets_similarities(embeddings: ServiceProcess) -> None:
    asks = InferenceClient(f"{embeddings.url}/similarity")
    told = asks.sentence_similarity(TEXTS[0], TEXTS)
    np.testing.assert_allclose(told, [unit(TEXTS[0]) @ unit(text) for text in TEXTS], atol=1e-5)


def tei(service: ServiceProcess, path: str, body: Any) -> Any:
    answer = service.http(path, json.dumps(body))
    assert answer.status == 200, answer.body
    return answer.json


def test_texts_are_ranked_the_best_first(ranks: ServiceProcess) -> None:
    texts = ["w3 w4", "w1", "w9 w9 w9", "国 足"]
    ranked = tei(ranks, "/rerank", {"query": "w1 w2", "texts": texts, "return_text": True})
    scores = [one["score"] for one in ranked]
    assert scores == sorted(scores, reverse=True) and all(0 < score < 1 for score in scores)
    assert sorted(one["index"] for one in ranked) == [0, 1, 2, 3]
    assert all(one["text"] == texts[one["index"]] for one in ranked)
    raw = tei(ranks, "/rerank", {"query": "w1 w2", "texts": texts, "raw_scores": True})
    assert [one["index"] for one in raw] == [one["index"] for one in ranked] and "text" not in raw[0]
    np.testing.assert_allclose([1 / (1 + np.exp(-one["score"])) for one in raw], scores, atol=1e-5)


TEI_WRONG: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "no inputs": ("/embed", {}, 422, "'inputs' is missing"),
    "an empty list": ("/embed", {"inputs": []}, 422, "is an empty list"),
    "a prompt": ("/embed", {"inputs": "w1", "prompt_name": "query"}, 422, "the model has no prompts"),
    "a number without end": ("/embed", {"inputs": "w1", "dimensions": 10**30}, 422, "'dimensions' is 1000"),
    "the other end": (
        "/embed",
        {"inputs": "w1", "truncation_direction": "Left"},
        422,
        "is its end",
    ),
    "too many": ("/embed", {"inputs": ["w1"] * 2049}, 413, "2048 are allowed"),
    "too long": ("/embed", {"inputs": "w1 " * 30}, 422, "the model reads 24"),
    "of another kind": ("/rerank", {"query": "w1", "texts": ["w2"]}, 404, "no model here does reranking"),
    "no source": ("/similarity", {"inputs": {"sentences": ["w1"]}}, 422, "source_sentence"),
    "no others": ("/similarity", {"inputs": {"source_sentence": "w1", "sentences": []}}, 422, "sentences"),
}


@pytest.mark.parametrize("case", TEI_WRONG)
def test_bad_input_is_told_as_tei_does(case: str, embeddings: ServiceProcess) -> None:
    path, body, status, expected = TEI_WRONG[case]
    answer = embeddings.http(path, json.dumps(body))
    assert answer.status == status and expected in answer.json["error"], answer.body
    assert answer.json["error_type"] == "Validation"
    assert embeddings.http("/embed", json.dumps({"inputs": "w1"})).status == 200


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"query": ["w1"], "texts": ["w2"]}, "'query' is no text"),
        ({"query": "w1", "texts": "w2"}, "'texts' is no list"),
        ({"query": "w1", "texts": []}, "'texts' is an empty list"),
        ({"query": "w1", "texts": ["w2", 3]}, "text 1 of 'texts' is no text"),
        ({"texts": ["w2"]}, "'query' is missing"),
    ],
)
def test_bad_ranks_are_told(body: dict[str, Any], expected: str, ranks: ServiceProcess) -> None:
    answer = ranks.http("/rerank", json.dumps(body))
    assert answer.status == 422 and expected in answer.json["error"], answer.body


def test_the_endpoints_are_documented_where_they_answer(
    embeddings: ServiceProcess, ranks: ServiceProcess
) -> None:
    own, others = (service.http("/openapi.json").json["paths"] for service in (embeddings, ranks))
    assert {"/v1/embeddings", "/embed", "/similarity"} <= own.keys() and "/rerank" not in own
    assert "/rerank" in others and "/embed" not in others
    for path in ("/v1/embeddings", "/embed", "/similarity"):
        example = own[path]["post"]["requestBody"]["content"]["application/json"]["example"]
        assert embeddings.http(path, json.dumps(example)).status == 200


# TEI's `/predict`, by a classifier of three classes:

LABELS = ("体育", "财经", "科技")


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextProcess]:
    with TextProcess(classifier(tmp_path_factory.mktemp("news"), LABELS)) as started:
        yield started


def best_labels(classes: TextProcess, text: str) -> list[dict[str, Any]]:
    (row,) = classes.rows(text, top_k=3)
    return [
        {"label": label, "score": score} for label, score in zip(row["labels"], row["scores"], strict=True)
    ]


def test_a_text_and_a_batch_have_all_labels(classes: TextProcess) -> None:
    one, other = (best_labels(classes, text) for text in ("国足客场", "央行"))
    assert {row["label"] for row in one} == set(LABELS)
    assert tei(classes, "/predict", {"inputs": "国足客场"}) == one
    assert tei(classes, "/predict", {"inputs": ["国足客场"]}) == one
    batch = tei(classes, "/predict", {"inputs": [["国足客场"], ["央行"]]})
    for told, own in zip(batch, (one, other), strict=True):
        assert [row["label"] for row in told] == [row["label"] for row in own]
        assert [row["score"] for row in told] == pytest.approx([row["score"] for row in own], abs=1e-5)


def test_hugging_faces_client_gets_labels(classes: TextProcess) -> None:
    asks = InferenceClient(f"{classes.url}/predict")
    told = asks.text_classification("国足客场", top_k=2)
    expected = best_labels(classes, "国足客场")[:2]
    assert [(one.label, one.score) for one in told] == [(row["label"], row["score"]) for row in expected]


def test_a_long_text_is_cut_where_a_request_says_so(classes: TextProcess) -> None:
    long = "国" * 600
    refused = classes.http("/predict", json.dumps({"inputs": long}))
    assert (refused.status, "tokens, the model reads" in refused.json["error"]) == (422, True), refused
    (cut,) = classes.rows(long, truncate=True, top_k=3)
    told = tei(classes, "/predict", {"inputs": long, "truncate": True})
    assert [one["score"] for one in told] == pytest.approx(cut["scores"], abs=1e-5)
    assert "tokens, the model reads" in classes.rows(long, status=400, truncate=False)


@pytest.mark.parametrize("top_k", [10**30, {"a": 1}, [3], "many", 0])
def test_a_parameter_of_another_type_is_told(top_k: Any, classes: TextProcess) -> None:
    body = {"inputs": "国足", "parameters": {"top_k": top_k}}
    answer = classes.http("/predict", json.dumps(body))
    assert answer.status == 422 and "'top_k' is" in answer.json["error"], answer.body


@pytest.mark.parametrize("inputs", [5, [], ["a", "b", "c"], [["a"], []], {"a": "b"}])
def test_bad_input_is_told(inputs: Any, classes: TextProcess) -> None:
    answer = classes.http("/predict", json.dumps({"inputs": inputs}))
    assert answer.status == 422 and "'inputs' is no text" in answer.json["error"], answer.body


def test_a_pair_is_refused_where_the_model_takes_single_texts(classes: TextProcess) -> None:
    answer = classes.http("/predict", json.dumps({"inputs": ["国足", "央行"]}))
    assert answer.status == 422 and "the model takes single texts" in answer.json["error"], answer.body


class TestServerInformation:
    def test_openais_client_lists_and_retrieves_models(self, client: openai.OpenAI) -> None:
        listed = {model.id: model for model in client.models.list().data}["test"]
        assert (listed.id, listed.object, listed.owned_by) == ("test", "model", "paddlewheel")
        assert client.models.retrieve("test").id == "test"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("other")

    def test_kserves_clients_find_their_own_members(self, embeddings: ServiceProcess) -> None:
        assert "test" in embeddings.http("/v1/models").json["models"]
        described = embeddings.http("/v1/models/test").json
        assert (described["name"], described["ready"]) == ("test", True)

    def test_tei_tells_the_model_and_its_limits(
        self, embeddings: ServiceProcess, ranks: ServiceProcess
    ) -> None:
        told = embeddings.http("/info").json
        assert (told["model_id"], told["max_input_length"]) == ("test", 24)
        assert told["model_type"] == {"embedding": {"pooling": "mean"}}
        assert told["max_client_batch_size"] == 2048
        assert set(ranks.http("/info").json["model_type"]) == {"reranker"}

    def test_tei_is_healthy(self, embeddings: ServiceProcess) -> None:
        assert (embeddings.http("/health").status, embeddings.http("/health").body) == (200, b"")

    def test_tei_serves_its_model_at_the_root(
        self, embeddings: ServiceProcess, ranks: ServiceProcess
    ) -> None:
        body = json.dumps({"inputs": TEXTS})
        assert embeddings.http("/", body).json == embeddings.http("/embed", body).json
        body = json.dumps({"query": "w1", "texts": ["w2", "w3"]})
        assert ranks.http("/", body).json == ranks.http("/rerank", body).json
        large = json.dumps({"inputs": ["w1"] * 2000, "comment": "x" * 40_000})
        assert len(embeddings.http("/", large).json) == 2000

    def test_tei_gives_a_vector_for_each_token(self, embeddings: ServiceProcess) -> None:
        vectors = embeddings.http("/embed_all", json.dumps({"inputs": TEXTS})).json
        for text, of_text in zip(TEXTS, vectors, strict=True):
            np.testing.assert_allclose(of_text, token_vectors(ids_of(text)), atol=1e-5)

    def test_tei_tells_the_tokens_of_texts(self, embeddings: ServiceProcess) -> None:
        (tokens,) = embeddings.http("/tokenize", json.dumps({"inputs": "w1 w7"})).json
        assert [token["id"] for token in tokens] == ids_of("w1 w7")
        assert tokens[0] == {"id": 2, "text": "[CLS]", "special": True, "start": None, "stop": None}
        assert tokens[2] | {"id": 0} == {"id": 0, "text": "w7", "special": False, "start": 3, "stop": 5}
        body = json.dumps({"inputs": ["w1", "w1 w7"], "add_special_tokens": False})
        plain = embeddings.http("/tokenize", body).json
        assert [[token["text"] for token in text] for text in plain] == [["w1"], ["w1", "w7"]]

    @pytest.mark.parametrize("path", ["/embed", "/embed_all", "/"])
    def test_token_ids_outside_the_vocabulary_are_refused(
        self, embeddings: ServiceProcess, path: str
    ) -> None:
        for number in (-1, len(WORDS), 1 << 62):
            answer = embeddings.http(path, json.dumps({"inputs": [[2, number, 3]]}))
            assert (answer.status, f"has the token {number}" in answer.json["error"]) == (422, True), answer

    def test_without_a_text_model_the_root_is_no_path(self) -> None:
        with ServiceProcess(APPS / "rows.py", env={"DECLARED": "open"}) as service:
            assert service.http("/", "{}").status == 404
            assert service.http("/info").status == 404
            assert service.http("/health").status == 200

"""A service of zero-shot classification: each caller's own labels, beside those of others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as v2_grpc
import tritonclient.http as v2_http

from client.values import parse_value
from pipeline.models.additions import read_additions, write_additions
from pipeline.models.serving_model import ADDITIONS, load_serving_model
from pipeline.ops.text_tasks.tasks import text_task
from tests.support.text_services import NLI, TextProcess, classifier, logits_of, served_classifier, softmax

TEXT = "国足客场两球取胜"
TEMPLATE = "这是{}。"
LABELS = ("体育", "财经", "电动车", "a")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return served_classifier(tmp_path_factory.mktemp("nli"), NLI)


@pytest.fixture(scope="module")
def service(model: Path) -> Iterator[TextProcess]:
    with TextProcess(model, "--task", "zero-shot", "--template", TEMPLATE) as service:
        yield service


def likely(
    model: Path, text: str, labels: tuple[str, ...], template: str = TEMPLATE, *, alone: bool = False
) -> dict[str, float]:
    """The probability of each label as the pipeline of transformers defines it, each pair run by itself.

    There a lone label is judged by itself, too.
    """
    logits = logits_of(model, [(text, template.replace("{}", label)) for label in labels])
    scores = softmax(logits[:, [0, 2]])[:, 1] if alone else softmax(logits[:, 2])
    return dict(zip(labels, scores.tolist(), strict=True))


def check(row: dict[str, Any], expected: dict[str, float]) -> None:
    names = sorted(expected, key=lambda name: -expected[name])
    assert (row["label"], row["labels"]) == (names[0], names)
    assert row["scores"] == pytest.approx([expected[name] for name in names], abs=1e-5)


class TestEveryEndpoint:
    def test_v1_with_labels_as_a_list_or_a_text(self, service: TextProcess, model: Path) -> None:
        for labels in (list(LABELS), ",".join(LABELS), json.dumps(LABELS)):
            for row, text in zip(service.rows(TEXT, "b", labels=labels), (TEXT, "b"), strict=True):
                check(row, likely(model, text, LABELS))

    def test_each_label_by_itself_with_a_template_of_the_caller(
        self, service: TextProcess, model: Path
    ) -> None:
        told = {"labels": list(LABELS), "multi_label": True, "template": "新{}车"}
        check(service.rows(TEXT, **told)[0], likely(model, TEXT, LABELS, "新{}车", alone=True))

    def test_key_value_over_http_and_grpc(self, service: TextProcess, model: Path) -> None:
        keys = {"text": TEXT, "labels": ",".join(LABELS), "multi_label": "true", "template": "{}"}
        over_rpc = service.rpc(keys)
        for told in (service.predict(keys), dict(zip(over_rpc.key, over_rpc.value, strict=True))):
            row = {name: parse_value(text)[0] for name, text in told.items()}  # type: ignore[index]
            check(row, likely(model, TEXT, LABELS, "{}", alone=True))

    @pytest.mark.parametrize(("module", "port"), [(v2_http, "http_port"), (v2_grpc, "rpc_port")])
    def test_v2(self, service: TextProcess, model: Path, module: Any, port: str) -> None:
        with module.InferenceServerClient(f"127.0.0.1:{getattr(service, port)}") as client:
            given = module.InferInput("text", [1], "BYTES")
            given.set_data_from_numpy(np.array([TEXT], object))
            answer = client.infer("texts", [given], parameters={"labels": ",".join(LABELS), "top_k": 2})
        best = sorted(likely(model, TEXT, LABELS).items(), key=lambda item: -item[1])[:2]
        assert [name.decode() for name in answer.as_numpy("labels")[0]] == [name for name, _ in best]
        assert answer.as_numpy("scores")[0] == pytest.approx([score for _, score in best], abs=1e-5)

    def test_every_example_of_its_description_is_answered(self, service: TextProcess) -> None:
        paths = service.http("/openapi.json").json["paths"]
        asked = ("/texts/prediction", "/v1/models/texts:predict", "/v2/models/texts/infer")
        for path in (*asked, "/v2/models/texts/generate"):
            for told in paths[path]["post"]["requestBody"]["content"].values():
                answer = service.http(path, json.dumps(told["example"]))
                assert answer.status == 200, (path, answer)


def test_callers_in_one_batch_get_their_own_labels(service: TextProcess, model: Path) -> None:
    wanted = [(LABELS[: 1 + number % 4], TEXT[: 2 + number % 6]) for number in range(24)]
    with ThreadPoolExecutor(24) as pool:
        rows = list(pool.map(lambda one: service.rows(one[1], labels=list(one[0]))[0], wanted))
    for row, (labels, text) in zip(rows, wanted, strict=True):
        check(row, likely(model, text, labels, alone=len(labels) == 1))


class CountingTokenizer:
    """A tokenizer of the library that keeps what it was given."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.seen: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, *more: Any, **how: Any) -> Any:
        self.seen.append(text)
        return self._tokenizer.encode(text, *more, **how)

    def encode_batch_fast(self, texts: list[str], **how: Any) -> Any:
        self.seen += texts
        return self._tokenizer.encode_batch_fast(texts, **how)


def test_a_text_is_tokenized_once_whatever_its_labels(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = tmp_path / "model"
    shutil.copytree(model, described)
    additions = read_additions(described / ADDITIONS)
    text, zero_shot = {"kind": "text"}, {"kind": "zero-shot", "template": TEMPLATE}
    write_additions(
        described / ADDITIONS, {**additions, "inputs": {"text": text}, "outputs": {"logits": zero_shot}}
    )
    task: Any = text_task(load_serving_model(described))
    counting = CountingTokenizer(task.library_tokenizer())
    monkeypatch.setattr(task, "library_tokenizer", lambda: counting)
    task.load()
    counting.seen.clear()
    request = task.read_request({"text": TEXT}, {"labels": list(LABELS)})
    assert len(request.rows) == len(LABELS)
    assert sorted(counting.seen) == sorted([TEXT, *(TEMPLATE.replace("{}", label) for label in LABELS)])


def test_six_hundred_labels_stay_within_the_token_budget(service: TextProcess, model: Path) -> None:
    labels = tuple("国足客场两球取胜央行"[number % 10] + chr(0x4E00 + number) for number in range(600))
    text = TEXT * 50
    rows, batches = "paddlewheel_op_batch_rows_sum", "paddlewheel_op_batch_rows_count"
    before = service.metric(rows), service.metric(batches)
    (row,) = service.rows(text, labels=list(labels))
    expected = likely(model, text, labels)
    assert dict(zip(row["labels"], row["scores"], strict=True)) == pytest.approx(expected, abs=1e-5)
    assert service.metric(rows) - before[0] == 600
    assert service.metric(batches) - before[1] >= 600 * len(text) / 8192


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({}, "'labels' is missing: send the labels to choose from"),
        ({"labels": ""}, "'labels' is empty"),
        ({"labels": "[]"}, "'labels' is empty"),
        ({"labels": '["a", ""]'}, "label 1 of 'labels' is ''"),
        ({"labels": '["a", 3]'}, "label 1 of 'labels' is 3"),
        ({"labels": "a,b,a"}, "'labels' has 'a' twice"),
        ({"labels": ",".join(map(str, range(10_000)))}, "'labels' has 10000 labels; 1000 are allowed"),
        ({"labels": "x" * 201}, "label 0 of 'labels' has 201 characters"),
        ({"labels": "a", "template": "no slot"}, "'template' has 0 times {}"),
        ({"labels": "a", "template": "{} and {}"}, "'template' has 2 times {}"),
        ({"labels": "a", "template": "x" * 2000}, "'template' has 2000 characters"),
        ({"labels": "a", "multi_label": "perhaps"}, "'multi_label' is 'perhaps': send true or false"),
        ({"lables": "a"}, "did you mean 'labels'?"),
    ],
)
def test_what_can_t_be_used_is_told_by_name_over_every_endpoint(
    service: TextProcess, model: Path, parameters: dict[str, str], told: str
) -> None:
    assert told in service.rows(TEXT, status=400, **parameters)
    assert told in service.ask({"text": TEXT, **parameters})["err_msg"]
    assert told in service.rpc({"text": TEXT, **parameters}).err_msg
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}
    answer = service.http(
        "/v2/models/texts/infer", json.dumps({"inputs": [tensor], "parameters": parameters})
    )
    assert (answer.status, told in answer.json["error"]) == (400, True), answer


def test_a_list_of_too_many_labels_is_refused_by_name(service: TextProcess) -> None:
    labels = [str(number) for number in range(10_000)]
    assert "parameter 'labels' is a list of 10000 texts" in service.rows(TEXT, status=400, labels=labels)


def test_more_pairs_than_a_request_may_have_are_refused(service: TextProcess) -> None:
    labels = [str(number) for number in range(1000)]
    assert "5 texts with 1000 labels are 5000 pairs" in service.rows(*[TEXT] * 5, status=413, labels=labels)


def test_a_long_premise_is_read_in_windows(tmp_path: Path) -> None:
    model = classifier(tmp_path, NLI)
    with TextProcess(
        model, "--template", "{}", "--too-long", "windows", "--max-tokens", "14", "--candidates", "体育,车"
    ) as service:
        (row,) = service.rows(TEXT * 2)
    # 14 less 3 special tokens less the 2 of the longest label.
    windows = [(TEXT * 2)[start : start + 9] for start in (0, 6, 7)]
    scores = [likely(model, window, ("体育", "车"), "{}") for window in windows]
    check(row, {name: float(np.mean([one[name] for one in scores])) for name in ("体育", "车")})
    assert row["windows"] == 3

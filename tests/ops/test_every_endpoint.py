"""One text through every endpoint has one answer, and one mistake is told alike: of each kind of service."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.support.embedding_models import cross_encoder, encoder
from tests.support.service_process import ServiceProcess
from tests.support.text_endpoints import ENDPOINTS, Inputs, Outputs, Refused
from tests.support.text_services import NLI, TextProcess, classifier, entity_model

NEWS = "国足客场两球取胜"
MEGABYTE = "国" * 1_000_000
BIO = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
WORDS = dict(zip("去王小明北京", ("O", "B-PER", "I-PER", "I-PER", "B-LOC", "I-LOC"), strict=True))
HARD = "王小明🚀去ＡＢ北京e\u0301"
Told = list[Any]


class Kind(NamedTuple):
    """A kind of service: its model, one row of it, and what of an answer to that all endpoints tell.

    mistakes: inputs, parameters, and what the refusal says.
    """

    model: Callable[[Path], Path]
    options: tuple[str, ...]
    inputs: Inputs
    parameters: Mapping[str, Any]
    told: Callable[[Outputs], Told]
    mistakes: Mapping[str, tuple[Inputs, Mapping[str, Any], str]]


def labels(outputs: Outputs) -> Told:
    """The labels and their scores, whether of one row or of one with a list around it."""
    names, scores = (np.ravel(outputs[name]).tolist() for name in ("labels", "scores"))
    return [*names, *scores]


def entities(outputs: Outputs) -> Told:
    """Text, class and place of each entity, from tensors, objects or PaddleNLP's JSON."""
    if "value" in outputs:
        (found,) = json.loads(outputs["value"])
        return [[one["entity"], one["label"], one["pos"][0], one["pos"][1] + 1] for one in found]
    if "entities" in outputs:
        return [[one[name] for name in ("text", "label", "start", "end")] for one in outputs["entities"][0]]
    columns = [np.ravel(outputs[name]).tolist() for name in ("text", "label", "start", "end")]
    return [list(one) for one in zip(*columns, strict=True)]


def of(name: str) -> Callable[[Outputs], Told]:
    return lambda outputs: list(np.ravel(outputs[name]).tolist())


BAD_TEXTS: Mapping[str, tuple[Inputs, Mapping[str, Any], str]] = {
    "an empty text": ({"text": [""]}, {}, "'text' is empty"),
    "an empty row": ({"text": ["a", " "]}, {}, "text 1 of 'text' is empty"),
    "GBK": ({"text": ["a", "\ufffd" * 9]}, {}, "text 1 of 'text' is hardly anything but U+FFFD"),
    "a megabyte": ({"text": ["a", MEGABYTE]}, {}, "1000000 characters"),
}
KINDS = {
    "classes": Kind(
        lambda folder: classifier(folder, ("体育", "财经", "科技")),
        (),
        {"text": [NEWS]},
        {"top_k": 3},
        labels,
        {
            **BAD_TEXTS,
            "no class": ({"text": [NEWS]}, {"top_k": 0}, "'top_k' is"),
            "a share": ({"text": [NEWS]}, {"threshold": 1.5}, "'threshold' is"),
            "a misspelt name": ({"text": [NEWS]}, {"treshold": 0.5}, "did you mean 'threshold'?"),
        },
    ),
    "pairs": Kind(
        lambda folder: classifier(folder, ("体育", "财经", "科技")),
        ("--pair",),
        {"text": [NEWS], "text_pair": ["央行"]},
        {"top_k": 2},
        labels,
        {
            "a text missing": ({"text": [NEWS]}, {}, "'text_pair'"),
            "an empty one": ({"text": [NEWS], "text_pair": [""]}, {}, "'text_pair' is empty"),
        },
    ),
    "entities": Kind(
        lambda folder: entity_model(folder, BIO, WORDS),
        (),
        {"text": [HARD]},
        {"threshold": 0.5},
        entities,
        {
            **BAD_TEXTS,
            "no tokens": ({"text": ["[]"]}, {"pre_split": True}, "text 0 of 'text' has no tokens"),
            "a number": ({"text": ['["北", 3]']}, {"pre_split": True}, "token 1 is no text but int"),
            "no list": ({"text": ["北京"]}, {"pre_split": True}, "is no list of tokens"),
        },
    ),
    "zero-shot": Kind(
        lambda folder: classifier(folder, NLI),
        ("--template", "这是{}。"),
        {"text": [NEWS]},
        {"labels": ["体育", "财经", "a"], "template": "{}", "multi_label": True},
        labels,
        {
            **{name: (inputs, {"labels": ["a"]}, told) for name, (inputs, _, told) in BAD_TEXTS.items()},
            "no labels": ({"text": [NEWS]}, {}, "'labels' is missing"),
            "an empty list": ({"text": [NEWS]}, {"labels": []}, "'labels' is empty"),
            "10,000 labels": (
                {"text": [NEWS]},
                {"labels": [str(number) for number in range(10_000)]},
                "1000 are allowed",
            ),
            "a number": ({"text": [NEWS]}, {"labels": ["a", 3]}, "'labels' "),
            "no slot": ({"text": [NEWS]}, {"labels": ["a"], "template": "x"}, "'template' has 0 times {}"),
        },
    ),
    "embeddings": Kind(
        lambda folder: encoder(folder / "model", {"kind": "embedding"}),
        (),
        {"text": ["w1 国 w2"]},
        {"dimensions": 4},
        of("embedding"),
        {
            **BAD_TEXTS,
            "dimensions": ({"text": ["w1"]}, {"dimensions": 9}, "'dimensions' is 9; the model's vectors"),
        },
    ),
    "reranking": Kind(
        lambda folder: cross_encoder(folder / "model"),
        (),
        {"text": ["w1 w2"], "text_pair": ["w3 w4"]},
        {},
        of("score"),
        {
            "a text missing": ({"text": [NEWS]}, {}, "'text_pair'"),
            "an empty one": ({"text": [" "], "text_pair": ["w1"]}, {}, "'text' is empty"),
        },
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kind]:
    yield KINDS[request.param]


@pytest.fixture(scope="module")
def service(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with TextProcess(kind.model(tmp_path_factory.mktemp("model")), *kind.options) as service:
        yield service


def test_one_text_has_one_answer_through_every_endpoint(kind: Kind, service: ServiceProcess) -> None:
    answers = {
        name: kind.told(endpoint(service, kind.inputs, kind.parameters))
        for name, endpoint in ENDPOINTS.items()
    }
    expected = answers["v1-http"]
    assert expected
    for name, told in answers.items():
        assert len(told) == len(expected), (name, told)
        for one, other in zip(told, expected, strict=True):
            assert one == (pytest.approx(other, abs=1e-6) if isinstance(other, float) else other), name


def test_a_mistake_is_told_by_field_and_row_through_every_endpoint(
    kind: Kind, service: ServiceProcess
) -> None:
    for mistake, (inputs, parameters, told) in kind.mistakes.items():
        for name, endpoint in ENDPOINTS.items():
            with pytest.raises(Refused) as caught:
                endpoint(service, inputs, parameters)
            assert told in str(caught.value), (mistake, name, str(caught.value)[:300])
    assert kind.told(ENDPOINTS["grpc"](service, kind.inputs, kind.parameters))

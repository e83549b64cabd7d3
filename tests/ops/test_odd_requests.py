"""Whatever stands in a request, an Op of texts answers it or refuses it as its client's mistake."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from pipeline.api.op import REQUEST_OP
from pipeline.api.request_options import RequestOptions
from pipeline.errors import InvalidInput
from pipeline.models.serving_model import load_serving_model
from pipeline.ops.text_ops import TextOp
from tests.support.embedding_models import cross_encoder, encoder
from tests.support.hard_texts import HARD_TEXTS
from tests.support.text_services import NLI, classifier, entity_model

CLASSES, PLACES = ("x", "y", "z"), ("O", "B-A", "I-A")
WORDS = {"国": "B-A", "足": "I-A", "a": "B-A"}
REQUESTS = 1500  # of each Op
KEYS = ("text", "text_pair", "tokens", "labels", "template", "top_k", "threshold", "pre_split", "0", "1", "x")
OF_VECTORS = ("other", "dimensions", "normalize", "truncate", "raw_scores")
OTHERS = ("", "\x00", " ", "{}", "null", "[1]", '["国","足"]', '[["a"]]', "array(['国'])")
SCALARS = (
    1,
    -1,
    0,
    3.5,
    True,
    None,
    float("nan"),
    10**30,
    "2",
    "0.5",
    "true",
    [],
    [1],
    {"a": 1},
    b"\xff\xfe",
)
KINDS: dict[str, Callable[[Path], tuple[Path, dict[str, Any]]]] = {
    "windows": lambda folder: (classifier(folder, CLASSES), {"too_long": "windows", "max_tokens": 12}),
    "pairs": lambda folder: (
        classifier(folder, CLASSES),
        {"pair": True, "too_long": "truncate", "max_tokens": 9},
    ),
    "pairs in windows": lambda folder: (
        classifier(folder, CLASSES),
        {"pair": True, "too_long": "windows", "max_tokens": 12},
    ),
    "zero-shot": lambda folder: (classifier(folder, NLI), {"too_long": "windows", "max_tokens": 20}),
    "entities": lambda folder: (
        entity_model(folder, PLACES, WORDS),
        {"too_long": "windows", "max_tokens": 8},
    ),
    "vectors": lambda folder: (encoder(folder / "model", {"kind": "embedding"}), {}),
    "vectors of windows": lambda folder: (
        encoder(folder / "model", {"kind": "embedding"}),
        {"too_long": "windows", "max_tokens": 8},
    ),
    "relevance": lambda folder: (cross_encoder(folder / "model"), {}),
}


class Asked:
    """An Op with its model, asked as a worker asks it, one request after another."""

    def __init__(self, model: Path, options: dict[str, Any]) -> None:
        self._op = TextOp(name="texts", **options)
        self._op.set_model_info(load_serving_model(model))
        self._op.init_op()
        (program,) = model.rglob("*.onnx")
        self._session = onnxruntime.InferenceSession(program)
        self._feeds = [one.name for one in self._session.get_inputs()]
        self._fetches = [one.name for one in self._session.get_outputs()]

    def __call__(self, inputs: dict[str, Any], parameters: dict[str, Any]) -> Any:
        self._op.request_options = RequestOptions(parameters=parameters)
        given = {REQUEST_OP: inputs}
        feeds = self._op.preprocess(given)
        runs = (self._session.run(None, {name: feed[name] for name in self._feeds}) for feed in feeds)
        fetches = [dict(zip(self._fetches, run, strict=True)) for run in runs]
        return self._op.postprocess(given, fetches)


def texts(random: random.Random) -> Iterator[str]:
    while True:
        text = random.choice(HARD_TEXTS)
        at = random.randrange(len(text) + 1)
        made = (text, text[at:], text[:at], text * random.randrange(6), "国足a" * random.randrange(12))
        yield random.choice([*made, random.choice(OTHERS)])


def value(random: random.Random, given: Iterator[str]) -> Any:
    kind = random.randrange(6)
    if kind < 3:
        return next(given)
    if kind == 3:
        return [next(given) for _ in range(random.randrange(4))]
    if kind == 4:
        return np.array([next(given).encode() for _ in range(random.randrange(1, 4))], object)
    return random.choice([*SCALARS, np.array([1, 2]), np.array([b"\xff"], object)])


@pytest.mark.parametrize("kind", KINDS)
def test_each_is_answered_or_refused(kind: str, tmp_path: Path) -> None:
    ask = Asked(*KINDS[kind](tmp_path))
    source = random.Random(kind)
    keys = (*KEYS, *OF_VECTORS) if kind.startswith(("vectors", "relevance")) else KEYS
    given = texts(source)
    answered = refused = 0
    for _ in range(REQUESTS):
        inputs = {key: value(source, given) for key in source.sample(keys, source.randrange(1, 4))}
        inputs |= {"text": next(given), "labels": "a,b"} if source.random() < 0.6 else {}
        inputs |= {"text_pair": next(given)} if source.random() < 0.6 else {}
        parameters = {"threshold": source.choice([0.1, 2, "x"])} if source.random() < 0.2 else {}
        try:
            assert len(ask(inputs, parameters)) > 1
            answered += 1
        except InvalidInput as refusal:
            assert refusal.http_status in (400, 413), inputs
            refused += 1
    assert min(answered, refused) > REQUESTS / 20

"""Requests in OpenAI's and TEI's form count their texts as rows, for limits and admission."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.config.config_file import Limits
from pipeline.dialects.openai.http_route import EMBEDDINGS_PATH, OpenAIHttp
from pipeline.dialects.tei.http_routes import TeiHttp
from pipeline.dialects.text_models import TextModel
from pipeline.errors import TooLarge

MOST = 4
SERVED: Any = SimpleNamespace(name="test", key="test", config=None)


class Models:
    """Finds one model whatever is asked for. pair: whether it takes pairs of texts."""

    def __init__(self, *, pair: bool) -> None:
        self._pair = "second" if pair else ""

    def find_model(self, kind: str, name: str = "") -> TextModel:
        return TextModel(SERVED, "first", self._pair)


def rows(path: str, document: dict[str, Any], *, pair: bool = False) -> int:
    app = SimpleNamespace(config=SimpleNamespace(limits=Limits(rows=MOST)))
    scheduler = SimpleNamespace(
        app=app, access_log=None, traces=None, deadline=lambda **_: time.monotonic() + 1
    )
    kind = OpenAIHttp if path == EMBEDDINGS_PATH else TeiHttp
    handler = kind(cast(Any, scheduler), cast(Any, Models(pair=pair)))
    body = json.dumps(document).encode()
    request: Any = SimpleNamespace(path=path, method="POST", body=body, began=time.monotonic())
    read = handler._read(request)
    assert read is not None
    return read.rows


CASES: list[tuple[str, dict[str, Any], bool, int]] = [
    (EMBEDDINGS_PATH, {"input": "a, b"}, False, 1),
    (EMBEDDINGS_PATH, {"input": ["a, [b]", "c"]}, False, 2),
    (EMBEDDINGS_PATH, {"input": [1, 2, 3, 4, 5]}, False, 1),
    (EMBEDDINGS_PATH, {"input": [[1, 2, 3, 4, 5], [6]]}, False, 2),
    ("/embed", {"inputs": ["a", "b", "c"]}, False, 3),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}}, False, 3),
    ("/rerank", {"query": "a", "texts": ["b", "c", "d"]}, True, 3),
    ("/predict", {"inputs": "a"}, True, 1),
    ("/predict", {"inputs": ["a", "b"]}, True, 1),
    ("/predict", {"inputs": [["a", "b"], ["c", "d"]]}, True, 2),
]


@pytest.mark.parametrize(("path", "document", "pair", "expected"), CASES)
def test_each_text_is_a_row(path: str, document: dict[str, Any], pair: bool, expected: int) -> None:
    assert rows(path, document, pair=pair) == expected


@pytest.mark.parametrize("path", [EMBEDDINGS_PATH, "/embed"])
def test_more_texts_than_rows_are_refused_before_admission(path: str) -> None:
    field = "input" if path == EMBEDDINGS_PATH else "inputs"
    with pytest.raises(TooLarge, match=f"has 5 texts; {MOST} are allowed"):
        rows(path, {field: ["x"] * (MOST + 1)})

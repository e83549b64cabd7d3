"""TEI's paths in /openapi.json, those that the service's models answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.dialects.tei.http_routes import ROUTES
from pipeline.dialects.text_models import TextModels
from pipeline.front.http.openapi import OBJECT, content, operation

_TOLD: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "/embed": ("Embeddings of texts", "文本的向量", {"inputs": ["text"]}),
    "/similarity": (
        "Cosines of a text with others",
        "一段文本与其他文本的余弦相似度",
        {"inputs": {"source_sentence": "text", "sentences": ["another text"]}},
    ),
    "/rerank": ("Texts by their relevance", "按相关性排序", {"query": "text", "texts": ["another text"]}),
    "/predict": ("Classes of a text", "文本分类", {"inputs": "text"}),
}


def paths(models: TextModels) -> dict[str, Any]:
    told = {}
    for path, (summary, zh, example) in _TOLD.items():
        found = models.all(ROUTES[path].kind)
        if not found:
            continue
        if path == "/predict" and found[0].pair:
            example = {"inputs": ["text", "another text"]}
        body = content({"type": "object"}, example)
        told[path] = {"post": operation("TEI", summary, zh, body, OBJECT, model=found[0].served.name)}
    return told

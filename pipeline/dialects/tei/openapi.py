"""TEI's paths in /openapi.json, those that the service's models answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pipeline.dialects.tei.http_routes import ROUTES
from pipeline.dialects.text_models import TextModels
from pipeline.front.http.openapi import OBJECT, Schema, content, operation, refusals

_NUMBERS: Schema = {"type": "array", "items": {"type": "number"}}
_ERROR: Schema = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "error_type": {"type": "string"}},
    "required": ["error", "error_type"],
}


class _Page(NamedTuple):
    summary: str
    summary_zh: str
    example: dict[str, Any]
    answer: Schema


_PAGES: Mapping[str, _Page] = {
    "/embed": _Page(
        "Embeddings of texts", "文本的向量", {"inputs": ["text"]}, {"type": "array", "items": _NUMBERS}
    ),
    "/similarity": _Page(
        "Cosines of a text with others",
        "一段文本与其他文本的余弦相似度",
        {"inputs": {"source_sentence": "text", "sentences": ["another text"]}},
        _NUMBERS,
    ),
    "/rerank": _Page(
        "Texts by their relevance",
        "按相关性排序",
        {"query": "text", "texts": ["another text"]},
        {"type": "array", "items": OBJECT},
    ),
    "/predict": _Page("Classes of a text", "文本分类", {"inputs": "text"}, {"type": "array"}),
}


def paths(models: TextModels) -> dict[str, Any]:
    operations = {}
    for path, page in _PAGES.items():
        answering = models.all(ROUTES[path].kind)
        if not answering:
            continue
        example = page.example
        if path == "/predict" and answering[0].pair:
            example = {"inputs": ["text", "another text"]}
        body, model = content(OBJECT, example), answering[0].served.name
        post = operation("TEI", page.summary, page.summary_zh, body, page.answer, model=model)
        post["responses"] |= refusals(_ERROR)
        operations[path] = {"post": post}
    return operations

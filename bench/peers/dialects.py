"""Request and response bodies of a text in each dialect: key/value, plain JSON, lists, KServe v2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from bench.texts import http_body
from client.values import parse_value


class Answer(NamedTuple):
    label: str
    confidence: float


class Dialect(NamedTuple):
    body: Callable[[str], bytes]
    answer: Callable[[bytes], Answer]


def _answer_in_pairs(content: bytes) -> Answer:
    document = msgspec.json.decode(content)
    values = {key: parse_value(value) for key, value in zip(document["key"], document["value"], strict=True)}
    (label,), (confidence,) = values["label"], values["confidence"]
    return Answer(str(label), float(confidence))


def _answer_in_json(content: bytes) -> Answer:
    document = msgspec.json.decode(content)
    return Answer(document["label"], document["confidence"])


def _answer_in_list(content: bytes) -> Answer:
    (document,) = msgspec.json.decode(content)
    return Answer(document["label"], document["confidence"])


def _best_class(content: bytes) -> Answer:
    (classes,) = msgspec.json.decode(content)["data"]
    best = max(classes, key=lambda each: each["score"])
    return Answer(best["label"], best["score"])


def _v2_body(text: str) -> bytes:
    tensor: dict[str, Any] = {"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": [text]}
    outputs = [{"name": "label"}, {"name": "confidence"}]
    return msgspec.json.encode({"inputs": [tensor], "outputs": outputs})


def _v2_answer(content: bytes) -> Answer:
    outputs = {output["name"]: output["data"] for output in msgspec.json.decode(content)["outputs"]}
    (label,), (confidence,) = outputs["label"], outputs["confidence"]
    return Answer(label, confidence)


PAIRS = Dialect(http_body, _answer_in_pairs)
JSON = Dialect(lambda text: msgspec.json.encode({"text": text}), _answer_in_json)
LISTS = Dialect(lambda text: msgspec.json.encode({"text": [text]}), _answer_in_list)
INFINITY = Dialect(lambda text: msgspec.json.encode({"input": [text], "model": "classifier"}), _best_class)
V2 = Dialect(_v2_body, _v2_answer)

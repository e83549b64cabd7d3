"""What a request over OpenAI's API tells the worker of its answer."""

from __future__ import annotations

from typing import NamedTuple

EMBEDDINGS = "openai.embeddings"
"""The form of an answer: {"object": "list", "data": [...], "usage": {...}}."""

FLOAT, BASE64 = "float", "base64"


class OpenAIWish(NamedTuple):
    """encoding: of the vectors, FLOAT or BASE64. model: the name that the answer has."""

    encoding: str
    model: str

"""The options of an OpenAI response, which the front sends to the worker with the request."""

from __future__ import annotations

from typing import NamedTuple

EMBEDDINGS = "openai.embeddings"
"""Name of the form {"object": "list", "data": [...], "usage": {...}}."""

FLOAT, BASE64 = "float", "base64"


class EmbeddingOptions(NamedTuple):
    """The options of an embeddings response."""

    encoding: str  # of the vectors: FLOAT or BASE64
    model: str  # name of the model in the response

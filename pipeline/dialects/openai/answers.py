"""The answer of `/v1/embeddings`, made in the worker."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from pipeline.dialects.openai.wish import BASE64, OpenAIWish
from pipeline.dialects.vectors import vectors_in
from pipeline.messages.values import Part
from pipeline.models.tensor_spec import TensorSpec

_LITTLE = np.dtype("<f4")


def render(
    output: Mapping[str, Any], wish: Sequence[Any], version: str, declared: Sequence[TensorSpec]
) -> list[Part]:
    """The complete answer. Raises UnprintableAnswer for an output without vectors."""
    asked = OpenAIWish(*wish)
    vectors, tokens = vectors_in(output)
    told: list[Any] = vectors.tolist()
    if asked.encoding == BASE64:
        told = [base64.b64encode(row.tobytes()).decode() for row in vectors.astype(_LITTLE)]
    data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(told)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    answer = {"object": "list", "data": data, "model": asked.model, "usage": usage}
    return [msgspec.json.encode(answer)]

"""WORKER PROCESS: encodes responses of `/v1/embeddings`."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from pipeline.dialects.openai.response_options import BASE64, EmbeddingOptions
from pipeline.dialects.vectors import vectors_in
from pipeline.messages.values import Part
from pipeline.models.tensor_spec import TensorSpec

_LITTLE = np.dtype("<f4")


def render(
    output: Mapping[str, Any], response_options: Sequence[Any], version: str, declared: Sequence[TensorSpec]
) -> list[Part]:
    """Encode the response body. Raises UnprintableAnswer for an output without vectors."""
    options = EmbeddingOptions(*response_options)
    vectors, tokens = vectors_in(output)
    embeddings: list[Any] = vectors.tolist()
    if options.encoding == BASE64:
        embeddings = [base64.b64encode(row.tobytes()).decode() for row in vectors.astype(_LITTLE)]
    data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(embeddings)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    answer = {"object": "list", "data": data, "model": options.model, "usage": usage}
    return [msgspec.json.encode(answer)]

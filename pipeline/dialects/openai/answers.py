"""WORKER PROCESS: encodes the responses of OpenAI's `/v1/embeddings`."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from pipeline.dialects.text_values import vectors_in
from pipeline.messages.frames import Part
from pipeline.models.tensor_spec import TensorSpec

EMBEDDINGS = "openai.embeddings"  # response form {"object": "list", "data": [...], "usage": {...}}
FLOAT, BASE64 = "float", "base64"  # encodings of the vectors
_LITTLE_ENDIAN = np.dtype("<f4")


class EmbeddingOptions(NamedTuple):
    """Options that the front process sends to the encoder of an embeddings response."""

    encoding: str  # encoding of the vectors: FLOAT or BASE64
    model: str  # name of the model in the response


def render(
    output: Mapping[str, Any], response_options: Sequence[Any], version: str, declared: Sequence[TensorSpec]
) -> list[Part]:
    """Encode the vectors in a model's output as the JSON body of OpenAI's embeddings response.

    response_options: the fields of EmbeddingOptions. Raises UnprintableAnswer (HTTP 500) for an output
    without vectors.
    """
    options = EmbeddingOptions(*response_options)
    vectors, tokens = vectors_in(output)
    embeddings: list[Any] = vectors.tolist()
    if options.encoding == BASE64:
        embeddings = [base64.b64encode(row.tobytes()).decode() for row in vectors.astype(_LITTLE_ENDIAN)]
    data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(embeddings)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    answer = {"object": "list", "data": data, "model": options.model, "usage": usage}
    return [msgspec.json.encode(answer)]

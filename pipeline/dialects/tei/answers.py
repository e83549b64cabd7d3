"""WORKER PROCESS: encodes responses of Text Embeddings Inference (TEI), with a function for each path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.dialects.text_values import vectors_in
from pipeline.errors import UnprintableAnswer
from pipeline.messages.frames import Part
from pipeline.models.tensor_spec import TensorSpec

# Response forms, one for each path:
EMBED, SIMILARITY, RERANK, PREDICT = "tei.embed", "tei.similarity", "tei.rerank", "tei.predict"
EMBED_ALL, TOKENIZE = "tei.embed_all", "tei.tokenize"

Output = Mapping[str, Any]
Declared = Sequence[TensorSpec]
_json = msgspec.json


class TeiResponseOptions(NamedTuple):
    """Options that the front process sends to the encoder of a TEI response."""

    many: bool = True  # whether the response is a list with an element for each text, not its only element
    texts: bytes = b""  # JSON list of the texts to return with their ranks; empty to return none


def embed(output: Output, response_options: Sequence[Any], version: str, declared: Declared) -> list[Part]:
    """Encode the response of /embed: a vector for each text."""
    vectors, _ = vectors_in(output)
    return [_json.encode(vectors.tolist())]


def embed_all(
    output: Output, response_options: Sequence[Any], version: str, declared: Declared
) -> list[Part]:
    """Encode the response of /embed_all: a vector for each token of each text."""
    vectors, _ = vectors_in(output)
    ends = np.cumsum(_rows(output, "tokens"))
    return [_json.encode([part.tolist() for part in np.split(vectors, ends[:-1])])]


def tokenize(output: Output, response_options: Sequence[Any], version: str, declared: Declared) -> list[Part]:
    """Encode the response of /tokenize: the tokens of each text. Special tokens have no start and stop."""
    columns = [_rows(output, name).tolist() for name in ("token_ids", "token_names", "special", "places")]
    tokens = [
        {
            "id": number,
            "text": name.decode() if isinstance(name, bytes) else name,
            "special": special,
            "start": None if special else place[0],
            "stop": None if special else place[1],
        }
        for number, name, special, place in zip(*columns, strict=True)
    ]
    ends = np.cumsum(_rows(output, "tokens")).tolist()
    return [_json.encode([tokens[begin:end] for begin, end in zip([0, *ends], ends, strict=False)])]


def similarity(
    output: Output, response_options: Sequence[Any], version: str, declared: Declared
) -> list[Part]:
    """Encode the response of /similarity: the cosine similarity of the first text with each other text."""
    vectors, _ = vectors_in(output)
    lengths = np.maximum(np.linalg.norm(vectors, axis=1), np.finfo(np.float32).tiny)
    cosines = vectors[1:] @ vectors[0] / (lengths[1:] * lengths[0])
    return [_json.encode(cosines.tolist())]


def rerank(output: Output, response_options: Sequence[Any], version: str, declared: Declared) -> list[Part]:
    """Encode the response of /rerank: index and score of each text, in descending order of the scores."""
    options = TeiResponseOptions(*response_options)
    scores = _rows(output, "score").astype(np.float32).reshape(-1)
    order = np.argsort(-scores, kind="stable").tolist()
    ranks: list[dict[str, Any]] = [{"index": at, "score": score} for at, score in enumerate(scores.tolist())]
    if options.texts:
        for rank, text in zip(ranks, _json.decode(options.texts), strict=True):
            rank["text"] = text
    return [_json.encode([ranks[at] for at in order])]


def predict(output: Output, response_options: Sequence[Any], version: str, declared: Declared) -> list[Part]:
    """Encode the response of /predict: labels with their scores, best first.

    The response is a list for each text, or a single list if the request has a single text.
    """
    options = TeiResponseOptions(*response_options)
    names = ("labels", "scores") if "labels" in output else ("label", "score")
    labels, scores = (_rows(output, name) for name in names)
    pairs = zip(
        labels.reshape(len(labels), -1).tolist(), scores.reshape(len(scores), -1).tolist(), strict=True
    )
    predictions = [
        [{"label": str(label), "score": score} for label, score in zip(*row, strict=True) if label != ""]
        for row in pairs
    ]
    return [_json.encode(predictions if options.many else predictions[0])]


def _rows(output: Output, name: str) -> npt.NDArray[Any]:
    """Return the output `name`, an array with a row for each text or token.

    Raises UnprintableAnswer for an output that is missing or no array.
    """
    value = output.get(name)
    if not isinstance(value, np.ndarray) or not value.ndim:
        raise UnprintableAnswer(f"the service gives no {name!r} with a row for each text")
    return value

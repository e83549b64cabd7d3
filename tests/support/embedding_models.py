"""Models that compare texts, of tests/fixtures/onnx, with a tokenizer of words beside them.

encoder(folder)        a vector for each token and one for each text
projected(folder)      the same with two poolings, layers after them, and prompts that are not pooled
cross_encoder(folder)  a score for each pair
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.serving_model import FeedPadding, Padding, write_serving_model
from tests.support.onnx_models import onnx_file

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"国足客场取胜车船新闻", *(f"w{n}" for n in range(40)))
MAX_TOKENS = 24


def ids_of(text: str) -> list[int]:
    """What the tokenizer makes of words with spaces between them."""
    return [2, *(WORDS.index(word) if word in WORDS else 1 for word in text.split()), 3]


def encoder(folder: Path, output: Mapping[str, Any], *, fetch: str = "last_hidden_state") -> Path:
    """output: what serving.yml says of a fetch."""
    return _model(folder, "states", {"text": {"kind": "text"}}, {fetch: dict(output)})


def projected(folder: Path, **output: Any) -> Path:
    sentence = {
        "pooling": ["cls", "weightedmean"],
        "layers": [
            {"kind": "dense", "size": 6, "activation": "gelu"},
            {"kind": "normalize"},
            {"kind": "dense", "size": 6, "activation": "silu"},
        ],
        "prompts": {"query": "w9 W8 ", "passage": "w7 "},
        "default_prompt": "query",
        "include_prompt": False,
        "lowercase": True,
    }
    given, described = (
        {"text": {"kind": "text", "lowercase": False}},
        {"last_hidden_state": {"kind": "embedding", **output}},
    )
    model = _model(folder, "states", given, described, {"sentence": sentence})
    np.savez(folder / "serving_server" / "sentence_layers.npz", **projection())
    return model


def projection() -> dict[str, np.ndarray[Any, Any]]:
    """The weights of the layers of `projected`, as the file beside the model has them."""
    random = np.random.default_rng(17)
    shapes = {"0.weight": (6, 16), "0.bias": (6,), "2.weight": (6, 6), "2.residual": (6, 6)}
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def projected_vector(text: str, prompt: str) -> np.ndarray[Any, Any]:
    """The vector of length 1 that `projected` gives, worked out here: float64."""
    ids = ids_of(prompt + text)
    first = len(ids_of(prompt)) - 1 if prompt else 0
    tokens, places = token_vectors(ids)[first:], np.arange(first + 1, len(ids) + 1)
    weights = projection()
    vector = np.concatenate([tokens[0], places @ tokens / places.sum()])
    hidden = weights["0.weight"] @ vector + weights["0.bias"]
    hidden *= [(1 + math.erf(number / math.sqrt(2))) / 2 for number in hidden]
    hidden /= np.linalg.norm(hidden)
    result = weights["2.weight"] @ hidden
    result = result / (1 + np.exp(-result)) + weights["2.residual"] @ hidden
    return np.asarray(result / np.linalg.norm(result))


def similarity(folder: Path) -> Path:
    given = {"text": {"kind": "text", "pair": "other"}}
    return _model(folder, "states", given, {"last_hidden_state": {"kind": "similarity"}})


def cross_encoder(folder: Path, **output: Any) -> Path:
    given = {"text": {"kind": "text", "pair": "text_pair"}}
    return _model(folder, "pairs", given, {"logits": {"kind": "relevance", **output}})


def _model(
    folder: Path,
    name: str,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    additions: Mapping[str, Any] | None = None,
) -> Path:
    facts = inspect_onnx(onnx_file(name))
    padding = Padding({feed.alias: FeedPadding(1) for feed in facts.feeds}, {})
    folder.parent.mkdir(parents=True, exist_ok=True)
    words = folder.parent / "vocab.txt"
    words.write_text("\n".join(WORDS) + "\n", "utf-8")
    text = {**inputs["text"], "max_tokens": MAX_TOKENS}
    write_serving_model(
        folder,
        onnx_file(name),
        None,
        facts.feeds,
        facts.fetches,
        padding=padding,
        additions={"inputs": {"text": text}, "outputs": dict(outputs), **(additions or {})},
        extra_files=[words],
    )
    return folder


def token_vectors(text: Sequence[int]) -> np.ndarray[Any, Any]:
    """What states.onnx gives for the tokens of one text, worked out here: float64 [tokens, 8]."""
    words = np.random.default_rng(11).standard_normal((64, 8)).astype(np.float32).astype(np.float64)
    own = words[list(text)]
    return np.asarray(own + own.mean(axis=0))


def relevance(first: Sequence[int], second: Sequence[int]) -> float:
    """What pairs.onnx gives for a pair: the tokens of the second text, with their [SEP], are of segment 1."""
    random = np.random.default_rng(13)
    words, others = ((random.standard_normal((64, 8)) / 4).astype(np.float32).astype(float) for _ in range(2))
    return float(words[list(first)].sum(axis=0) @ others[list(second)].sum(axis=0))

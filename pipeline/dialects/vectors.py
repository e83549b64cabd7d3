"""The vectors in an Op's output, for the dialects that answer with such."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import UnprintableAnswer

EMBEDDING, TOKENS = "embedding", "tokens"


def vectors_in(output: Mapping[str, Any]) -> tuple[npt.NDArray[np.float32], int]:
    """The vectors, a row for each text, and how many tokens all texts have: 0 where the Op does not tell.

    Raises UnprintableAnswer.
    """
    vectors = output.get(EMBEDDING)
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2 or vectors.dtype.kind != "f":
        raise UnprintableAnswer(f"the service gives no {EMBEDDING!r} with a row for each text")
    tokens = output.get(TOKENS)
    return vectors.astype(np.float32, copy=False), 0 if tokens is None else int(np.sum(tokens))

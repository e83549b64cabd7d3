"""BYTES of a repository's models in key/value: texts on their way in, which the worker reads, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from pipeline.messages.values import Unread


class DeclaredTexts(Unread, eq=False):
    """Texts of a key/value message: `data` is a JSON array of them."""

    kind = "key_value.texts"
    shape: list[int]

    def read(self) -> Any:
        """An array of `bytes` objects."""
        texts = msgspec.json.decode(self.data, type=list[str])
        array = np.empty(len(texts), object)
        array[:] = [text.encode() for text in texts]
        return array.reshape(self.shape)


def as_texts(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """An output of one text as that text, one of several as a list of them; numbers as they are."""
    return {name: _as_text(value) for name, value in outputs.items()}


def _as_text(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "OSU":
        return value
    texts = [one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one) for one in value.ravel()]
    return texts[0] if len(texts) == 1 else texts

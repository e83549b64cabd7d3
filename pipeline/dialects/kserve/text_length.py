"""The length of texts that the front leaves unread: looked at where all of them together are too long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.config.config_file import Limits
from pipeline.errors import TooLarge
from pipeline.messages.values import Unread


def check_texts(inputs: Mapping[str, Any], limits: Limits) -> None:
    """Raise TooLarge for a text, or an element of BYTES, over `limits.text_chars`; InvalidInput as `read`."""
    for name, value in inputs.items():
        if isinstance(value, Unread) and len(value.data) > limits.text_chars:
            longest = _longest(value.read())
            if longest > limits.text_chars:
                raise TooLarge(
                    f"input {name!r} has a text of {longest} characters; limits.text_chars is "
                    f"{limits.text_chars}"
                )


def _longest(read: Any) -> int:
    if isinstance(read, np.ndarray):
        read = read.ravel().tolist() if read.dtype.kind == "O" else ()
    texts = read if isinstance(read, list | tuple) else [read]
    return max((len(text) for text in texts if isinstance(text, str | bytes)), default=0)

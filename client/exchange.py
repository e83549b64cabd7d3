"""What goes to the service and what comes back, the same for both protocols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Inputs = str | Sequence[str] | Mapping[str, str]


@dataclass(frozen=True)
class Answer:
    """An answered request. `outputs` maps each key to its text; arrays are NumPy reprs, see `parse_value`."""

    err_no: int
    err_msg: str
    outputs: dict[str, str]
    elapsed_ms: float
    """From the call of `predict` to its answer, retries included."""


def as_feed(inputs: Inputs) -> dict[str, str]:
    """One text is key "0", several are "0", "1", ... in order; a mapping is sent as it is.

    Raises TypeError when a key or a value is not a str, ValueError when there is none.
    """
    if isinstance(inputs, str):
        feed = {"0": inputs}
    elif isinstance(inputs, Mapping):
        feed = dict(inputs)
    else:
        feed = {str(number): text for number, text in enumerate(inputs)}
    if not feed:
        raise ValueError("nothing to send: give a text, a list of texts or {'0': 'text'}")
    for key, value in feed.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"key {key!r}: {type(value).__name__} can't be sent, keys and values are str")
    return feed

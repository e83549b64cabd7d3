"""A request and its answer, the same for both protocols."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from client.retry import call_with_retries
from client.values import parse_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

Inputs = str | Sequence[str] | Mapping[str, str]
Reply = tuple[str, dict[str, str]]
"""err_msg and texts of a request that succeeded."""


@dataclass(frozen=True)
class Answer:
    """An answered request."""

    err_no: int
    err_msg: str
    texts: dict[str, str]
    """What came under each key; arrays are as NumPy prints them."""
    elapsed_ms: float
    """From the call of `predict` to its answer, retries included."""

    @cached_property
    def outputs(self) -> dict[str, NDArray[Any] | str]:
        """The array under each key, or the text where it is none."""
        return {key: parse_array(text) for key, text in self.texts.items()}


class Client(ABC):
    """Asks one method of one service; may be shared by threads.

    `timeout_s` bounds a whole `predict`, its retries and their waits included.
    """

    def __init__(self, timeout_s: float, retries: int) -> None:
        self._timeout_s = timeout_s
        self._retries = retries

    def predict(self, inputs: Inputs) -> Answer:
        """Sends a text, a list of texts or `{key: text}`. Raises a ClientError, see `client.errors`."""
        started = time.monotonic()
        send = self._sender(as_feed(inputs))
        err_msg, texts = call_with_retries(send, timeout_s=self._timeout_s, retries=self._retries)
        return Answer(0, err_msg, texts, (time.monotonic() - started) * 1000)

    @abstractmethod
    def _sender(self, feed: dict[str, str]) -> Callable[[float], Reply]:
        """One try, given the seconds it has. It raises a ClientError."""

    @abstractmethod
    def close(self) -> None:
        """Closes the connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


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

"""The base of the HTTP and the gRPC client: `Client.predict` sends texts and returns an `Answer`.

`Client.stream` yields several answers.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
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
    """The successful answer to a request: output texts, which may be decoded to arrays."""

    err_no: int
    err_msg: str
    texts: dict[str, str]
    """What came under each key; arrays are as NumPy prints them."""
    elapsed_ms: float
    """From the call of `predict` or `stream` to this answer, retries included."""

    @cached_property
    def outputs(self) -> dict[str, NDArray[Any] | str]:
        """The outputs by name: printed arrays are parsed to NumPy arrays, other outputs stay texts."""
        return {key: parse_array(text) for key, text in self.texts.items()}


class Client(ABC):
    """Base of the clients that send requests to one method of one service; threads may share a client.

    timeout_s: seconds for a whole `predict` or `stream`, with all retries and the waits between them.
    retries: number of further tries after the first.
    """

    def __init__(self, timeout_s: float, retries: int) -> None:
        self._timeout_s = timeout_s
        self._retries = retries

    def predict(self, inputs: Inputs) -> Answer:
        """Send a text, a list of texts or {name: text} as one request, and return the service's answer.

        Retries while the service is busy or unreachable. Raises a ClientError, see `client.errors`.
        """
        started = time.monotonic()
        send = self._sender(as_feed(inputs))
        err_msg, texts = call_with_retries(send, timeout_s=self._timeout_s, retries=self._retries)
        return Answer(0, err_msg, texts, (time.monotonic() - started) * 1000)

    def stream(self, inputs: Inputs) -> Generator[Answer, None, None]:
        """Send one request, and yield each of its answers as soon as it arrives.

        A service whose `process` or `postprocess` is a generator sends any number of answers. The request is
        only retried before the first answer. Closing the iterator cancels the request. Raises the errors of
        `predict`.
        """
        started = time.monotonic()
        open_stream = self._streamer(as_feed(inputs))

        def begin(remaining_s: float) -> tuple[Generator[Reply, None, None], Reply | None]:
            replies = open_stream(remaining_s)
            return replies, next(replies, None)

        replies, reply = call_with_retries(begin, timeout_s=self._timeout_s, retries=self._retries)
        with contextlib.closing(replies):
            while reply is not None:
                err_msg, texts = reply
                yield Answer(0, err_msg, texts, (time.monotonic() - started) * 1000)
                reply = next(replies, None)

    @abstractmethod
    def _sender(self, feed: dict[str, str]) -> Callable[[float], Reply]:
        """Return a function that sends the texts `feed` once, within the number of seconds it is called with.

        The function returns the answer's message and outputs, or raises a ClientError.
        """

    @abstractmethod
    def _streamer(self, feed: dict[str, str]) -> Callable[[float], Generator[Reply, None, None]]:
        """Return a function that sends the texts `feed` once, and yields each answer's message and outputs.

        The function's argument is the number of seconds for all answers. It raises a ClientError.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connections to the service."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def as_feed(inputs: Inputs) -> dict[str, str]:
    """Return the texts of a request by name: a single text is named "0", a list "0", "1", ...

    A mapping keeps its names. Raises TypeError if a name or a text is not a str, and ValueError if there is
    no text.
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

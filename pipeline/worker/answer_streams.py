"""Several answers to one request: a model sends them one by one, from any thread, also after its run."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pipeline.errors import AnswersNotRead, ServingError
from pipeline.messages.frames import Part
from pipeline.messages.messages import AnswersDelivered, CancelCall, Outcome, Refusal, Settled, StreamedAnswer
from pipeline.worker.call import Call

WINDOW_ANSWERS = 1024  # answers to a request that its client has not read; above this `send` blocks
WINDOW_BYTES = 16 << 20
# How long a client may delay the thread that serves other requests, until it takes the next `REFILL` answers.
STALL_S, REFILL = 2.0, 64

Encode = Callable[[Call, list[Part]], Settled]
"""Encodes the output or the error of a request. Large parts are appended to the list."""


class Connection(Protocol):
    """The part of a worker's connection to the front process that a stream of answers uses."""

    def wait_until(self, is_over: Callable[[], bool], timeout_s: float | None = None) -> bool: ...

    def send_streamed(self, answer: StreamedAnswer, tail: Sequence[Part]) -> None: ...


class AnswerStream:
    """Sends several answers to one request.

    At most `WINDOW_ANSWERS` answers wait for the client; then `send` blocks until the client takes some. The
    thread of the instance serves other requests, too: if called in this thread, `send` blocks for `STALL_S`
    at most, and then ends the stream with an error.
    """

    def __init__(
        self,
        connection: Connection,
        key: tuple[int, int],
        call: Call,
        encode: Encode,
        on_end: Callable[[], object],
    ) -> None:
        """Create the stream of a request. The calling thread is the thread of the instance.

        key: dispatch and index of the request. on_end: called when no answer follows.
        """
        self._connection = connection
        self._dispatch, self._index = key
        self._call = call
        self._encode = encode
        self._on_end = on_end
        self._instance_thread = threading.get_ident()
        self._lock = threading.Lock()  # of `send`
        self._unread_answers = self._unread_bytes = 0
        self._refilled = 0  # answers read since the stall time was last reset
        self._stalled_s = 0.0
        self.cancelled = False  # nobody waits for the answers, by the messages so far
        self.sent = 0  # answers
        self.closed = False  # no answer follows

    def take_message(self, message: AnswersDelivered | CancelCall) -> None:
        """Process a message of the front process about this request, such as its cancellation.

        Any thread may call it.
        """
        if isinstance(message, CancelCall):
            self.cancelled = True
            return
        self._unread_answers -= message.answers
        self._unread_bytes -= message.size
        self._refilled += message.answers
        if self._refilled >= REFILL:
            self._refilled, self._stalled_s = 0, 0.0

    def is_cancelled(self) -> bool:
        """Return whether no client waits for the answers: the client has left, or the deadline has passed."""
        return self.cancelled or self._connection.wait_until(lambda: self.cancelled, 0.0)

    def send(self, output: Any, *, last: bool) -> None:
        """Send an answer: output arrays by name, or a ServingError.

        With `last` no answer follows; None instead of an answer only ends the stream. Blocks while the client
        does not take the earlier answers. Answers are dropped if no client waits for them.
        """
        with self._lock:
            if self.closed:
                return
            settled, tail = None, list[Part]()
            if output is not None and not self.cancelled:
                settled = self._encode(self._as_call(output), tail)
                if not self._wait_for_client():
                    settled, tail, last = self._refuse_client(), [], True
            if settled is None and not last:
                return
            if settled is not None:
                self.sent += 1
                self._unread_answers += 1
                self._unread_bytes += get_size(settled, tail)
            self.closed = last
            if last:
                self._on_end()
            self._connection.send_streamed(StreamedAnswer(self._dispatch, self._index, last, settled), tail)

    def close(self) -> None:
        """End the stream without another answer: the reply to the dispatch already answers the request."""
        self.closed = True
        self._on_end()

    def _as_call(self, output: Any) -> Call:
        """Return a copy of the request that holds this output.

        The executor may still use the request itself.
        """
        call = copy.copy(self._call)
        is_error = isinstance(output, ServingError)
        call.error, call.output = (output, None) if is_error else (None, output)
        return call

    def _has_room(self) -> bool:
        return self.cancelled or (self._unread_answers < WINDOW_ANSWERS and self._unread_bytes < WINDOW_BYTES)

    def _wait_for_client(self) -> bool:
        """Wait until the client has read enough answers. Return False if the client takes too long."""
        if self._has_room():
            return True
        if threading.get_ident() != self._instance_thread:
            self.cancelled |= not self._connection.wait_until(self._has_room)  # the end of file
            return True
        began = time.monotonic()
        has_room = self._connection.wait_until(self._has_room, STALL_S - self._stalled_s)
        self._stalled_s += time.monotonic() - began
        return has_room

    def _refuse_client(self) -> Settled:
        """Cancel the request of a client that does not take its answers. Return the error for the client."""
        self.cancelled = True
        error = AnswersNotRead(
            f"the client has not read {self._unread_answers} answers, and the model waits for it: read the "
            "answers faster, or send them from a thread of the model"
        )
        return Settled(self._index, Outcome.ERROR, refusal=Refusal.from_error(error))


def get_size(settled: Settled, tail: Sequence[Part]) -> int:
    """Return the size of an encoded answer in bytes; worker and front count unread answers alike."""
    return sum(len(part) for part in settled.parts if not isinstance(part, int)) + sum(map(len, tail))

"""An HTTP connection in a shard: reads requests without removing them from the socket's buffer."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable
from typing import Any, Protocol

from pipeline.front.http.connection import Connection, HttpApplication, HttpRequest
from pipeline.front.http.listener import Listener
from pipeline.messages.frames import Part
from pipeline.messages.shards import CLOSED, MOVED, NEEDS_FRONT, Journal

# Edge-triggered: an unanswered request stays in the buffer, and must wake the event loop only once.
EVENTS = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
PEEK_BYTES = 64 * 1024  # larger requests are served by the front
GIVE_BACK_S = 0.5  # a request that takes longer to arrive is served by the front

_buffer = memoryview(bytearray(PEEK_BYTES))  # of the event loop's thread


class SocketTransport(asyncio.Transport):
    """The sending side of a client connection: an asyncio transport that does not read the socket."""

    def __init__(self, connection: socket.socket, sent: Callable[[], None], over: Callable[[], None]) -> None:
        """sent: called when the kernel has taken all bytes.

        over: called when the connection is to be closed.
        """
        super().__init__()
        self._socket = connection
        self._sent = sent
        self._over = over
        self._unsent = bytearray()
        self._closing = False

    def write(self, data: Part) -> None:
        if self._closing:
            return
        if self._unsent:
            self._unsent += data
            return
        sent = self._send(data)
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]

    def send_on(self) -> None:
        """Send the rest of the answer, now that the socket's buffer has room."""
        if self._unsent:
            del self._unsent[: self._send(self._unsent)]
            if not self._unsent:
                self._sent()
                if self._closing:
                    self._end()

    def _send(self, data: Part) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:  # the client has left
            self.abort()
            return len(data)

    def close(self) -> None:
        """End the connection after the last byte of the answer."""
        if not self._closing:
            self._closing = True
            if not self._unsent:
                self._end()

    def abort(self) -> None:
        """End the connection now."""
        self._closing = True
        self._unsent.clear()
        self._end()

    def _end(self) -> None:
        asyncio.get_running_loop().call_soon(self._over)

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return self._socket
        if name == "peername":
            with contextlib.suppress(OSError):
                return self._socket.getpeername()
        return default

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def pause_reading(self) -> None:
        """Do nothing: a connection is not read while it has a request."""

    def resume_reading(self) -> None:
        """Do nothing: a connection is not read while it has a request."""


class Owner(Protocol):
    """The shard (a worker process that serves client connections) that a connection belongs to."""

    journal: Journal

    @property
    def recalls(self) -> bool:
        """Whether the front process wants connections back from this shard, for another shard."""

    def serves(self, request: HttpRequest) -> bool:
        """Return whether the shard serves a request by itself, instead of the front process."""

    def remove(self, connection: ShardConnection, kind: int) -> None:
        """Report to the front process that the shard no longer serves a connection.

        kind: type of the report packet.
        """


class ShardConnection(Connection):
    """The server side of an HTTP/1.1 connection whose unanswered request stays in the socket's buffer.

    The request leaves the buffer just before the first byte of its answer. If the shard dies before that,
    another process reads the request. Requests that a shard does not serve go to the front process with their
    connection: pipelined requests, large requests, and all but inferences.
    """

    def __init__(
        self, app: HttpApplication, listener: Listener, owner: Owner, slot: int, connection: socket.socket
    ) -> None:
        """slot: the connection's entry in the journal of connections."""
        super().__init__(app, listener)
        self.slot = slot
        self.socket = connection
        self._owner = owner
        self._peeked = 0  # bytes of the socket's buffer that are parsed
        self._has_news = False  # the client has sent more since the request in progress
        self._has_ended = False  # the client sends no more
        self._is_over = False
        self._sender = SocketTransport(connection, self._on_sent, self._on_over)
        self.connection_made(self._sender)

    def on_events(self, events: int) -> None:
        """Handle socket events: read a request, continue sending, or cancel a request whose client left.

        events: bit mask of `select.epoll`.
        """
        if events & (select.EPOLLERR | select.EPOLLHUP):
            self._sender.abort()
            return
        if events & select.EPOLLOUT:
            self._sender.send_on()
        if not events & (select.EPOLLIN | select.EPOLLRDHUP):
            return
        self._has_ended = self._has_ended or bool(events & select.EPOLLRDHUP)
        if self._has_request or self._sender.get_write_buffer_size():
            self._has_news = True
        elif not self._sender.is_closing():
            self._read_request()
        if self._has_ended and not self._is_over:
            self._handle_end_of_input()

    @property
    def _has_request(self) -> bool:
        """Whether a complete request has arrived and is not answered yet."""
        return self._current is not None or bool(self._waiting)

    @property
    def leave_request(self) -> Callable[[], None] | None:
        """Function that ends the request in progress without an answer; None without a request."""
        return None if self._current is None else self._current.on_left

    def _handle_end_of_input(self) -> None:
        """Keep the connection of a client that sends no more but awaits an answer; close it otherwise."""
        if self._half_closed is None and not self.eof_received():
            self._sender.close()

    def _read_request(self) -> None:
        """Parse the bytes in the socket's buffer, and start the request if it is complete."""
        self._has_news = False
        try:
            size = self.socket.recv_into(_buffer, flags=socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            self._sender.abort()
            return
        if self._refusal is not None:
            self._peeked = size
            self._remove_peeked()
        elif size > self._peeked:
            data = bytes(_buffer[self._peeked : size])
            self._peeked = size
            self.data_received(data)
            if self._reader.announced_bytes > PEEK_BYTES - size:
                self.give_back(NEEDS_FRONT)
        self._has_ended = self._has_ended or not size

    def _handle(self, request: HttpRequest) -> None:
        """Answer a request, or hand the connection with its request to the front process."""
        is_alone = not self._waiting and not self._unparsed and self._reader.receiving_since is None
        if is_alone and self._peeked < PEEK_BYTES and self._owner.serves(request):
            self._app.handle(request)
        else:
            asyncio.get_running_loop().call_soon(self.give_back, NEEDS_FRONT)

    def _write_response(
        self, status: int, head: bytes, body: Part, method: str = "", length: bytes | None = None
    ) -> None:
        self._owner.journal.begin_answer(self.slot)
        self._remove_peeked()
        super()._write_response(status, head, body, method, length)
        if self._sender.get_write_buffer_size():
            self.pause_writing()
        else:
            self._on_answered()

    def _remove_peeked(self) -> None:
        """Remove the request in progress from the socket's buffer."""
        with contextlib.suppress(OSError):  # the client has reset the connection
            while self._peeked and (size := self.socket.recv_into(_buffer, self._peeked, socket.MSG_TRUNC)):
                self._peeked -= size
        self._peeked = 0

    def _on_sent(self) -> None:
        """Continue after the last bytes of an answer that did not fit in the socket's buffer at first."""
        self._on_answered()
        self.resume_writing()

    def _on_answered(self) -> None:
        """Record that the answer is complete, and continue with the client's next request."""
        if self._refusal is None:  # a connection that is refused ends, also if the shard dies
            self._owner.journal.end_answer(self.slot)
        if self._has_news or self._owner.recalls:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._is_over or not self.give_back_if_idle():
            return
        if self._has_news and not self._has_request and not self._sender.is_closing():
            self._read_request()
            if self._has_ended and not self._is_over:
                self._handle_end_of_input()

    def give_back_if_idle(self) -> bool:
        """Give an idle connection back to the front process, if the front process recalls connections.

        Return whether the shard still serves the connection.
        """
        is_idle = not self._has_request and not self._sender.get_write_buffer_size()
        if is_idle and self._owner.recalls and self._refusal is None and not self._sender.is_closing():
            self.give_back(MOVED)
            return False
        return True

    def give_back(self, kind: int) -> None:
        """Let another process serve the connection, with all unanswered requests.

        kind: type of the packet for the front process.
        """
        if not self._is_over:
            self._leave(kind)

    def close_if_slow(self, now: float) -> None:
        """Return a connection with a slow request to the front process; abort it if the client does not read.

        Called regularly. now: an instant of time.monotonic().
        """
        since = self._reader.receiving_since
        if not self._has_request and since is not None and now - since > GIVE_BACK_S:
            self.give_back(NEEDS_FRONT)
        else:
            super().close_if_slow(now)

    def _on_over(self) -> None:
        """End the connection: the client has left, or the last answer is sent."""
        if not self._is_over:
            self._sender.write_eof()
            self._leave(CLOSED)

    def _leave(self, kind: int) -> None:
        self._is_over = True
        self._sender.close()
        self.connection_lost(None)
        self._owner.journal.end_answer(self.slot)
        self._owner.remove(self, kind)
        self.socket.close()

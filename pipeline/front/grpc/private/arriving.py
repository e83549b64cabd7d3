"""Arriving: gRPC messages of which a part is here, bounded in sum.

gRPC holds such parts and tells nothing of them. While the front's memory is small, so are they, and nothing
else is looked at; else they are what those connections receive whose calls wait for messages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Protocol

from pipeline.config.config_file import Limits
from pipeline.front.grpc.private.sockets import REST, Connection
from pipeline.front.metrics.access_log import AccessLog
from pipeline.front.metrics.metrics import resident_bytes

_LOOK_EVERY_S = 0.1


class Receiving(Protocol):
    """A call that waits for a message; compared by identity."""

    def peer(self) -> str: ...


class _Sender(Connection):
    """A connection with calls that wait for messages.

    held_bytes: the most that may have come for them since the connection is looked at.
    """

    def __init__(self, peer: str) -> None:
        super().__init__(peer)
        self.held_bytes = 0
        self.began: dict[Receiving, int] = {}  # what had been received when a call was first seen to wait

    def look(self, calls: Collection[Receiving], most: int) -> None:
        """Notice how much has come for these calls. most: bytes that one message may have."""
        received = self.received_bytes()
        if received is None:
            self.held_bytes = 0
            return
        self.began = {call: self.began.get(call, received) for call in calls}
        since = [received - began for began in self.began.values()]
        self.held_bytes = min(max(since), sum(min(each, most) for each in since))


class Arriving:
    """Closes the connection that sends most, while the front takes more than `bodies_bytes`, and since then
    more than that has come for messages that are arriving.

    ports: those that are ours.
    """

    def __init__(self, limits: Limits, ports: Collection[int], access_log: AccessLog) -> None:
        self._most_bytes, self._most_message = limits.bodies_bytes, limits.body_bytes
        self._ports = ports
        self._access_log = access_log
        self._waiting: dict[Receiving, str] = {}  # for a message; by whom, once that was asked
        self._senders: dict[str, _Sender] = {}  # by peer
        self._looking: asyncio.TimerHandle | None = None

    def begin(self, call: Receiving) -> None:
        """The call waits for a message."""
        self._waiting[call] = ""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look)

    def end(self, call: Receiving) -> None:
        """The message is there, or none will come."""
        peer = self._waiting.pop(call)
        if peer and peer in self._senders:
            self._senders[peer].began.pop(call, None)

    def _look(self) -> None:
        self._looking = None
        began = time.monotonic()
        if resident_bytes() > self._most_bytes:
            self._look_at_senders()
            self._shed()
        else:
            self._senders.clear()
        if self._waiting:
            later = max(_LOOK_EVERY_S, REST * (time.monotonic() - began))
            self._looking = asyncio.get_running_loop().call_later(later, self._look)

    def _look_at_senders(self) -> None:
        calls: dict[str, list[Receiving]] = {}
        for call, known in self._waiting.items():
            peer = self._waiting[call] = known or call.peer()
            calls.setdefault(peer, []).append(call)
        self._senders = {peer: self._senders.get(peer) or _Sender(peer) for peer in calls}
        Connection.locate(self._senders.values(), self._ports)
        for sender in self._senders.values():
            sender.look(calls[sender.peer], self._most_message)

    def _shed(self) -> None:
        senders = [sender for sender in self._senders.values() if not sender.closed]
        held = sum(sender.held_bytes for sender in senders)
        for sender in sorted(senders, key=lambda sender: sender.held_bytes, reverse=True):
            if held <= self._most_bytes:
                return
            if sender.shut():
                held -= sender.held_bytes
                self._access_log.warn(
                    "Unfinished messages",
                    f"{sender.peer} is sent away, of which up to {sender.held_bytes} bytes are here: "
                    f"together more than {self._most_bytes} are; limits.bodies_bytes allows no more",
                )

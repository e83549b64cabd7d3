"""Recorder: writes answered requests to a file, for `paddlewheel tune` to ask them again."""

from __future__ import annotations

import asyncio
import logging
import os

import msgspec

from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.process import recording
from pipeline.process.isolation import isolated
from pipeline.tuning.sample import find_request_path

log = logging.getLogger(__name__)


class Recorder:
    """Begins and ends at a signal, see `pipeline.process.recording`; ends by itself at the bounds there.

    What is written are the bodies of JSON that were sent to the service's own path of a dialect over HTTP.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._file = -1
        self._requests = self._bytes = 0
        self._until: asyncio.TimerHandle | None = None

    def listen(self) -> None:
        """Take the signal from now on."""
        asyncio.get_running_loop().add_signal_handler(recording.SIGNAL, self._toggle)

    def _toggle(self) -> None:
        if self._file >= 0:
            self._end()
            return
        try:
            self._file = recording.open_locked(os.getpid())
        except OSError as exc:
            log.error("No request is recorded: %s", exc)
            return
        self._requests = self._bytes = 0
        self._until = asyncio.get_running_loop().call_later(recording.MOST_SECONDS, self._end)
        self._scheduler.recorded = self._write
        log.warning("Requests are recorded to %s", recording.get_recording_path(os.getpid()))

    @isolated(None)
    def _write(self, path: str, body: bytes) -> None:
        """Write the body of a request that was answered, unless it can't be asked again by itself."""
        try:
            asked = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):  # of tensors in bytes, say, or compressed
            return
        if find_request_path(asked, self._scheduler.app.name) != path:
            return
        line = msgspec.json.encode(asked) + b"\n"
        if self._bytes + len(line) > recording.MOST_BYTES:
            self._end()
            return
        try:
            os.write(self._file, line)
        except OSError as exc:
            log.error("No more requests are recorded: %s", exc)
            self._end()
            return
        self._bytes += len(line)
        self._requests += 1
        if self._requests == recording.MOST_REQUESTS:
            self._end()

    def _end(self) -> None:
        self._scheduler.recorded = None
        os.close(self._file)
        self._file = -1
        if self._until is not None:
            self._until.cancel()
            self._until = None
        log.warning("%d requests were recorded", self._requests)

"""Hangup: what SIGHUP means: look at the disk again, or, where it tells that the terminal is gone, stop."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from pipeline.errors import ConfigError, NotReady
from pipeline.front.listeners import Listeners
from pipeline.front.repository import Repository
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.process.start_signals import has_terminal

log = logging.getLogger(__name__)


class Hangup:
    """Takes the signal from `listen` on. stop: ends the service in order."""

    def __init__(
        self, scheduler: Scheduler, repository: Repository, listeners: Listeners, stop: Callable[[], None]
    ) -> None:
        self._scheduler = scheduler
        self._repository = repository
        self._listeners = listeners
        self._stop = stop
        # Under nohup the end of the terminal is to be survived.
        self._needs_terminal = has_terminal() and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
        self._reloads: set[asyncio.Task[None]] = set()

    def listen(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._accept_signal)

    def _accept_signal(self) -> None:
        if self._needs_terminal and not has_terminal():
            log.info("The terminal is gone")
            self._stop()
            return
        task = asyncio.create_task(self._reload())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload(self) -> None:
        self._reload_keys()
        self._reload_certificates()
        try:
            await self._repository.reload_changed()
        except NotReady as exc:
            log.error("Nothing is loaded anew: %s", exc.message)

    def _reload_keys(self) -> None:
        if self._scheduler.keys is None:
            return
        try:
            self._scheduler.keys.reload()
        except ConfigError as exc:
            log.error("The API keys stay as they were. %s", exc.message)
        else:
            log.info("API keys are read again")

    def _reload_certificates(self) -> None:
        if self._listeners.certificates is None:
            return
        try:
            self._listeners.reload_certificates()
        except ConfigError as exc:
            log.error("The certificates stay as they were. %s", exc.message)
        else:
            log.info("The files of tls are read again")

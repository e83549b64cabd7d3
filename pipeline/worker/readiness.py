"""Readiness of a Python model: a thread of the worker calls `is_ready`, and tells the front of changes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from pipeline.messages.messages import Message, ModelReadiness

INTERVAL_S = 0.5  # between two calls
TIMEOUT_S = 5.0  # of a call, after which the model is not ready until the call returns


class ReadinessReceiver(Protocol):
    """The worker's connection to the front."""

    def send(self, message: Message) -> None: ...


def watch_readiness(check: Callable[[], bool], front: ReadinessReceiver) -> None:
    """Call `check` now and in a thread from then on, and send its first result and each change.

    check: may take long, but must not raise. The first call is limited by `start_timeout` alone.
    """
    is_ready = check()
    front.send(ModelReadiness(is_ready))
    arguments = check, front, is_ready
    threading.Thread(target=_report_changes, args=arguments, name="readiness", daemon=True).start()


def _report_changes(check: Callable[[], bool], front: ReadinessReceiver, before: bool) -> None:
    with contextlib.suppress(OSError), ThreadPoolExecutor(1) as caller:  # the front has closed the connection
        while True:
            time.sleep(INTERVAL_S)
            call = caller.submit(check)
            try:
                now = call.result(TIMEOUT_S)
            except TimeoutError:
                front.send(ModelReadiness(False))
                before, now = False, call.result()
            if now != before:
                front.send(ModelReadiness(now))
            before = now

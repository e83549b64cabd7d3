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
    """The worker's connection to the front process, which receives the model's readiness."""

    def send(self, message: Message) -> None: ...


def watch_readiness(check: Callable[[], bool], front: ReadinessReceiver) -> None:
    """Call `check` at once, and then regularly in a thread. Send its first result, and each change.

    The results are sent to the front process. check: may take long, but must not raise. Only `start_timeout`
    limits the first call.
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

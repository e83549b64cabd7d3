"""Requests to the app `echo.py` from several threads, whose answers name the worker process."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import NamedTuple

from tests.support.service_process import ServiceProcess, wait_until

ENOUGH = 30  # answers in a row that show that a service goes on


class EchoAnswer(NamedTuple):
    """An answer: when it arrived on the monotonic clock, its seconds, and the PID of the worker."""

    at: float
    took_s: float
    worker: str


class EchoLoad:
    """Sends requests from several threads until the end of the `with` block, and counts their outcomes."""

    def __init__(self, service: ServiceProcess, clients: int = 3) -> None:
        self.failures: list[object] = []  # errors, refusals and wrong answers
        self.answers: list[EchoAnswer] = []
        self.workers: Counter[str] = Counter()  # answers by the worker's PID
        self._service = service
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(clients)]

    def __enter__(self) -> EchoLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _send(self, number: int) -> None:
        while not self._stopped.wait(0.01):
            began = time.monotonic()
            try:
                answer = self._service.predict({"number": str(number)})
            except (AssertionError, OSError) as exc:
                self.failures.append(exc)
                continue
            if answer["doubled"] != str(2 * number):
                self.failures.append(answer)
            now = time.monotonic()
            self.answers.append(EchoAnswer(now, now - began, answer["pid"]))
            self.workers[answer["pid"]] += 1

    def wait_for_answers(
        self, workers: int, described: str, timeout_s: float, known: frozenset[str] = frozenset()
    ) -> None:
        """Wait until so many workers, without the known ones, have answered `ENOUGH` requests each."""

        def have_answered() -> bool:
            counts = [count for pid, count in dict(self.workers).items() if pid not in known]
            return sum(count >= ENOUGH for count in counts) >= workers

        wait_until(have_answered, described, timeout_s, lambda: f"{self.workers}\n{self._service.log}")

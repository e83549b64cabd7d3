"""Simulated services of a test, stopped at its end, and the clock of the admission."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipeline.front.scheduler import admission
from tests.support.simulated_service import SimulatedService, simulated


@pytest.fixture
def serve() -> Iterator[Callable[..., SimulatedService]]:
    """Start a simulated service; see `SimulatedService` for the arguments. It ends the one before."""
    with contextlib.ExitStack() as services:

        def start(*args: Any, **options: Any) -> SimulatedService:
            services.close()  # each has a clock of its own
            return services.enter_context(simulated(*args, **options))

        yield start


class Clock:
    """The time of the admission."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(admission, "time", clock)
    return clock

"""Simulated services of a test, stopped at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.support.simulated_service import SimulatedService, simulated


@pytest.fixture
def serve() -> Iterator[Callable[..., SimulatedService]]:
    """Start a simulated service; see `SimulatedService` for the arguments."""
    with contextlib.ExitStack() as services:
        yield lambda *args, **options: services.enter_context(simulated(*args, **options))

"""Progress of a conversion: named steps, one after the other."""

from __future__ import annotations

from typing import Protocol


class Steps(Protocol):
    """The interface through which a conversion reports progress."""

    def step(self, name: str, total: int = 1) -> None:
        """Begin a step of `total` parts; the step before is done."""

    def advance(self) -> None:
        """Report that one part of the step is done."""

    def say(self, text: str) -> None:
        """State a result in one line."""

    def hear(self, text: str) -> None:
        """Receive lines that a library has written, in the process of a step."""


class SilentSteps:
    """Steps that show nothing, for calls from Python."""

    def step(self, name: str, total: int = 1) -> None:
        pass

    def advance(self) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def hear(self, text: str) -> None:
        pass

"""The interface for progress of a conversion, which is a sequence of named steps."""

from __future__ import annotations

from typing import Protocol


class Steps(Protocol):
    """Interface to which a conversion reports its progress. The command line shows it as progress bars."""

    def step(self, name: str, total: int = 1) -> None:
        """Begin a step with `total` parts of work. This ends the previous step."""

    def advance(self) -> None:
        """Report that one part of the step is done."""

    def say(self, text: str) -> None:
        """Show a one-line message to the user."""

    def hear(self, text: str) -> None:
        """Receive the output that a library has written in the process of a step."""


class SilentSteps:
    """Ignores all progress, for calls from Python."""

    def step(self, name: str, total: int = 1) -> None:
        pass

    def advance(self) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def hear(self, text: str) -> None:
        pass

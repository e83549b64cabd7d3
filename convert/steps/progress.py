"""The interface for progress of a conversion, which is a sequence of named steps."""

from __future__ import annotations

from typing import Protocol


class Steps(Protocol):
    """The interface to which a conversion reports its progress; the command shows it as progress bars."""

    def step(self, name: str, total: int = 1) -> None:
        """Begin a step with `total` parts of work; this ends the step before."""

    def advance(self) -> None:
        """Report that one part of the step is done."""

    def say(self, text: str) -> None:
        """Show a message of one line to the user."""

    def hear(self, text: str) -> None:
        """Receive output that a library has written in the process of a step."""


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

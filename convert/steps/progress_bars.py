"""Progress of a conversion as bars on the terminal: one for each named step."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class ShownSteps:
    """A bar for each step on the terminal; the bars of finished steps stay."""

    def __init__(self, console: Console, *, shows_libraries: bool = False) -> None:
        self._shows_libraries = shows_libraries
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            console=console,
        )
        self._current: TaskID | None = None

    def __enter__(self) -> ShownSteps:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        self._progress.stop()

    def step(self, name: str, total: int = 1) -> None:
        self._finish()
        self._current = self._progress.add_task(name, total=total)

    def advance(self) -> None:
        if self._current is not None:
            self._progress.advance(self._current)

    def say(self, text: str) -> None:
        # Never wrapped, so that a line can be copied.
        line = " ".join(text.split())
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def hear(self, text: str) -> None:
        if self._shows_libraries:
            self._progress.console.print(text.rstrip("\n"), markup=False, highlight=False, soft_wrap=True)

    def _finish(self) -> None:
        if self._current is not None:
            task = self._progress.tasks[self._current]
            self._progress.update(self._current, completed=task.total)

"""The command line of `paddlewheel convert`: arguments in, progress on the terminal, an exit code out."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import logging
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, TextIO

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from client.options import parse_options
from convert.commands import Command, create_parser
from convert.proof.parity import FailedParity, ParityReport
from convert.result import Conversion, ConversionOptions
from convert.to_serving.next_step import next_step
from pipeline.errors import ParityError, ServingError
from pipeline.launch.commands import EXIT_MISTAKE, paddlewheel


class ShownSteps:
    """Shows conversion progress on the terminal, with a bar for each step. Bars of finished steps remain.

    shows_libraries: whether to print the output of converters as well.
    """

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


_OURS = ("pipeline", "convert")


class Streams(NamedTuple):
    """Standard output and standard error, for the lines that the command itself prints."""

    out: TextIO
    err: TextIO


def process_streams() -> Streams:
    """Return the process's own standard output and standard error."""
    return Streams(sys.stdout, sys.stderr)


@contextlib.contextmanager
def silence_libraries() -> Iterator[Streams]:
    """Context manager: yield streams for the command's own lines, and discard all other output.

    Other output is text that native code or Python libraries write to stdout and stderr. A crash in native
    code still prints its traceback to standard error.
    """
    streams = Streams(*(os.fdopen(os.dup(fd), "w", 1) for fd in (1, 2)))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        os.dup2(nowhere, fd)
    os.close(nowhere)
    faulthandler.enable(streams.err)
    handler = logging.StreamHandler(streams.err)
    handler.setLevel(logging.WARNING)
    for name in _OURS:
        logging.getLogger(name).addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield streams
    finally:
        for fd, stream in zip((1, 2), streams, strict=True):
            stream.flush()
            os.dup2(stream.fileno(), fd)  # for a traceback


EXIT_PARITY, EXIT_INTERRUPTED = 1, 130


def run_as_command() -> int:
    """Run `paddlewheel convert` with the process's arguments and return the exit code.

    Output of libraries is dropped, unless --debug is given.
    """
    arguments = _parse(sys.argv[1:])
    if arguments.debug:
        return _main(arguments, process_streams())
    with silence_libraries() as streams:
        return _main(arguments, streams)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of `paddlewheel convert` and return its exit code.

    Exit codes: 0 success, 1 outputs disagree, 2 the conversion is not possible, 130 interrupted.
    """
    return _main(_parse(sys.argv[1:] if argv is None else argv), process_streams())


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    arguments = create_parser().parse_args(argv)
    arguments.command_line = f"{paddlewheel()} convert {shlex.join(argv)}"
    return arguments


def _main(arguments: argparse.Namespace, streams: Streams) -> int:
    errors = Console(file=streams.err, soft_wrap=True, emoji=False)
    # SIGTERM acts as Ctrl-C, so that no partial result stays.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        conversion = _run_command(arguments, streams)
    except KeyboardInterrupt:
        errors.print("Interrupted; nothing was written.")
        return EXIT_INTERRUPTED
    except OSError as exc:
        if arguments.debug:
            raise
        place = exc.filename or "a file"
        errors.print(
            f"{place} can't be read or written ({exc.strerror or exc}); see to its rights and to the disk.",
            markup=False,
            highlight=False,
        )
        return EXIT_MISTAKE
    except ServingError as exc:
        if arguments.debug:
            raise
        if isinstance(exc, FailedParity):
            Console(file=streams.out, emoji=False).print(parity_table([exc.report]))
        end = "" if exc.message.endswith("?") else "."
        errors.print(f"{exc.message.rstrip('.')}{end}", markup=False, highlight=False)
        return EXIT_PARITY if isinstance(exc, ParityError) else EXIT_MISTAKE
    finally:
        signal.signal(signal.SIGTERM, before)
    console = Console(file=streams.out, emoji=False)
    if conversion.reports:
        console.print(parity_table(conversion.reports))
    for item in conversion.shown:
        # Text is for copying, so that its lines must not be broken.
        console.print(item, markup=False, highlight=False, soft_wrap=isinstance(item, str))
    if not all(report.passed for report in conversion.reports):
        errors.print(f"{conversion.message}.", markup=False, highlight=False)
        return EXIT_PARITY
    console.print(f"{conversion.message}.", markup=False, highlight=False, soft_wrap=True)
    advice = conversion.next or (next_step(conversion.out) if conversion.is_new else "")
    if advice:
        console.print(f"Next: {advice}", markup=False, highlight=False, soft_wrap=True)
    return 0


def parity_table(reports: Sequence[ParityReport]) -> Table:
    """Return a terminal table of comparison reports: a row for each report and for each of its outputs."""
    first = reports[0]
    floor = f", of {first.least_scale:g} where that is less" if first.least_scale else ""
    title = f"Parity, tolerance {first.tolerance:g} of the largest value{floor}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    # This column folds on a narrow terminal, but not below 20 characters.
    table.add_column("step, output", overflow="fold", min_width=20)
    for column in ("largest", "max |diff|", "mean", "cosine", "top-1", "ok"):
        table.add_column(column, justify="right", no_wrap=True)
    for report in reports:
        table.add_row(report.step)
        for output in report.outputs:
            top1 = "" if output.top1_agreement is None else f"{output.top1_agreement:.1%}"
            diffs = (f"{output.max_abs_diff:.2e}", f"{output.mean_abs_diff:.2e}", f"{output.cosine:.6f}")
            largest = f"{output.largest:.3g}"
            ok = "yes" if report.within(output) else "[red]no"
            table.add_row(f"  {output.name}", largest, *diffs, top1, ok)
    return table


def _run_command(arguments: argparse.Namespace, streams: Streams) -> Conversion:
    command: Command = parse_options(arguments.command, arguments)
    with ShownSteps(Console(file=streams.err), shows_libraries=arguments.debug) as steps:
        options: ConversionOptions = parse_options(
            arguments.conversion_options, arguments, steps=steps, command=arguments.command_line
        )
        return command.run(options)


if __name__ == "__main__":
    sys.exit(main())

"""The command line of `paddlewheel convert`: arguments in, one conversion, an exit code out."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from convert.commands import Command, create_parser
from convert.output.own_lines import Streams, process_streams, silence_libraries
from convert.proof.parity_report import FailedParity, ParityReport
from convert.result import Conversion, ConversionOptions
from convert.steps.progress_bars import ShownSteps
from convert.to_serving.next_step import next_step
from pipeline.errors import ParityError, ServingError
from pipeline.launch.commands import EXIT_MISTAKE, paddlewheel, parse_options

EXIT_PARITY, EXIT_INTERRUPTED = 1, 130


def run_as_command() -> int:
    """Run `main` in a process of its own, with its descriptors reserved for our lines."""
    arguments = _parse(sys.argv[1:])
    if arguments.debug:
        return _main(arguments, process_streams())
    with silence_libraries() as streams:
        return _main(arguments, streams)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 outputs disagree, 2 it can't be done, 130 interrupted."""
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
    """Return a table of the reports: the name of each step, and below it a row for each output."""
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

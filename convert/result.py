"""The result of a conversion, and the options that every conversion has."""

from __future__ import annotations

from argparse import ArgumentTypeError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from client.options import option, switch
from convert.output.staging import is_current
from convert.programs.program_feeds import LENGTHS
from convert.proof.parity import TOLERANCE, ParityReport
from convert.proof.proof_inputs import Inputs
from convert.steps.isolation import STEP_TIMEOUT_S
from convert.steps.progress import SilentSteps, Steps
from pipeline.errors import ConversionError

FORMATS = ("json", "pdmodel")
"""Formats of a Paddle program: that of Paddle 3, and that of its TensorRT engine."""
TRITON = "triton"
"""The format of `convert all` for a model repository in place of a serving model."""


def parse_numbers(text: str) -> tuple[int, ...]:
    """Parse comma-separated whole numbers. Raises argparse's ArgumentTypeError for other text."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a list of whole numbers like 16,33,5") from None


def lengths_settings(lengths: tuple[int, ...]) -> dict[str, Any]:
    """Return the argparse settings of the option --lengths, with these lengths as default."""
    return {
        "type": parse_numbers,
        "default": lengths,
        "metavar": "N,N,...",
        "help": f"lengths tried on axes that vary ({','.join(map(str, lengths))})",
    }


@dataclass(frozen=True)
class ConversionOptions:
    """The options that every conversion has, on the command line and in Python.

    The constructor raises ConversionError for values out of range, and for sample files that don't exist.
    """

    tolerance: float = option(
        default=TOLERANCE,
        help="largest |diff|, as a share of the output's largest value or of 1 (%(default)s)",
    )
    lengths: tuple[int, ...] = option(**lengths_settings(LENGTHS))
    # Formats of the files: convert.proof.sample_files.
    sample: tuple[Path, ...] = option(
        "--sample",
        "--inputs",
        default=(),
        metavar="FILE",
        help="inputs to try in place of random ones: .npz, .npy, .jsonl, .csv, an image, or a text a line; "
        "again for more",
    )
    debug: bool = switch(help="show the traceback of an error, and what libraries write")
    force: bool = switch(help="make it again although it is up to date")
    dry_run: bool = switch(help="check the arguments, write nothing")
    step_timeout_s: float = option(
        "--step-timeout",
        default=STEP_TIMEOUT_S,
        metavar="SECONDS",
        help="longest run of a converter in the conversion environment (%(default)g)",
    )
    steps: Steps = field(default_factory=SilentSteps)
    command: str = ""  # as the user typed it, for messages; empty for calls from Python

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < float("inf"):
            raise ConversionError(f"the tolerance {self.tolerance} is not a number from 0 up.")
        if not 0 < self.step_timeout_s < float("inf"):
            raise ConversionError(f"the step timeout {self.step_timeout_s} is not a time above 0 s.")
        for path in self.sample:
            if not path.is_file():
                raise ConversionError(f"{path} is not a file; name one with inputs for the model (--sample).")
        if not self.lengths or min(self.lengths) < 1 or max(self.lengths) > 1 << 20:
            raise ConversionError(f"the lengths {self.lengths} are not whole numbers from 1 to {1 << 20}.")

    @property
    def proof_inputs(self) -> Inputs:
        """The inputs on which the model is compared with its source: the sample files, else random inputs."""
        return Inputs(self.lengths, self.sample)


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion: its output folder or file, message, and comparison reports."""

    out: Path
    is_new: bool  # false if `out` was up to date, and in a dry run
    message: str
    reports: tuple[ParityReport, ...] = ()
    shown: tuple[object, ...] = ()  # tables and plain text, printed above the message
    fingerprint: str = ""  # of the sources, in a dry run
    next: str = ""  # command to run next, if the content of `out` does not determine it


def find_current_result(
    out: Path, fingerprint: str, would: str, options: ConversionOptions
) -> Conversion | None:
    """Return the result of a dry run, or of an `out` that is up to date; None if a conversion must run.

    fingerprint: the hash of sources and settings. would: the message of a dry run, as in "would export
    demo:model to models/demo".
    """
    if options.dry_run:
        return Conversion(out, False, f"{would}; nothing was written", fingerprint=fingerprint)
    if not options.force and is_current(out, fingerprint):
        return Conversion(out, False, f"{out} is up to date")
    return None

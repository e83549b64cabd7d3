"""What a conversion hands back, and the settings all of them share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from convert.output.stamp import is_current
from convert.programs.program_feeds import LENGTHS
from convert.proof.parity_report import TOLERANCE, ParityReport
from convert.proof.proof_inputs import Inputs
from convert.steps.isolation import STEP_TIMEOUT_S
from convert.steps.progress import SilentSteps, Steps
from pipeline.errors import ConversionError

FORMATS = ("json", "pdmodel")
"""What a Paddle program may be written as: as today's Paddle does, or as its TensorRT engine asks for."""
TRITON = "triton"
"""What `convert all` may write in place of a serving model: a model repository."""


@dataclass(frozen=True)
class ConversionOptions:
    """How to convert.

    `tolerance` is the largest difference an output may have, as a share of its largest value, or of 1 where
    that is below; `lengths` are tried on the axes that vary; `sample` are files with inputs to try in place
    of random ones (convert.proof.sample_files tells their forms); `force` makes a result again that is up to
    date; `dry_run` checks the arguments and stops; `step_timeout_s` is the longest that a step in the
    conversion environment may take.
    """

    tolerance: float = TOLERANCE
    lengths: tuple[int, ...] = LENGTHS
    sample: tuple[Path, ...] = ()
    force: bool = False
    dry_run: bool = False
    step_timeout_s: float = STEP_TIMEOUT_S
    steps: Steps = field(default_factory=SilentSteps)

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
    def inputs(self) -> Inputs:
        """What a model is tried on."""
        return Inputs(self.lengths, self.sample)


@dataclass(frozen=True)
class Conversion:
    """A result at `out`. `made` is false when it was up to date or nothing was to be written.

    `shown` is printed above the message: tables, and text as it is. `fingerprint` is of what a dry run would
    make it from. `next`: what one would run now, where what `out` holds does not tell.
    """

    out: Path
    made: bool
    message: str
    reports: tuple[ParityReport, ...] = ()
    shown: tuple[object, ...] = ()
    fingerprint: str = ""
    next: str = ""


def as_it_is(out: Path, fingerprint: str, would: str, options: ConversionOptions) -> Conversion | None:
    """The result where `out` stays as it is: in a dry run, and when it is up to date. None: it is to be made.

    would: what a dry run says, as in "would export demo:model to models/demo".
    """
    if options.dry_run:
        return Conversion(out, False, f"{would}; nothing was written", fingerprint=fingerprint)
    if not options.force and is_current(out, fingerprint):
        return Conversion(out, False, f"{out} is up to date")
    return None

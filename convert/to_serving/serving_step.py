"""Makes a serving model of a PyTorch program in the conversion environment if PyTorch isn't here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from convert.proof.parity import FailedParity, ParityReport, parse_report
from convert.result import Conversion, ConversionOptions
from convert.steps.isolation import run_isolated
from convert.steps.progress import Steps
from convert.to_serving.notes import ModelNotes

INSTALL_TORCH = "pip install 'paddlewheel[torch]'"


def serve_elsewhere(
    source: Path,
    out: Path,
    *,
    files: Sequence[Path],
    notes: ModelNotes | None,
    earlier: Sequence[ParityReport],
    arguments: Mapping[str, Any],
    options: ConversionOptions,
) -> Conversion:
    """Call `convert_serving` in the conversion environment and return its result.

    arguments: the function's other arguments. Raises ConversionError if no environment has PyTorch.
    """
    result = run_isolated(
        f"{__name__}:serving_step",
        {
            "source": str(source),
            "out": str(out),
            "files": list(map(str, files)),
            "notes": None if notes is None else asdict(notes),
            "earlier": [asdict(report) for report in earlier],
            "arguments": dict(arguments),
            "options": {
                "tolerance": options.tolerance,
                "lengths": list(options.lengths),
                "sample": list(map(str, options.sample)),
                "force": options.force,
            },
        },
        converter="PyTorch to a serving model",
        needs=("torch",),
        steps=options.steps,
        timeout_s=options.step_timeout_s,
    )
    if "failed" in result:
        parse_report(result["failed"]).require()
    message = f"{result['message']}; PyTorch, which runs it, isn't installed here: {INSTALL_TORCH}"
    return Conversion(out, True, message, tuple(map(parse_report, result["reports"])))


def serving_step(
    steps: Steps,
    source: str,
    out: str,
    files: Sequence[str],
    notes: Mapping[str, Any] | None,
    earlier: Sequence[Mapping[str, Any]],
    arguments: Mapping[str, Any],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Run `convert_serving`. Return its message and reports, or the failed report, as dictionaries."""
    from convert.to_serving.convert_serving import convert_serving

    try:
        conversion = convert_serving(
            Path(source),
            Path(out),
            files=[Path(file) for file in files],
            notes=None if notes is None else ModelNotes(**_with_tuples(notes)),
            earlier=[parse_report(report) for report in earlier],
            options=ConversionOptions(
                tolerance=options["tolerance"],
                lengths=tuple(options["lengths"]),
                sample=tuple(map(Path, options["sample"])),
                force=options["force"],
                steps=steps,
            ),
            **arguments,
        )
    except FailedParity as exc:
        return {"failed": asdict(exc.report)}
    return {"message": conversion.message, "reports": [asdict(report) for report in conversion.reports]}


def _with_tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}

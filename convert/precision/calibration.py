"""Reduced precision of ONNX models by onnxruntime, in the conversion environment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from convert.programs.program_feeds import Feeds
from convert.result import ConversionOptions
from convert.steps.isolation import run_isolated

NEEDS = ("onnx", "onnxruntime", "ml_dtypes")  # the last is imported by onnxruntime.quantization


def quantise(
    step: str,
    fp32: Path,
    out: Path,
    options: ConversionOptions,
    calibrating: Sequence[Feeds] = (),
    scratch: Path | None = None,
) -> None:
    """Write the ONNX model `fp32` to `out` by the step of this name in `onnx_steps`.

    calibrating: batches with an array for each feed by name, for calibration; they are stored in `scratch`.
    Raises ConversionError.
    """
    arguments: dict[str, object] = {"model": str(fp32), "out": str(out)}
    if calibrating and scratch is not None:
        folder = scratch / "calibration"
        folder.mkdir()
        for number, batch in enumerate(
            calibrating
        ):  # sorted names keep the order; arrays are in the order of feeds
            np.savez(folder / f"{number:06}.npz", *batch.values())
        arguments |= {"calibration": str(folder), "feeds": list(calibrating[0])}
    run_isolated(
        f"convert.precision.onnx_steps:{step.replace('-', '_')}_step",
        arguments,
        converter=f"onnxruntime to {step}",
        needs=NEEDS,
        steps=options.steps,
        timeout_s=options.step_timeout_s,
    )

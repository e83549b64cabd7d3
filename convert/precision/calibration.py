"""int8 with fixed ranges: an ONNX model, calibrated on given inputs in the conversion environment."""

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
    """Write the ONNX model `fp32` to `out` by a step of `onnx_steps`, of that name.

    calibrating: batches with an array for each feed, by its name, for a step that takes them; they are kept
    in `scratch` meanwhile. Raises ConversionError.
    """
    arguments: dict[str, object] = {"model": str(fp32), "out": str(out)}
    if calibrating and scratch is not None:
        folder = scratch / "calibration"
        folder.mkdir()
        for number, batch in enumerate(calibrating):  # in their order; of its arrays the order tells the feed
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

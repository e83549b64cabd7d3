"""The conversion of any source of a text model to a model repository for Triton."""

from __future__ import annotations

import re
import shlex
import tempfile
from dataclasses import replace
from pathlib import Path

from convert.result import Conversion, ConversionOptions
from convert.whole.convert_all import convert_all
from convert.whole.step_arguments import StepArguments
from pipeline.errors import ConfigError, ConversionError
from pipeline.launch.commands import paddlewheel
from pipeline.models.serving_model import load_serving_model
from pipeline.ops.text_files import TextSettings, described_texts
from pipeline.triton.export.repository import check_no_model_exists, export_repository

_ENGINE = "onnxruntime"  # Triton runs ONNX models


def convert_to_triton(
    source: str, out: Path, step_arguments: StepArguments, *, options: ConversionOptions
) -> Conversion:
    """Write tokenizer, model, postprocess and their ensemble into the model repository `out`.

    The ensemble has the source's name. Raises ConversionError, or ConfigError for a model of other
    inputs than texts; then nothing is written.
    """
    if step_arguments.engine not in ("", _ENGINE):
        raise ConversionError(
            f"--format triton writes an ONNX model: leave out --engine {step_arguments.engine}."
        )
    name = _model_name(source)
    check_no_model_exists(out, name, force=options.force)
    with tempfile.TemporaryDirectory(prefix="paddlewheel.") as work:
        serving = Path(work, name)
        conversion = convert_all(source, serving, replace(step_arguments, engine=_ENGINE), options=options)
        if options.dry_run:
            return conversion
        try:
            model = described_texts(load_serving_model(serving), TextSettings())
            written = export_repository(name, model, out, force=options.force)
        except ConfigError as exc:
            raise ConversionError(exc.message.replace(f"{serving}", source)) from exc
    return Conversion(
        out,
        True,
        f"{out} has {', '.join(written)}; the ensemble {name} answers texts",
        conversion.reports,
        next=f"{paddlewheel()} serve --model-repository {shlex.quote(str(out))}",
    )


def _model_name(source: str) -> str:
    """Return a model name from the last part of a path, or from the module of a factory."""
    name = Path(source.partition(":")[0]).resolve()
    return re.sub(r"[^\w.-]", "-", name.stem if name.is_file() else name.name)

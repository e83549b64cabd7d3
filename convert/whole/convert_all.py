"""Converts any source to a serving model or Triton repository, by the first route with equal outputs.

A route is a sequence of conversions, such as PyTorch to ONNX, then ONNX to Paddle.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from convert.from_torch.convert_torch import convert_torch, describe_torch
from convert.from_torch.torch_variant import add_torch_variant
from convert.output.staging import STAMP_FILE, check_replaceable, hash_sources, staged, write_stamp
from convert.paddle_onnx.to_onnx import add_onnx_variant, can_make_onnx
from convert.precision.int8_variant import add_int8_variant, check_sample
from convert.programs.engines import find_paddle_version, onnx_runtime_version
from convert.programs.torch_file import find_torch_file
from convert.proof.max_lengths import LONGEST_TRIED
from convert.result import Conversion, ConversionOptions, find_current_result
from convert.steps.conversion_environment import missing_packages
from convert.to_serving.convert_serving import convert_serving
from convert.whole.route_runner import RouteRunner, export_dynamic, list_routes, table_as_onnx
from convert.whole.source import MODEL_FILES, TORCH_FILES, SourceKind, detect_kind, files_beside
from convert.whole.step_arguments import StepArguments, check_fit
from pipeline.errors import ConfigError, ConversionError
from pipeline.launch.commands import paddlewheel
from pipeline.models.serving_model import load_serving_model
from pipeline.ops.text_files import TextSettings, described_texts
from pipeline.triton.export.repository import check_no_model_exists, export_repository


def convert_all(
    source: str,
    out: Path,
    step_arguments: StepArguments | None = None,
    *,
    options: ConversionOptions | None = None,
) -> Conversion:
    """Convert `source`, a path, module:factory or PaddleNLP model name, to a serving model in `out`.

    If a step fails, the next route (sequence of conversions) for the requested engine is tried. The message
    names the route, and the reports of all steps are stored. An ONNX copy is written beside a Paddle model if
    that can be made. A PyTorch file is copied beside the ONNX model made from it. On request, an int8 copy is
    written beside any model. Raises the ConversionError or ParityError of the last route; then nothing is
    written.
    """
    step_arguments, options = step_arguments or StepArguments(), options or ConversionOptions()
    check_replaceable(out)
    options.steps.step("Looking at the source")
    kind = detect_kind(source, random_weights=step_arguments.random_weights)
    check_fit(source, kind, step_arguments)
    if step_arguments.int8:
        check_sample(options)
    # The shapes of a Paddle program are fixed; the shapes of an ONNX model can be changed.
    engine = step_arguments.engine or ("onnxruntime" if step_arguments.rebatch else "")
    torch_facts = describe_torch(source, step_arguments.input_spec, options) if kind in _PYTORCH else None
    has_twin = torch_facts is None or torch_facts["twin"]
    routes = list_routes(kind, engine, step_arguments.program_format, has_twin=has_twin)
    fingerprint = _fingerprint(source, kind, step_arguments, torch_facts, options)
    route_names = "; else ".join(map(str, routes))
    current = find_current_result(
        out, fingerprint, f"{source} is {kind.value}; would go by {route_names}", options
    )
    if current is not None:
        return current
    with staged(out) as folder, tempfile.TemporaryDirectory(prefix="steps.", dir=folder.parent) as work:
        runner = RouteRunner(source, kind, step_arguments, torch_facts, out, Path(work), options)
        route, reports = runner.run_first_possible(routes, folder)
        if route.engine == "paddle":
            reports += add_onnx_variant(folder, out, options)
        if route.engine == "onnxruntime" and kind in TORCH_FILES and (file := find_torch_file(source)):
            reports += add_torch_variant(folder, file, out, options)
        if step_arguments.int8:
            reports += add_int8_variant(folder, out, options)
        (folder / STAMP_FILE).unlink()
        checked = {"source": str(Path(source).resolve())} if kind in MODEL_FILES else {}
        write_stamp(folder, fingerprint, {**checked, "made_of": source, "route": list(route.steps)})
    reason = runner.get_reason_against_onnx() if route.engine == "pytorch" else ""
    remark = f"; it is no ONNX model: {reason}" if reason else ""
    return Conversion(out, True, f"{out} holds the serving model of {source}: {route}{remark}", reports)


_PYTORCH = (SourceKind.TORCH, *TORCH_FILES)


def _fingerprint(
    source: str,
    kind: SourceKind,
    step_arguments: StepArguments,
    torch_facts: Mapping[str, Any] | None,
    options: ConversionOptions,
) -> str:
    """Return a hash of the first step's source files and all arguments.

    By the hash, a later run finds out whether `out` is up to date.
    """
    dry, nowhere = replace(options, dry_run=True), Path(tempfile.gettempdir(), "nothing-is-written-here")
    if kind in _PYTORCH:
        written_as = step_arguments.program_format
        first = convert_torch(source, nowhere, program_format=written_as, described=torch_facts, options=dry)
    elif kind is SourceKind.TABLE:
        first = table_as_onnx(source, step_arguments, nowhere, dry)
    elif kind in MODEL_FILES:
        first = convert_serving(Path(source), nowhere, options=dry)
    else:
        first = export_dynamic(source, kind, step_arguments, nowhere, dry)
    settings = {
        "first": first.fingerprint,
        "engine": step_arguments.engine,
        "input_spec": step_arguments.input_spec,
        "labels": list(step_arguments.labels),
        "fetch_alias": list(step_arguments.fetch_alias),
        "padding": step_arguments.padding,
        "rebatch": step_arguments.rebatch,
        "longest": LONGEST_TRIED,
        "onnxruntime": onnx_runtime_version(),
        "paddle": find_paddle_version(),
        "onnx_variant": can_make_onnx(),
        **({"torch_variant": not missing_packages(["torch"])} if kind in TORCH_FILES else {}),
        **({"int8": True} if step_arguments.int8 else {}),
    }
    return hash_sources([*step_arguments.files, *files_beside(source, kind)], settings)


_ENGINE = "onnxruntime"  # Triton runs ONNX models


def convert_to_triton(
    source: str, out: Path, step_arguments: StepArguments, *, options: ConversionOptions
) -> Conversion:
    """Convert a text model to a Triton model repository `out`: tokenizer, model, postprocess and ensemble.

    The ensemble has the source's name. Raises ConversionError, including for a model whose inputs are not
    texts. Raises ConfigError if `out` has these models already, unless `options.force` is set.
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
    """Return a Triton model name from the last part of a path, or from the module of a module:factory."""
    name = Path(source.partition(":")[0]).resolve()
    return re.sub(r"[^\w.-]", "-", name.stem if name.is_file() else name.name)

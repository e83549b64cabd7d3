"""From any source to a serving model, by the first route whose steps all prove the same outputs."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from convert.from_torch.convert_torch import convert_torch, describe_torch
from convert.output.staging import staged
from convert.output.stamp import STAMP_FILE, check_replaceable, hash_sources, write_stamp
from convert.paddle_onnx.onnx_variant import add_onnx_variant, can_make_onnx
from convert.precision.int8_variant import add_int8_variant, check_sample
from convert.programs.engines import onnx_runtime_version, paddle_version
from convert.proof.max_lengths import LONGEST_TRIED
from convert.result import Conversion, ConversionOptions, as_it_is
from convert.to_serving.convert_serving import convert_serving
from convert.whole.beside import MODEL_FILES, files_beside
from convert.whole.route import list_routes
from convert.whole.source_kind import SourceKind, detect_kind
from convert.whole.wanted import Wanted, check_fit
from convert.whole.way import Way, exported, table_as_onnx


def convert_all(
    source: str, out: Path, wanted: Wanted | None = None, *, options: ConversionOptions | None = None
) -> Conversion:
    """Write the serving model of `source` to `out`; it says which route it takes and why.

    `source` is what `detect_kind` knows. Where a step fails the next route is tried, unless `wanted.engine`
    leaves none. The reports of all steps are stored. A Paddle program has its ONNX form beside it, where that
    can be had, and any model its int8 form where that is wanted. Raises ConversionError, or ParityError where
    outputs differ, of the last route; then nothing is written.
    """
    wanted, options = wanted or Wanted(), options or ConversionOptions()
    check_replaceable(out)
    options.steps.step("Looking at the source")
    kind = detect_kind(source, random_weights=wanted.random_weights)
    check_fit(source, kind, wanted)
    if wanted.int8:
        check_sample(options)
    # A Paddle program has its shapes in it; that of an ONNX model can be changed.
    engine = wanted.engine or ("onnxruntime" if wanted.rebatch else "")
    told = describe_torch(source, wanted.input_spec, options) if kind is SourceKind.TORCH else None
    has_twin = told is None or told["twin"]
    routes = list_routes(kind, engine, wanted.program_format, has_twin=has_twin)
    fingerprint = _fingerprint(source, kind, wanted, told, options)
    ways = "; else ".join(map(str, routes))
    kept = as_it_is(out, fingerprint, f"{source} is {kind.value}; would go by {ways}", options)
    if kept is not None:
        return kept
    with staged(out) as made, tempfile.TemporaryDirectory(prefix="steps.", dir=made.parent) as work:
        way = Way(source, kind, wanted, told, out, Path(work), options)
        route, reports = way.first_that_goes(routes, made)
        if route.engine == "paddle":
            reports += add_onnx_variant(made, out, options)
        if wanted.int8:
            reports += add_int8_variant(made, out, options)
        (made / STAMP_FILE).unlink()
        checked = {"source": str(Path(source).resolve())} if kind in MODEL_FILES else {}
        write_stamp(made, fingerprint, {**checked, "made_of": source, "route": list(route.steps)})
    return Conversion(out, True, f"{out} holds the serving model of {source}: {route}", reports)


def _fingerprint(
    source: str,
    kind: SourceKind,
    wanted: Wanted,
    told: Mapping[str, Any] | None,
    options: ConversionOptions,
) -> str:
    """Of what the first step is made from, and of all that is asked for."""
    dry, nowhere = replace(options, dry_run=True), Path(tempfile.gettempdir(), "nothing-is-written-here")
    if kind is SourceKind.TORCH:
        written_as = wanted.program_format
        first = convert_torch(source, nowhere, program_format=written_as, described=told, options=dry)
    elif kind is SourceKind.TABLE:
        first = table_as_onnx(source, wanted, nowhere, dry)
    elif kind in MODEL_FILES:
        first = convert_serving(Path(source), nowhere, options=dry)
    else:
        first = exported(source, kind, wanted, nowhere, dry)
    settings = {
        "first": first.fingerprint,
        "engine": wanted.engine,
        "input_spec": wanted.input_spec,
        "labels": list(wanted.labels),
        "fetch_alias": list(wanted.fetch_alias),
        "padding": wanted.padding,
        "rebatch": wanted.rebatch,
        "longest": LONGEST_TRIED,
        "onnxruntime": onnx_runtime_version(),
        "paddle": paddle_version(),
        "onnx_variant": can_make_onnx(),
        **({"int8": True} if wanted.int8 else {}),
    }
    return hash_sources([*wanted.files, *files_beside(source, kind)], settings)

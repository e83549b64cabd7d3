"""Exports a `paddle.nn.Layer` to a Paddle inference model and compares the outputs."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from convert.from_paddle.export import Recipe, check_format, export_as, format_settings, layer_parity
from convert.from_paddle.factory import create_layer, find_user_sources
from convert.from_paddle.weights import load_params
from convert.output.staging import check_replaceable, hash_sources, staged, write_stamp
from convert.programs.engines import import_paddle, paddle_version
from convert.programs.program_feeds import ProgramTensor, parse_input_spec
from convert.proof.parity import write_reports
from convert.proof.target import create_specs_target
from convert.result import FORMATS, Conversion, ConversionOptions, find_current_result
from pipeline.errors import ConversionError
from pipeline.models.additions import PARITY_FILE


def convert_paddle(
    factory: str,
    input_spec: str,
    out: Path,
    *,
    params: Path | None = None,
    program_format: str = FORMATS[0],
    options: ConversionOptions | None = None,
) -> Conversion:
    """Export the Layer that `module:factory` returns to `out` (inference.json, inference.pdiparams).

    `program_format` is one of FORMATS; "pdmodel" writes inference.pdmodel instead of inference.json.
    `factory` is called without arguments; `params` is a .pdparams file for its weights. `input_spec` has the
    form of `parse_input_spec`, in the order of the arguments of `forward`. Raises ConversionError for an
    unusable argument and ParityError when static and dynamic outputs differ; then nothing is written.
    """
    options = options or ConversionOptions()
    steps = options.steps
    feeds = parse_input_spec(input_spec)
    check_format(program_format)
    check_replaceable(out)
    steps.step("Importing Paddle and the model")
    import_paddle()
    module, layer = create_layer(factory)
    if params is not None:
        load_params(layer, params)
    layer.eval()
    _check_arguments(layer, feeds)
    fingerprint = _fingerprint(layer, module, feeds, options, format_settings(program_format))
    current = find_current_result(out, fingerprint, f"would export {factory} to {out}", options)
    if current is not None:
        return current
    with staged(out) as folder:
        steps.step("Dynamic to static")
        recipe = Recipe(f"{__name__}:load_layer", {"factory": factory})
        program = export_as(program_format, layer, recipe, feeds, folder, options.step_timeout_s)
        steps.step("Parity of dynamic and static")
        batches = options.proof_inputs.batches(create_specs_target(factory, feeds, program.id_limits))
        report = layer_parity(layer, program, feeds, batches, options.tolerance)
        report.require()
        write_reports(folder / PARITY_FILE, [report])
        write_stamp(folder, fingerprint, {"source": factory})
    return Conversion(out, True, f"{out} holds the inference model", (report,))


def load_layer(factory: str) -> Any:
    """Return the Layer that "module:factory" creates, with initial weights, for the exporting process."""
    return create_layer(factory)[1]


def _check_arguments(layer: Any, feeds: Sequence[ProgramTensor]) -> None:
    """Raise ConversionError if the Layer's forward() doesn't take this number of tensors."""
    try:
        inspect.signature(layer.forward).bind(*feeds)
    except TypeError:
        takes = ", ".join(inspect.signature(layer.forward).parameters)
        named = ", ".join(feed.name for feed in feeds)
        raise ConversionError(
            f"--input-spec names {named}, but forward() takes {takes}; name one for each, in this order."
        ) from None
    except ValueError:
        return  # no signature


def _fingerprint(
    layer: Any,
    module: ModuleType,
    feeds: Sequence[ProgramTensor],
    options: ConversionOptions,
    written_as: Mapping[str, str],
) -> str:
    """Return a hash of the weights, settings, and imported source files outside installed packages."""
    weights = hashlib.sha256()
    for name, tensor in sorted(layer.state_dict().items()):
        weights.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        weights.update(tensor.astype("float64").numpy().tobytes())
    settings = {
        "feeds": [str(feed) for feed in feeds],
        "paddle": paddle_version(),
        "weights": weights.hexdigest(),
        "tolerance": options.tolerance,
        "lengths": options.lengths,
        **written_as,
    }
    return hash_sources([*find_user_sources(module), *options.sample], settings)

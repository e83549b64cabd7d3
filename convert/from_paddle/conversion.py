"""Dynamic to static: a `paddle.nn.Layer` becomes an inference program that gives the same outputs."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from convert.from_paddle.params_file import read_params
from convert.output.staging import check_replaceable, fingerprint_of, is_current, staged, write_stamp
from convert.programs.engines import import_paddle, paddle_version
from convert.programs.feeds import Array, Feeds, sample_batches
from convert.programs.input_spec import TensorSpec, parse_input_spec
from convert.programs.program import InferenceProgram, first_line, read_program
from convert.programs.runners import Arguments, layer_runner, program_runner
from convert.proof.parity import ParityReport, compare, write_reports
from convert.result import Conversion, ConversionOptions
from pipeline.errors import ConversionError

PARITY_FILE = "parity.json"
PROGRAM_NAME = "inference"


def convert_paddle(
    factory: str,
    input_spec: str,
    out: Path,
    *,
    params: Path | None = None,
    options: ConversionOptions | None = None,
) -> Conversion:
    """Export the Layer that `module:factory` returns to `out` (inference.json, inference.pdiparams).

    `factory` is called without arguments; `params` is a .pdparams file for its weights; `input_spec` is
    text as `parse_input_spec` reads it, in the order of the arguments of `forward`. Raises ConversionError
    for what can't be used and ParityError when static and dynamic outputs differ; then nothing is written.
    """
    options = options or ConversionOptions()
    steps = options.steps
    feeds = parse_input_spec(input_spec)
    check_replaceable(out)
    steps.step("Importing Paddle and the model")
    import_paddle()
    module, layer = create_layer(factory)
    if params is not None:
        load_params(layer, params)
    layer.eval()
    _check_arguments(layer, feeds)
    fingerprint = _fingerprint(layer, module, feeds, options)
    if options.dry_run:
        message = f"would export {factory} to {out}; nothing was written"
        return Conversion(out, False, message, fingerprint=fingerprint)
    if not options.force and is_current(out, fingerprint):
        return Conversion(out, False, f"{out} is up to date")
    with staged(out) as made:
        steps.step("Dynamic to static")
        program = export_layer(layer, feeds, made)
        steps.step("Parity of dynamic and static")
        batches = sample_batches(feeds, program.id_limits, options.lengths)
        report = layer_parity(layer, program, feeds, batches, options.tolerance)
        report.require()
        write_reports(made / PARITY_FILE, [report])
        write_stamp(made, fingerprint, {"source": factory})
    return Conversion(out, True, f"{out} holds the inference model", (report,))


def create_layer(factory: str) -> tuple[ModuleType, Any]:
    """Import `module` and call `factory` of "module:factory"; raises ConversionError unless a Layer comes."""
    module, layer = call_factory(factory)
    if not isinstance(layer, import_paddle().nn.Layer):
        raise ConversionError(f"{factory} returned a {type(layer).__name__}, not a paddle.nn.Layer.")
    return module, layer


def call_factory(factory: str) -> tuple[ModuleType, Any]:
    """Import `module` of "module:factory" and call `factory`; returns both."""
    module_name, colon, name = factory.partition(":")
    if not colon or not module_name or not name:
        raise ConversionError(f"{factory!r} is not module:factory; write it like my_model:create_model.")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        missing = exc.name or module_name
        hint = (
            "run from the folder that holds it"
            if missing == module_name
            else "install it or correct the import"
        )
        raise ConversionError(f"there is no module {missing!r} ({factory}); {hint}.") from exc
    except Exception as exc:
        raise ConversionError(f"importing {module_name!r} failed ({first_line(exc)}).") from exc
    create = getattr(module, name, None)
    if not callable(create):
        raise ConversionError(f"module {module_name!r} has no function or class {name!r} to call.")
    try:
        return module, create()
    except Exception as exc:
        raise ConversionError(f"calling {factory} without arguments failed ({first_line(exc)}).") from exc


def _check_arguments(layer: Any, feeds: Sequence[TensorSpec]) -> None:
    """Raise ConversionError unless forward() can be called with so many tensors."""
    try:
        inspect.signature(layer.forward).bind(*feeds)
    except TypeError:
        takes = ", ".join(inspect.signature(layer.forward).parameters)
        named = ", ".join(feed.name for feed in feeds)
        raise ConversionError(
            f"--input-spec names {named}, but forward() takes {takes}; name one for each, in this order."
        ) from None
    except ValueError:
        return  # it tells nothing


def load_params(layer: Any, path: Path, *, allow_extra: bool = False) -> list[str]:
    """Set every weight of `layer` from a .pdparams file, as `set_weights` does."""
    return set_weights(layer, read_params(path), path, allow_extra=allow_extra)


def set_weights(
    layer: Any, arrays: Mapping[str, Array], path: Path, *, allow_extra: bool = False
) -> list[str]:
    """Set every weight of `layer` from the arrays of the file `path`; returns the names of those it lacks.

    Raises ConversionError unless names and shapes match; those it lacks are let pass by `allow_extra`.
    """
    state = layer.state_dict()
    absent, extra = sorted(state.keys() - arrays.keys()), sorted(arrays.keys() - state.keys())
    if absent or (extra and not allow_extra):
        what = f"lacks {absent[0]!r}" if absent else f"has {extra[0]!r}, which the layer lacks"
        raise ConversionError(
            f"{path} {what} ({len(absent)} missing, {len(extra)} extra); is it of this model?"
        )
    for name, tensor in state.items():
        if tuple(tensor.shape) != arrays[name].shape:
            raise ConversionError(
                f"{path}: {name!r} has shape {list(arrays[name].shape)}, the layer's is {list(tensor.shape)}."
            )
    layer.set_state_dict({name: arrays[name] for name in state})
    return extra


def export_layer(layer: Any, arguments: Arguments, directory: Path) -> InferenceProgram:
    """Write the static program of an evaluated Layer to `directory` and read it back.

    Raises ConversionError when Paddle can't make the Layer static.
    """
    paddle = import_paddle()
    specs = [
        feed and paddle.static.InputSpec([None if d < 0 else d for d in feed.shape], feed.dtype, feed.name)
        for feed in arguments
    ]
    layer.eval()
    try:
        static = paddle.jit.to_static(layer, input_spec=specs, full_graph=True)
        paddle.jit.save(static, str(directory / PROGRAM_NAME))
    except OSError:
        raise  # of writing
    except Exception as exc:
        raise ConversionError(
            f"the layer can't be made static ({first_line(exc)}); correct --input-spec or the layer (--debug "
            "shows where in forward())."
        ) from exc
    finally:
        # to_static replaces forward() for good; the dynamic one is the reference of parity.
        if hasattr(layer.forward, "rollback"):
            layer.forward.rollback()
    try:
        program = read_program(directory)
    except ConversionError as exc:
        # Paddle writes natively, and doesn't say when that fails.
        why = exc.message.replace(f"{directory}/", "").rstrip(".")
        raise ConversionError(
            f"what Paddle wrote can't be read back ({why}); see that the disk has room."
        ) from exc
    used = {feed.name for feed in program.feeds}
    unused = [feed.name for feed in arguments if feed and feed.name not in used]
    if unused:
        raise ConversionError(f"forward() doesn't use {unused[0]!r}; leave it out of --input-spec.")
    return program


def layer_parity(
    layer: Any,
    program: InferenceProgram,
    arguments: Arguments,
    batches: Sequence[Feeds],
    tolerance: float,
) -> ParityReport:
    """Compare the dynamic Layer with its exported program."""
    layer.eval()
    names = [fetch.name for fetch in program.fetches]
    dynamic = layer_runner(layer, arguments)
    return compare("dynamic to static", names, dynamic, program_runner(program), batches, tolerance)


def _fingerprint(
    layer: Any, module: ModuleType, feeds: Sequence[TensorSpec], options: ConversionOptions
) -> str:
    """Of the weights and of every imported source file outside the installed packages."""
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
    }
    return fingerprint_of(own_sources(module), settings)


def own_sources(*modules: ModuleType) -> list[Path]:
    """The source files of `modules` and of every imported one that is not of an installed package."""
    installed = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib"))
    files = {getattr(m, "__file__", None) for m in [*sys.modules.values(), *modules]}
    sources = (Path(f) for f in files if f and f.endswith(".py") and not f.startswith(installed))
    return sorted(source for source in sources if source.is_file())

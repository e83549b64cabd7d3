"""Converts a PyTorch model to Paddle, ONNX or TorchScript, whichever first has equal outputs."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from convert.from_paddle.export import check_format, format_settings
from convert.from_torch.sentence_encoder import SentenceEncoder, read_encoder, sentence_files
from convert.from_torch.torch_source import ROUTES, TORCH_OPSET, TORCH_OPSETS, Route, check_source, is_factory
from convert.output.staging import check_replaceable, hash_sources, staged, write_stamp
from convert.programs.engines import paddle_version
from convert.programs.program_feeds import parse_input_spec
from convert.programs.torch_file import TORCHSCRIPT, find_torch_file, read_format
from convert.proof.parity import ParityReport, parse_report, write_reports
from convert.result import FORMATS, Conversion, ConversionOptions, find_current_result
from convert.steps.conversion_environment import conversion_python
from convert.steps.isolation import run_isolated
from convert.steps.progress import Steps
from convert.to_serving.notes import ModelNotes, tokenizer_files, write_notes
from pipeline.errors import ConversionError, ParityError, ServingError
from pipeline.models.additions import PARITY_FILE
from pipeline.models.sentence_files import SentenceFiles


def convert_torch(
    source: str,
    out: Path,
    *,
    to: str | None = None,
    input_spec: str = "",
    opset: int = TORCH_OPSET,
    program_format: str = FORMATS[0],
    advise: bool = True,
    described: Mapping[str, Any] | None = None,
    options: ConversionOptions | None = None,
) -> Conversion:
    """Convert the PyTorch model `source` to the folder `out`.

    `source` is a Hugging Face directory, "module:factory", or a file of TorchScript or torch.export. `to` is
    "paddle", "onnx" or "torchscript"; by default all are tried in this order. With `advise`, the error for a
    single requested target names the other targets. `input_spec` has the form of `parse_input_spec`, and is
    optional for text models of transformers. A Paddle model is written in `program_format`, one of FORMATS;
    "pdmodel" allows only Paddle. `described` is an earlier result of `describe_torch`. Raises ConversionError
    for an unusable model, ParityError if the outputs of the only or last target differ.
    """
    options = options or ConversionOptions()
    _check_target(to, opset)
    check_format(program_format)
    routes = _routes(source, to, program_format)
    check_replaceable(out)
    facts = described or describe_torch(source, input_spec, options)
    proof = {"opset": opset, "tolerance": options.tolerance, "lengths": options.lengths}
    settings = {"routes": routes, **proof, "paddle": paddle_version(), "model": facts["fingerprint"]}
    settings |= format_settings(program_format)
    folder_of_source = Path(source) if _is_pretrained(source) else None
    tokenizer = tokenizer_files(folder_of_source) if folder_of_source else []
    sentence = sentence_files(folder_of_source) if folder_of_source else SentenceFiles()
    files = [*tokenizer, *sentence.paths, *options.sample]
    fingerprint = hash_sources(files, {**settings, "sentence": sentence.settings})
    names = " or ".join(ROUTES[name].name for name in routes)
    current = find_current_result(out, fingerprint, f"would convert {source} to {names} in {out}", options)
    if current is not None:
        return current
    sample = [str(path) for path in options.sample]
    source_arguments = {"source": source, "input_spec": input_spec, "program_format": program_format}
    arguments = {**source_arguments, **proof, "sample": sample}
    outputs = list(facts["outputs"])

    with tempfile.TemporaryDirectory(prefix="paddlewheel.") as work:
        encoder = read_encoder(Path(source), Path(work), options) if sentence.settings else SentenceEncoder()

        def export_by_route(name: str) -> list[ParityReport]:
            with staged(out) as folder:
                reports = _run_route(ROUTES[name], {**arguments, "out": str(folder)}, options)
                write_reports(folder / PARITY_FILE, reports)
                _write_notes(folder, facts["notes"], encoder, tokenizer)
                write_stamp(folder, fingerprint, {"source": source, "to": name, "outputs": outputs})
                return reports

        try:
            chosen, reports = _run_first_possible(routes, export_by_route, options.steps)
        except ServingError as exc:
            advise = advise and program_format == FORMATS[0]
            raise _add_routes(exc, source, routes[-1], only=len(routes) == 1, advise=advise) from exc
    message = f"{out} holds the {ROUTES[chosen].product}; outputs: {', '.join(outputs)}"
    return Conversion(out, True, message, tuple(reports))


def _check_target(to: str | None, opset: int) -> None:
    if to is not None and to not in ROUTES:
        raise ConversionError(f"PyTorch models can't be made {to!r}; name one of {', '.join(ROUTES)}.")
    if opset not in TORCH_OPSETS:
        raise ConversionError(
            f"opset {opset} can't be written; name one from {TORCH_OPSETS[0]} to {TORCH_OPSETS[-1]}."
        )


def _is_pretrained(source: str) -> bool:
    """Whether the source is a Hugging Face directory."""
    return not is_factory(source) and find_torch_file(source) is None


def _routes(source: str, to: str | None, program_format: str) -> list[str]:
    """Return the targets to try, as keys of ROUTES.

    Raises ConversionError for a target that does not support the file format, or to which the source can't be
    converted.
    """
    possible = _list_targets(source)
    if to is not None and to not in possible:
        raise ConversionError(
            f"{source} can become {' or '.join(ROUTES[name].name for name in possible)} here; "
            f"`paddlewheel convert all {source} OUT` makes a serving model of it."
        )
    if program_format == FORMATS[0]:
        return [to] if to else possible
    if to not in (None, "paddle"):
        raise ConversionError(f"--format {program_format} is for --to paddle, and --to {to} is asked for.")
    return ["paddle"]


def _list_targets(source: str) -> list[str]:
    """Return the keys of ROUTES that fit the source.

    A model file can't become a Paddle model, because it has no architecture into which weights could be
    mapped.
    """
    file = find_torch_file(source)
    if file is None:
        return list(ROUTES)
    return ["onnx", "torchscript"] if read_format(file) == TORCHSCRIPT else ["onnx"]


def _run_first_possible(
    routes: Sequence[str], export: Callable[[str], list[ParityReport]], steps: Steps
) -> tuple[str, list[ParityReport]]:
    """Call `export` with each target's name until a call succeeds. Return that name and the call's reports.

    Raises the ServingError of the last target.
    """
    for name, following in itertools.pairwise(routes):
        try:
            return name, export(name)
        except ServingError as exc:
            why = exc.message.rstrip(".")
            steps.say(f"{ROUTES[name].name}: {why}. Trying {ROUTES[following].name}.")
    return routes[-1], export(routes[-1])


def describe_torch(source: str, input_spec: str, options: ConversionOptions) -> dict[str, Any]:
    """Load a PyTorch model in the conversion environment and return facts for `convert_torch`.

    The facts are its hash, output names, notes, and whether PaddleNLP has its architecture. Raises
    ConversionError.
    """
    if input_spec:
        parse_input_spec(input_spec)
    if (file := find_torch_file(source)) is not None:
        read_format(file)
    else:
        check_source(source)
    sample = [str(path) for path in options.sample]
    arguments = {"source": source, "input_spec": input_spec, "sample": sample}
    facts: dict[str, Any] = _run_torch_step("describe_step", arguments, options)
    return facts


def _run_route(route: Route, arguments: dict[str, Any], options: ConversionOptions) -> list[ParityReport]:
    results = _run_torch_step(route.step, arguments, options, route.needs, f"PyTorch to {route.name}")
    reports = [parse_report(fields) for fields in results]
    for report in reports:
        report.require()
    return reports


def _write_notes(
    folder: Path, facts: Mapping[str, Any], encoder: SentenceEncoder, tokenizer: Sequence[Path]
) -> None:
    """Write model_notes.json to `folder` and copy the files it names, for `convert serving --with-notes`."""
    files = [*tokenizer, *encoder.files]
    for file in files:
        shutil.copyfile(file, folder / file.name)
    notes = ModelNotes(
        task=facts["task"],
        architecture=facts["architecture"],
        labels=tuple(facts["labels"]),
        padding=facts["padding"],
        outputs=tuple(facts["outputs"]),
        files=tuple(file.name for file in files),
        multi_label=facts["multi_label"],
        sentence=encoder.notes,
    )
    write_notes(folder, notes)


def _run_torch_step(
    step: str,
    arguments: dict[str, Any],
    options: ConversionOptions,
    needs: Sequence[str] = ("torch", "transformers"),
    converter: str = "PyTorch",
) -> Any:
    if not _is_pretrained(arguments["source"]):
        needs = [name for name in needs if name != "transformers"]
    conversion_python(needs)
    return run_isolated(
        f"convert.from_torch.torch_steps:{step}",
        arguments,
        converter=converter,
        needs=needs,
        steps=options.steps,
        timeout_s=options.step_timeout_s,
    )


def _add_routes(error: ServingError, source: str, route: str, *, only: bool, advise: bool) -> ServingError:
    """Return the error of the last target with a hint about the targets that were not tried."""
    if isinstance(error, ParityError):
        return error
    why = error.message.rstrip(".")
    if not only:
        return ConversionError(f"{source}: no route is left, the last said: {why}.")
    if not advise:
        return ConversionError(f"{source}: {why}.")
    alternatives = " or ".join(f"--to {name}" for name in _list_targets(source) if name != route)
    hint = f"; {alternatives} may go" if alternatives else ""
    return ConversionError(f"{source}: {why}{hint}.")

"""From a PyTorch model to Paddle, ONNX or TorchScript, by the first route whose outputs are the same."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from convert.from_paddle.pdmodel import check_format, format_settings
from convert.from_torch.sentence_encoder import SentenceEncoder, read_encoder, sentence_files
from convert.from_torch.torch_routes import OPSET, OPSETS, ROUTES, Route
from convert.from_torch.torch_source import check_source, is_factory
from convert.output.staging import staged
from convert.output.stamp import check_replaceable, hash_sources, write_stamp
from convert.programs.engines import paddle_version
from convert.programs.input_spec import parse_input_spec
from convert.proof.parity_report import ParityReport
from convert.proof.stored_reports import parse_report, write_reports
from convert.result import FORMATS, Conversion, ConversionOptions, as_it_is
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
    opset: int = OPSET,
    program_format: str = FORMATS[0],
    advise: bool = True,
    described: Mapping[str, Any] | None = None,
    options: ConversionOptions | None = None,
) -> Conversion:
    """Write the model of `source`, a Hugging Face directory or "module:factory", to the folder `out`.

    `to` is one of ROUTES; without it they are tried in their order, and with it an error names the others to
    try (`advise`). `input_spec` is text as `parse_input_spec` reads it, and may be left out for text models
    of transformers. A Paddle program is written in `program_format`, one of FORMATS; "pdmodel" leaves the
    route to Paddle alone. `described` is what `describe_torch` said, if it was asked before. Raises
    ConversionError for what can't be used or converted, ParityError when the outputs differ on the only or
    last route.
    """
    options = options or ConversionOptions()
    _check_target(to, opset)
    check_format(program_format)
    routes = _routes(to, program_format)
    check_replaceable(out)
    facts = described or describe_torch(source, input_spec, options)
    proof = {"opset": opset, "tolerance": options.tolerance, "lengths": options.lengths}
    settings = {"routes": routes, **proof, "paddle": paddle_version(), "model": facts["fingerprint"]}
    settings |= format_settings(program_format)
    tokenizer = [] if is_factory(source) else tokenizer_files(Path(source))
    sentence = SentenceFiles() if is_factory(source) else sentence_files(Path(source))
    files = [*tokenizer, *sentence.paths, *options.sample]
    fingerprint = hash_sources(files, {**settings, "sentence": sentence.settings})
    names = " or ".join(ROUTES[name].name for name in routes)
    kept = as_it_is(out, fingerprint, f"would convert {source} to {names} in {out}", options)
    if kept is not None:
        return kept
    sample = [str(path) for path in options.sample]
    asked = {"source": source, "input_spec": input_spec, "program_format": program_format}
    arguments = {**asked, **proof, "sample": sample}
    outputs = list(facts["outputs"])

    with tempfile.TemporaryDirectory(prefix="paddlewheel.") as work:
        encoder = read_encoder(Path(source), Path(work), options) if sentence.settings else SentenceEncoder()

        def make(name: str) -> list[ParityReport]:
            with staged(out) as made:
                reports = _take_route(ROUTES[name], {**arguments, "out": str(made)}, options)
                write_reports(made / PARITY_FILE, reports)
                _write_notes(made, facts["notes"], encoder, tokenizer)
                write_stamp(made, fingerprint, {"source": source, "to": name, "outputs": outputs})
                return reports

        try:
            taken, reports = _first_that_goes(routes, make, options.steps)
        except ServingError as exc:
            advise = advise and program_format == FORMATS[0]
            raise _add_routes(exc, source, routes[-1], only=len(routes) == 1, advise=advise) from exc
    message = f"{out} holds the {ROUTES[taken].made}; outputs: {', '.join(outputs)}"
    return Conversion(out, True, message, tuple(reports))


def _check_target(to: str | None, opset: int) -> None:
    if to is not None and to not in ROUTES:
        raise ConversionError(f"PyTorch models can't be made {to!r}; name one of {', '.join(ROUTES)}.")
    if opset not in OPSETS:
        raise ConversionError(f"opset {opset} can't be written; name one from {OPSETS[0]} to {OPSETS[-1]}.")


def _routes(to: str | None, program_format: str) -> list[str]:
    """The routes to try. Raises ConversionError for one that makes no program of Paddle's."""
    if program_format == FORMATS[0]:
        return [to] if to else list(ROUTES)
    if to not in (None, "paddle"):
        raise ConversionError(f"--format {program_format} is for --to paddle, and --to {to} is asked for.")
    return ["paddle"]


def _first_that_goes(
    routes: Sequence[str], make: Callable[[str], list[ParityReport]], steps: Steps
) -> tuple[str, list[ParityReport]]:
    """The name of the first route by which a model could be made, and what `make` returned for it.

    Raises the ServingError of the last.
    """
    for name, following in itertools.pairwise(routes):
        try:
            return name, make(name)
        except ServingError as exc:
            why = exc.message.rstrip(".")
            steps.say(f"{ROUTES[name].name}: {why}. Trying {ROUTES[following].name}.")
    return routes[-1], make(routes[-1])


def describe_torch(source: str, input_spec: str, options: ConversionOptions) -> dict[str, Any]:
    """What `convert_torch` has to know of the model, which is loaded for it. Raises ConversionError."""
    if input_spec:
        parse_input_spec(input_spec)
    check_source(source)
    sample = [str(path) for path in options.sample]
    asked = {"source": source, "input_spec": input_spec, "sample": sample}
    facts: dict[str, Any] = _run("describe_step", asked, options)
    return facts


def _take_route(route: Route, arguments: dict[str, Any], options: ConversionOptions) -> list[ParityReport]:
    told = _run(route.step, arguments, options, route.needs, f"PyTorch to {route.name}")
    reports = [parse_report(fields) for fields in told]
    for report in reports:
        report.require()
    return reports


def _write_notes(
    made: Path, facts: Mapping[str, Any], encoder: SentenceEncoder, tokenizer: Sequence[Path]
) -> None:
    """Write the notes of a model with the files they name, for `convert serving --with-notes`."""
    files = [*tokenizer, *encoder.files]
    for file in files:
        shutil.copyfile(file, made / file.name)
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
    write_notes(made, notes)


def _run(
    step: str,
    arguments: dict[str, Any],
    options: ConversionOptions,
    needs: Sequence[str] = ("torch", "transformers"),
    converter: str = "PyTorch",
) -> Any:
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
    """The last route's error, with the other routes where they weren't tried."""
    if isinstance(error, ParityError):
        return error
    why = error.message.rstrip(".")
    if not only:
        return ConversionError(f"{source}: no route is left, the last said: {why}.")
    if not advise:
        return ConversionError(f"{source}: {why}.")
    others = " or ".join(f"--to {name}" for name in ROUTES if name != route)
    return ConversionError(f"{source}: {why}; {others} may go.")

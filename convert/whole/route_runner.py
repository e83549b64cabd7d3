"""The routes (sequences of conversions) from each kind of source to a serving model, and their runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from convert.from_paddle.convert_paddle import convert_paddle
from convert.from_paddlenlp.convert_paddlenlp import convert_paddlenlp
from convert.from_tables.convert_table import convert_table, table_source, with_rows
from convert.from_torch.convert_torch import convert_torch
from convert.from_torch.sentence_encoder import SentenceEncoder, read_encoder
from convert.paddle_onnx.to_onnx import convert_to_onnx
from convert.paddle_onnx.to_paddle import convert_onnx
from convert.programs.engines import ENGINES
from convert.programs.inference_program import read_program
from convert.proof.parity import FailedParity, ParityReport
from convert.result import FORMATS, Conversion, ConversionOptions
from convert.to_serving.convert_serving import convert_serving
from convert.to_serving.next_step import ENCODER
from convert.to_serving.notes import (
    NOTES_FILE,
    ModelNotes,
    read_notes,
    tokenizer_files,
)
from convert.whole.source import (
    EXPORTS,
    TORCH_FILES,
    SourceKind,
    config_beside,
    folder_beside,
    suggested_padding,
)
from convert.whole.step_arguments import StepArguments
from pipeline.errors import ConversionError, ServingError
from pipeline.models.label_names import get_labels, get_task, is_multi_label
from pipeline.models.serving_model import EngineName

EXPORT, TWIN, TORCH_ONNX, TORCH_SCRIPT, X2PADDLE, TO_ONNX, TABLE_ONNX, SERVING = (
    "dynamic to static",
    "weights into PaddleNLP's model",
    "PyTorch to ONNX",
    "PyTorch to TorchScript",
    "ONNX to Paddle",
    "Paddle to ONNX",
    "table to ONNX",
    "serving model",
)


@dataclass(frozen=True)
class Route:
    """A sequence of conversions from a source to a serving model for one engine."""

    steps: tuple[str, ...]
    engine: EngineName  # that runs the result
    why: str  # the reason to take this route

    def __str__(self) -> str:
        return f"{', then '.join(self.steps)} for {ENGINES[self.engine]}"


_STATIC = (
    Route((EXPORT, SERVING), "paddle", "Paddle runs it in its own form"),
    Route((EXPORT, TO_ONNX, SERVING), "onnxruntime", "ONNX Runtime runs what Paddle Inference does not"),
)
_ONNX_OF_TORCH = (
    Route((TORCH_ONNX, SERVING), "onnxruntime", "ONNX Runtime runs it without PyTorch"),
    Route((TORCH_ONNX, X2PADDLE, SERVING), "paddle", "its ONNX form may become a Paddle program"),
)
_ROUTES: dict[SourceKind, tuple[Route, ...]] = {
    SourceKind.LAYER: _STATIC,
    SourceKind.PADDLENLP: _STATIC,
    SourceKind.PROGRAM: tuple(Route(route.steps[1:], route.engine, route.why) for route in _STATIC),
    SourceKind.TORCH: (
        Route((TWIN, SERVING), "paddle", "PaddleNLP's model of the same architecture takes its weights"),
        Route((TORCH_ONNX, X2PADDLE, SERVING), "paddle", "its ONNX form may become a Paddle program"),
        Route((TORCH_ONNX, SERVING), "onnxruntime", "ONNX Runtime runs what can't be a Paddle program"),
        Route((TORCH_SCRIPT, SERVING), "pytorch", "PyTorch runs what ONNX has no operator for"),
    ),
    SourceKind.TORCHSCRIPT: (
        *_ONNX_OF_TORCH,
        Route((TORCH_SCRIPT, SERVING), "pytorch", "PyTorch runs it as it is"),
    ),
    SourceKind.EXPORTED: (
        *_ONNX_OF_TORCH,
        Route((SERVING,), "pytorch", "PyTorch runs it as it is"),
    ),
    SourceKind.ONNX: (
        Route((X2PADDLE, SERVING), "paddle", "a Paddle program of it may have the same outputs"),
        Route((SERVING,), "onnxruntime", "ONNX Runtime runs it as it is"),
    ),
    SourceKind.TABLE: (Route((TABLE_ONNX, SERVING), "onnxruntime", "ONNX has its operators"),),
}


def list_routes(
    kind: SourceKind, engine: str = "", program_format: str = FORMATS[0], *, has_twin: bool = True
) -> tuple[Route, ...]:
    """Return the routes from a kind of source to a serving model, in the order to try.

    engine: if not empty, only routes whose result runs on this engine. program_format: a format other than
    json requires a route that serves the exported Paddle model. has_twin: whether PaddleNLP has the
    architecture of a PyTorch model. Raises ConversionError if no route fits.
    """
    if engine and engine not in ENGINES:
        raise ConversionError(f"there is no engine {engine!r}; name {' or '.join(ENGINES)}.")
    routes = tuple(route for route in _ROUTES[kind] if engine in ("", route.engine))
    if not routes:
        raise ConversionError(f"--engine {engine} does not run {kind.value}; leave it out.")
    if program_format == FORMATS[0]:
        return routes if has_twin else tuple(route for route in routes if TWIN not in route.steps)
    if engine not in ("", "paddle"):
        raise ConversionError(
            f"--format {program_format} is for --engine paddle, not for {ENGINES[routes[0].engine]}."
        )
    return tuple(route for route in routes if route.steps in ((EXPORT, SERVING), (TWIN, SERVING)))


@dataclass
class RouteRunner:
    """Runs the conversions of routes until one route succeeds.

    Steps at the beginning that several routes share run only once.
    """

    source: str
    kind: SourceKind
    step_arguments: StepArguments
    torch_facts: Mapping[str, Any] | None  # result of describe_torch, for a PyTorch model
    out: Path
    work: Path
    options: ConversionOptions
    results: dict[tuple[str, ...], tuple[Path, tuple[ParityReport, ...]]] = field(default_factory=dict)
    failed: dict[tuple[str, ...], ServingError] = field(default_factory=dict)
    unserved: dict[str, ServingError] = field(default_factory=dict)  # by engine, of the last step
    encoder: SentenceEncoder | None = None  # read once, for all routes

    def run_first_possible(
        self, routes: Sequence[Route], out: Path
    ) -> tuple[Route, tuple[ParityReport, ...]]:
        """Run the routes in order until one succeeds.

        Returns that route with the comparison reports of its steps. The serving model is written to `out`.
        Raises the error of the last route if all fail.
        """
        say = self.options.steps.say
        say(f"{self.source} is {self.kind.value}. Route: {routes[0]} ({routes[0].why}).")
        error: ServingError | None = None
        for number, route in enumerate(routes):
            if self._has_failed_step(route):
                continue
            if error is not None:
                say(f"{error.message.rstrip('.')}.")
                say(f"Trying {route} ({route.why}).")
            try:
                return route, self._run_route(route, out)
            except ServingError as exc:
                error = self.unserved[route.engine] = exc
                # Messages keep only the names of the steps' temporary folders.
                message = exc.message.replace(f"{self.work}/", "").replace(str(out), str(self.out))
                exc.args = (message, *exc.args[1:])
                if all(self._has_failed_step(other) for other in routes[number + 1 :]):
                    raise
        raise AssertionError("there is a route for each kind")

    def get_reason_against_onnx(self) -> str:
        """Return the error of the conversion from PyTorch to ONNX; empty if it was not tried or succeeded."""
        error = self.failed.get((TORCH_ONNX,)) or self.unserved.get("onnxruntime")
        return error.message.rstrip(".").removeprefix(f"{self.source}: ") if error else ""

    def _has_failed_step(self, route: Route) -> bool:
        return any(route.steps[: number + 1] in self.failed for number in range(len(route.steps)))

    def _run_route(self, route: Route, out: Path) -> tuple[ParityReport, ...]:
        place, reports = Path(self.source), tuple[ParityReport, ...]()
        for number, step in enumerate(route.steps[:-1]):
            done = route.steps[: number + 1]
            if done in self.failed:
                raise self.failed[done]
            if done not in self.results:
                try:
                    target = self.work / _FOLDERS[step]
                    result = _STEPS[step](self, place, target)
                except ServingError as exc:
                    self.failed[done] = exc
                    raise
                self.results[done] = (target, (*reports, *result.reports))
            place, reports = self.results[done]
        return self._convert_to_serving(place, reports, out)

    def _export(self, place: Path, out: Path) -> Conversion:
        return export_dynamic(self.source, self.kind, self.step_arguments, out, self.options)

    def _torch(self, to: str, out: Path) -> Conversion:
        return convert_torch(
            self.source,
            out,
            to=to,
            input_spec=self.step_arguments.input_spec,
            program_format=self.step_arguments.program_format if to == "paddle" else FORMATS[0],
            advise=False,
            described=self.torch_facts,
            options=self.options,
        )

    def _convert_table_model(self, place: Path, out: Path) -> Conversion:
        return table_as_onnx(self.source, self.step_arguments, out, self.options)

    def _to_paddle(self, place: Path, out: Path) -> Conversion:
        return convert_onnx(place, out, fallback=False, options=self.options)

    def _to_onnx(self, place: Path, out: Path) -> Conversion:
        return convert_to_onnx(place, out, options=self.options)

    def _convert_to_serving(
        self, place: Path, earlier: tuple[ParityReport, ...], out: Path
    ) -> tuple[ParityReport, ...]:
        """Write the serving model to `out`, with the requested or suggested padding; return the reports.

        If suggested padding changes the outputs, the model is written without padding.
        """
        notes, files = self._notes(place)
        requested = self.step_arguments.padding
        padding = suggested_padding(place, notes) if requested is None else requested

        def write_model(padding: str) -> tuple[ParityReport, ...]:
            return convert_serving(
                place,
                out,
                fetch_alias=self.step_arguments.fetch_alias,
                padding=padding,
                labels=self.step_arguments.labels,
                files=[*files, *self.step_arguments.files],
                notes=notes,
                earlier=earlier,
                rebatch=self.step_arguments.rebatch,
                options=with_rows(place, self.options),
            ).reports

        try:
            return write_model(padding)
        except FailedParity as exc:
            if requested is not None or exc.report.step != "padding":
                raise
            why = exc.report.failure.removeprefix("padding: ")
            self.options.steps.say(
                f"Padding changes the answer ({why}), so requests of different length will run apart."
            )
            return write_model("")

    def _notes(self, place: Path) -> tuple[ModelNotes, list[Path]]:
        """Read the notes in the model's folder `place`, and add facts from the configuration at the source.

        Returns the notes, and the files to be copied to the serving model.
        """
        folder = place if place.is_dir() else place.parent
        notes = read_notes(folder) if (folder / NOTES_FILE).is_file() else ModelNotes(task="")
        if self.kind not in EXPORTS:
            return notes, []
        source = folder_beside(self.source)
        config = config_beside(source)
        architecture = str(next(iter(config.get("architectures") or []), ""))
        encoder = SentenceEncoder(notes.sentence) if notes.sentence else self._encoder(source)
        notes = replace(
            notes,
            task=notes.task or (ENCODER if encoder.notes else get_task(architecture)),
            architecture=notes.architecture or architecture,
            labels=notes.labels or get_labels(config),
            multi_label=notes.multi_label or is_multi_label(config),
            sentence=encoder.notes,
        )
        has_tokenizer = not notes.files and (config or encoder.notes)
        return notes, [*(tokenizer_files(source) if has_tokenizer else []), *encoder.files]

    def _encoder(self, folder: Path) -> SentenceEncoder:
        if self.kind in TORCH_FILES:
            return SentenceEncoder()
        if self.encoder is None:
            model = read_program(Path(self.source)).program
            self.encoder = read_encoder(folder, self.work, self.options, model)
        return self.encoder


_STEPS: dict[str, Callable[[RouteRunner, Path, Path], Conversion]] = {
    EXPORT: RouteRunner._export,
    TWIN: lambda runner, place, out: runner._torch("paddle", out),
    TORCH_ONNX: lambda runner, place, out: runner._torch("onnx", out),
    TORCH_SCRIPT: lambda runner, place, out: runner._torch("torchscript", out),
    X2PADDLE: RouteRunner._to_paddle,
    TO_ONNX: RouteRunner._to_onnx,
    TABLE_ONNX: RouteRunner._convert_table_model,
}


# The folder of a step's result, named in messages.
_FOLDERS = {
    EXPORT: "paddle",
    TWIN: "paddle",
    TORCH_ONNX: "onnx",
    TORCH_SCRIPT: "torchscript",
    X2PADDLE: "paddle-of-onnx",
    TO_ONNX: "onnx",
    TABLE_ONNX: "onnx",
}


def table_as_onnx(
    source: str, step_arguments: StepArguments, out: Path, options: ConversionOptions
) -> Conversion:
    """Convert a scikit-learn, LightGBM or XGBoost model to an ONNX model in the folder `out`."""
    table = table_source(Path(source))
    assert table is not None
    spec, trusted = step_arguments.input_spec, step_arguments.trusted
    return convert_table(table, out, input_spec=spec, trusted=trusted, options=options)


def export_dynamic(
    source: str, kind: SourceKind, step_arguments: StepArguments, out: Path, options: ConversionOptions
) -> Conversion:
    """Export a Paddle Layer or PaddleNLP model to a Paddle inference model in the folder `out`."""
    if kind is SourceKind.LAYER:
        return convert_paddle(
            source,
            step_arguments.input_spec,
            out,
            params=step_arguments.params,
            program_format=step_arguments.program_format,
            options=options,
        )
    return convert_paddlenlp(
        source,
        out,
        task=step_arguments.task,
        labels=step_arguments.labels,
        num_labels=step_arguments.num_labels,
        input_spec=step_arguments.input_spec,
        random_weights=step_arguments.random_weights,
        program_format=step_arguments.program_format,
        options=options,
    )

"""From any source to a serving model, by the first route whose steps all prove the same outputs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from convert.from_paddle.conversion import convert_paddle
from convert.from_paddlenlp.conversion import CONFIG_FILES, convert_paddlenlp
from convert.from_torch.conversion import convert_torch, describe_torch
from convert.output.staging import (
    STAMP_FILE,
    check_replaceable,
    fingerprint_of,
    is_current,
    staged,
    write_stamp,
)
from convert.paddle_onnx.to_onnx import convert_to_onnx
from convert.paddle_onnx.to_paddle import convert_onnx
from convert.programs.engines import onnx_runtime_version, paddle_version
from convert.programs.program import read_program
from convert.proof.parity import FailedParity, ParityReport
from convert.result import Conversion, ConversionOptions
from convert.to_serving.conversion import convert_serving
from convert.to_serving.notes import NOTES_FILE, ModelNotes, labels_of, read_notes, task_of, tokenizer_files
from convert.whole.route import EXPORT, TO_ONNX, TORCH_ONNX, TWIN, X2PADDLE, Route, routes_of
from convert.whole.source_kind import SourceKind, kind_of
from pipeline.errors import ConversionError, ServingError

_FILES = (SourceKind.ONNX, SourceKind.PROGRAM)


@dataclass(frozen=True)
class Wanted:
    """What is asked of a conversion: the arguments of its steps, each as the step's own command has them.

    `padding` None: what the model's notes or the names of its feeds suggest is tried.
    """

    engine: str = ""
    input_spec: str = ""
    params: Path | None = None
    task: str = ""
    labels: tuple[str, ...] = ()
    num_labels: int = 0
    random_weights: bool = False
    fetch_alias: tuple[str, ...] = ()
    padding: str | None = None
    files: tuple[Path, ...] = ()


def convert_all(
    source: str, out: Path, wanted: Wanted | None = None, *, options: ConversionOptions | None = None
) -> Conversion:
    """Write the serving model of `source` to `out`; it says which route it takes and why.

    `source` is what `kind_of` knows. Where a step fails the next route is tried, unless `wanted.engine`
    leaves none. The reports of all steps are stored. Raises ConversionError, or ParityError where outputs
    differ, of the last route; then nothing is written.
    """
    wanted, options = wanted or Wanted(), options or ConversionOptions()
    check_replaceable(out)
    options.steps.step("Looking at the source")
    kind = kind_of(source, random_weights=wanted.random_weights)
    _check_fit(source, kind, wanted)
    routes = routes_of(kind, wanted.engine)
    told = describe_torch(source, wanted.input_spec, options) if kind is SourceKind.TORCH else None
    fingerprint = _fingerprint(source, kind, wanted, told, options)
    if options.dry_run:
        ways = "; else ".join(map(str, routes))
        return Conversion(out, False, f"{source} is {kind.value}; would go by {ways}; nothing was written")
    if not options.force and is_current(out, fingerprint):
        return Conversion(out, False, f"{out} is up to date")
    with staged(out) as made, tempfile.TemporaryDirectory(prefix="steps.", dir=made.parent) as work:
        way = _Way(source, kind, wanted, told, out, Path(work), options)
        route, reports = way.first_that_goes(routes, made)
        (made / STAMP_FILE).unlink()
        checked = {"source": str(Path(source).resolve())} if kind in _FILES else {}
        write_stamp(made, fingerprint, {**checked, "made_of": source, "route": list(route.steps)})
    return Conversion(out, True, f"{out} holds the serving model of {source}: {route}", reports)


@dataclass
class _Way:
    """What was made on the way so far; a step that two routes begin with is done once."""

    source: str
    kind: SourceKind
    wanted: Wanted
    told: Mapping[str, Any] | None  # of a PyTorch model
    out: Path
    work: Path
    options: ConversionOptions
    made: dict[tuple[str, ...], tuple[Path, tuple[ParityReport, ...]]] = field(default_factory=dict)
    failed: dict[tuple[str, ...], ServingError] = field(default_factory=dict)

    def first_that_goes(self, routes: Sequence[Route], out: Path) -> tuple[Route, tuple[ParityReport, ...]]:
        say = self.options.steps.say
        say(f"{self.source} is {self.kind.value}. Route: {routes[0]} ({routes[0].why}).")
        error: ServingError | None = None
        for number, route in enumerate(routes):
            if error is not None:
                say(f"{error.message.rstrip('.')}. Trying {route} ({route.why}).")
            try:
                return route, self._take(route, out)
            except ServingError as exc:
                error = exc
                # The folders of the steps go away again; only their names say something.
                told = exc.message.replace(f"{self.work}/", "").replace(str(out), str(self.out))
                exc.args = (told, *exc.args[1:])
                if all(self._hopeless(other) for other in routes[number + 1 :]):
                    raise
        raise AssertionError("there is a route for each kind")

    def _hopeless(self, route: Route) -> bool:
        return any(route.steps[: number + 1] in self.failed for number in range(len(route.steps)))

    def _take(self, route: Route, out: Path) -> tuple[ParityReport, ...]:
        place, reports = Path(self.source), tuple[ParityReport, ...]()
        for number, step in enumerate(route.steps[:-1]):
            done = route.steps[: number + 1]
            if done in self.failed:
                raise self.failed[done]
            if done not in self.made:
                try:
                    target = self.work / _FOLDERS[step]
                    result = _STEPS[step](self, place, target)
                except ServingError as exc:
                    self.failed[done] = exc
                    raise
                self.made[done] = (target, (*reports, *result.reports))
            place, reports = self.made[done]
        return self._serve(place, reports, out)

    def _export(self, place: Path, out: Path) -> Conversion:
        return _exported(self.source, self.kind, self.wanted, out, self.options)

    def _torch(self, to: str, out: Path) -> Conversion:
        return convert_torch(
            self.source,
            out,
            to=to,
            input_spec=self.wanted.input_spec,
            advise=False,
            described=self.told,
            options=self.options,
        )

    def _to_paddle(self, place: Path, out: Path) -> Conversion:
        return convert_onnx(place, out, fallback=False, options=self.options)

    def _to_onnx(self, place: Path, out: Path) -> Conversion:
        return convert_to_onnx(place, out, options=self.options)

    def _serve(self, place: Path, earlier: tuple[ParityReport, ...], out: Path) -> tuple[ParityReport, ...]:
        """With the padding that was asked for, else with what is proven of that which suggests itself."""
        notes, files = self._notes(place)
        asked = self.wanted.padding
        padding = suggested_padding(place, notes) if asked is None else asked

        def serve(padding: str) -> tuple[ParityReport, ...]:
            return convert_serving(
                place,
                out,
                fetch_alias=self.wanted.fetch_alias,
                padding=padding,
                labels=self.wanted.labels,
                files=[*files, *self.wanted.files],
                notes=notes,
                earlier=earlier,
                options=self.options,
            ).reports

        try:
            return serve(padding)
        except FailedParity as exc:
            if asked is not None or exc.report.step != "padding":
                raise
            why = exc.report.failure.removeprefix("padding: ")
            self.options.steps.say(
                f"Padding changes the answer ({why}), so requests of different length will run apart."
            )
            return serve("")

    def _notes(self, place: Path) -> tuple[ModelNotes, list[Path]]:
        """The notes beside the model; what they don't say is taken from a configuration beside the source."""
        folder = place if place.is_dir() else place.parent
        notes = read_notes(folder) if (folder / NOTES_FILE).is_file() else ModelNotes(task="")
        if self.kind not in _FILES:
            return notes, []
        source = Path(self.source) if Path(self.source).is_dir() else Path(self.source).parent
        config = _config_beside(source)
        architecture = str(next(iter(config.get("architectures") or []), ""))
        return replace(
            notes,
            task=notes.task or task_of(architecture),
            architecture=notes.architecture or architecture,
            labels=notes.labels or labels_of(config),
        ), [] if notes.files or not config else tokenizer_files(source)


_STEPS: dict[str, Callable[[_Way, Path, Path], Conversion]] = {
    EXPORT: _Way._export,
    TWIN: lambda way, place, out: way._torch("paddle", out),
    TORCH_ONNX: lambda way, place, out: way._torch("onnx", out),
    X2PADDLE: _Way._to_paddle,
    TO_ONNX: _Way._to_onnx,
}


# What a step makes, as sentences about it call its folder.
_FOLDERS = {
    EXPORT: "paddle",
    TWIN: "paddle",
    TORCH_ONNX: "onnx",
    X2PADDLE: "paddle-of-onnx",
    TO_ONNX: "onnx",
}


def suggested_padding(model: Path, notes: ModelNotes) -> str:
    """What may be padded, if that is proven: of the notes, else all whole-number feeds beside a mask."""
    feeds = {feed.name: feed for feed in read_program(model).feeds}
    if notes.padding:
        return ",".join(part for part in notes.padding.split(",") if part.partition("=")[0] in feeds)
    if "attention_mask" not in feeds:
        return ""
    rows = [f for f in feeds.values() if f.dtype in ("int64", "int32") and f.shape == (-1, -1)]
    return ",".join(f"{feed.name}=0" for feed in rows)


def _exported(
    source: str, kind: SourceKind, wanted: Wanted, out: Path, options: ConversionOptions
) -> Conversion:
    if kind is SourceKind.LAYER:
        return convert_paddle(source, wanted.input_spec, out, params=wanted.params, options=options)
    return convert_paddlenlp(
        source,
        out,
        task=wanted.task,
        labels=wanted.labels,
        num_labels=wanted.num_labels,
        input_spec=wanted.input_spec,
        random_weights=wanted.random_weights,
        options=options,
    )


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
        first = convert_torch(source, nowhere, described=told, options=dry)
    elif kind in _FILES:
        first = convert_serving(Path(source), nowhere, options=dry)
    else:
        first = _exported(source, kind, wanted, nowhere, dry)
    settings = {
        "first": first.fingerprint,
        "engine": wanted.engine,
        "input_spec": wanted.input_spec,
        "labels": list(wanted.labels),
        "fetch_alias": list(wanted.fetch_alias),
        "padding": wanted.padding,
        "onnxruntime": onnx_runtime_version(),
        "paddle": paddle_version(),
    }
    return fingerprint_of([*wanted.files, *_beside(source, kind)], settings)


def _beside(source: str, kind: SourceKind) -> list[Path]:
    """The files beside an ONNX model or a program that go along with it."""
    if kind not in _FILES:
        return []
    folder = Path(source) if Path(source).is_dir() else Path(source).parent
    named = [folder / name for name in (NOTES_FILE, *CONFIG_FILES)]
    return [path for path in (*named, *tokenizer_files(folder)) if path.is_file()]


def _config_beside(folder: Path) -> dict[str, Any]:
    """A configuration of transformers or PaddleNLP; empty where there is none."""
    for name in CONFIG_FILES:
        try:
            config = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(config, dict):
            return config
    return {}


def _check_fit(source: str, kind: SourceKind, wanted: Wanted) -> None:
    """Raise ConversionError for an option that this kind of source has no use for."""
    layer, nlp = SourceKind.LAYER, SourceKind.PADDLENLP
    takers: dict[str, tuple[object, tuple[SourceKind, ...]]] = {
        "--params": (wanted.params, (layer,)),
        "--task": (wanted.task, (nlp,)),
        "--num-labels": (wanted.num_labels, (nlp,)),
        "--random-weights": (wanted.random_weights, (nlp,)),
        "--input-spec": (wanted.input_spec, (layer, nlp, SourceKind.TORCH)),
    }
    for option, (value, kinds) in takers.items():
        if value and kind not in kinds:
            names = " or ".join(known.value for known in kinds)
            raise ConversionError(f"{option} is for {names}; {source} is {kind.value}.")

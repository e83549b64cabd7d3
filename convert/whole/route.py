"""The routes from each kind of source to a serving model, in the order in which they are tried."""

from __future__ import annotations

from dataclasses import dataclass

from convert.programs.engines import ENGINES
from convert.result import FORMATS
from convert.whole.source_kind import SourceKind
from pipeline.errors import ConversionError
from pipeline.models.serving_model import EngineName

EXPORT, TWIN, TORCH_ONNX, X2PADDLE, TO_ONNX, TABLE_ONNX, SERVING = (
    "dynamic to static",
    "weights into PaddleNLP's model",
    "PyTorch to ONNX",
    "ONNX to Paddle",
    "Paddle to ONNX",
    "table to ONNX",
    "serving model",
)


@dataclass(frozen=True)
class Route:
    """The steps from a source to a serving model."""

    steps: tuple[str, ...]
    engine: EngineName  # that runs the result
    why: str  # the reason to take this route

    def __str__(self) -> str:
        return f"{', then '.join(self.steps)} for {ENGINES[self.engine]}"


_STATIC = (
    Route((EXPORT, SERVING), "paddle", "Paddle runs it in its own form"),
    Route((EXPORT, TO_ONNX, SERVING), "onnxruntime", "ONNX Runtime runs what Paddle Inference does not"),
)
_ROUTES: dict[SourceKind, tuple[Route, ...]] = {
    SourceKind.LAYER: _STATIC,
    SourceKind.PADDLENLP: _STATIC,
    SourceKind.PROGRAM: tuple(Route(route.steps[1:], route.engine, route.why) for route in _STATIC),
    SourceKind.TORCH: (
        Route((TWIN, SERVING), "paddle", "PaddleNLP's model of the same architecture takes its weights"),
        Route((TORCH_ONNX, X2PADDLE, SERVING), "paddle", "its ONNX form may become a Paddle program"),
        Route((TORCH_ONNX, SERVING), "onnxruntime", "ONNX Runtime runs what can't be a Paddle program"),
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
    """Return the routes for a kind of source, only those for `engine` if it is given.

    A format other than json needs a Layer's program that is served unchanged. has_twin: whether PaddleNLP has
    the architecture of a PyTorch model.
    """
    if engine and engine not in ENGINES:
        raise ConversionError(f"there is no engine {engine!r}; name {' or '.join(ENGINES)}.")
    routes = tuple(route for route in _ROUTES[kind] if engine in ("", route.engine))
    if not routes:
        raise ConversionError(f"--engine {engine} does not run {kind.value}; leave it out.")
    if program_format == FORMATS[0]:
        return routes if has_twin else tuple(route for route in routes if TWIN not in route.steps)
    if engine == "onnxruntime":
        raise ConversionError(f"--format {program_format} is for --engine paddle, not for ONNX Runtime.")
    return tuple(route for route in routes if route.steps in ((EXPORT, SERVING), (TWIN, SERVING)))

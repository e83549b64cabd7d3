"""Text and SVG drawing of a model repository: models, tensors, steps, batching, and load errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.api.app import ServedModel
from pipeline.api.op import REQUEST_OP
from pipeline.models.tensor_spec import TensorSpec
from pipeline.triton.repository import ModelRepository, RepositoryContent, UnavailableModel
from pipeline.tuning.svg import FAINT, GRID, INK, LINE, MARK, page, text

_WIDTH, _GAP, _MARGIN, _LINE = 300.0, 90.0, 24.0, 17.0
_MAX_CHARS = 46  # per line in a box


def draw_models(
    models: Sequence[ServedModel], batchers: Sequence[str], errors: Sequence[tuple[str, str]]
) -> str:
    """Draw models, their tensors and the steps of ensembles. Returns an SVG document as text.

    batchers: for each model a description of its batching. errors: (name, reason) of each model that can't be
    served.
    """
    parts: list[str] = []
    y, width = _MARGIN, _MARGIN * 2 + _WIDTH
    for model, batcher in zip(models, batchers, strict=True):
        columns = _get_step_columns(model)
        parts.append(text(_MARGIN, y + 14, f"{model.name}  version {model.version}", size=15))
        height, drawing = _draw_model(model, columns, batcher, y + 24)
        parts += drawing
        width = max(width, _MARGIN * 2 + (len(columns) + 2) * (_WIDTH + _GAP) - _GAP)
        y += height + 24 + 2 * _MARGIN
    for name, why in errors:
        parts.append(text(_MARGIN, y + 14, f"{name} can't be served", MARK, size=15))
        for number, line in enumerate(_wrap_line(why, 120)):
            parts.append(text(_MARGIN, y + 34 + number * _LINE, line))
        y += 34 + len(_wrap_line(why, 120)) * _LINE + _MARGIN
    return page(width, y, parts)


def _get_step_columns(model: ServedModel) -> list[list[str]]:
    """Group the steps of an ensemble into the columns of its drawing, by depth in the graph.

    A model that is no ensemble is one column.
    """
    if model.op:
        return [[model.op]]
    graph = model.graph
    depth: dict[str, int] = {}
    for name in graph.order:
        before = (depth[edge.source] for edge in graph.nodes[name].inputs if edge.source in depth)
        depth[name] = max(before, default=-1) + 1
    return [
        [name for name in graph.order if depth[name] == at]
        for at in range(max(depth.values(), default=0) + 1)
    ]


def _draw_model(
    model: ServedModel, columns: Sequence[Sequence[str]], batcher: str, top: float
) -> tuple[float, list[str]]:
    """Draw a model: the request on the left, its steps in columns, and the answer on the right.

    Returns height and SVG parts.
    """
    signature = model.signature
    assert signature is not None  # models of a repository always have a signature
    places: dict[str, tuple[float, float]] = {}
    parts: list[str] = []
    request = _draw_box(_MARGIN, top, "request", list(map(_label_tensor, signature.inputs)), GRID)
    heights = [request[0]]
    parts += request[1]
    places[REQUEST_OP] = (_MARGIN + _WIDTH, top + 12)
    for column, names in enumerate(columns, 1):
        x, y = _MARGIN + column * (_WIDTH + _GAP), top
        for name in names:
            lines = [batcher] if model.op else _describe_feeds(model, name)
            height, box = _draw_box(x, y, _get_title(model, name), lines, LINE)
            parts += box
            places[name] = (x, y + 12)
            y += height + 14
        heights.append(y - top)
    answer = _draw_box(
        _MARGIN + (len(columns) + 1) * (_WIDTH + _GAP),
        top,
        "answer",
        list(map(_label_tensor, signature.outputs)),
        GRID,
    )
    heights.append(answer[0])
    parts += answer[1]
    parts += _draw_arrows(model, places, answer_x=_MARGIN + (len(columns) + 1) * (_WIDTH + _GAP), top=top)
    return max(heights), parts


def _get_title(model: ServedModel, name: str) -> str:
    if model.op:
        assert model.config is not None
        return str(model.config["backend"])
    op, _, version = model.graph.nodes[name].op.rpartition(":")
    return f"step {name}: {op} version {version}"


def _describe_feeds(model: ServedModel, name: str) -> list[str]:
    return [
        f"{tensor} as {feeds if isinstance(feeds, str) else ', '.join(feeds)}"
        for edge in model.graph.nodes[name].inputs
        for tensor, feeds in (edge.tensors or {}).items()
    ]


def _draw_arrows(
    model: ServedModel, places: dict[str, tuple[float, float]], answer_x: float, top: float
) -> Iterator[str]:
    graph = model.graph
    if model.op:
        x, y = places[model.op]
        yield _draw_arrow(places[REQUEST_OP], (x, y))
        yield _draw_arrow((x + _WIDTH, y), (answer_x, top + 12))
        return
    for name in graph.order:
        for edge in graph.nodes[name].inputs:
            if edge.tensors:
                source = places[edge.source]
                right = source if edge.source == REQUEST_OP else (source[0] + _WIDTH, source[1])
                yield _draw_arrow(right, places[name])
    for name in (graph.response, *graph.carried):
        x, y = places[name]
        yield _draw_arrow((x + _WIDTH, y), (answer_x, top + 12))


def _draw_arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = start, end
    bend = (x2 - x1) / 2
    return (
        f'<path d="M{x1:.1f} {y1:.1f} C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {x2 - 6:.1f} '
        f'{y2:.1f}" fill="none" stroke="{FAINT}"/>'
        f'<path d="M{x2:.1f} {y2:.1f} l-7 -3.5 v7 z" fill="{FAINT}"/>'
    )


def _draw_box(x: float, y: float, title: str, lines: Sequence[str], stroke: str) -> tuple[float, list[str]]:
    shown = [part for line in lines for part in _wrap_line(line, _MAX_CHARS)]
    height = 26 + len(shown) * _LINE
    frame = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{_WIDTH:g}" height="{height:g}" rx="6" fill="#ffffff" '
        f'stroke="{stroke}"><title>{escape(title)}</title></rect>'
    )
    parts = [frame, text(x + 10, y + 17, title[:_MAX_CHARS], INK, size=13)]
    parts += [text(x + 10, y + 36 + number * _LINE, line, FAINT) for number, line in enumerate(shown)]
    return height, parts


def _wrap_line(line: str, max_chars: int) -> list[str]:
    lines = [""]
    for word in line.split():
        if lines[-1] and len(lines[-1]) + len(word) >= max_chars:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _label_tensor(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.datatype} {list(spec.shape)}{' (optional)' if spec.optional else ''}"


_HINTS = (  # part of a reason, and the hint for it
    (
        "are not available or ambiguous",
        "put those models into the repository, or mend what is told of them above",
    ),
    ("mapping to non-existing", "take a name that the model has: its line above tells them"),
    ("is not mapped to any", "add an input_map for it, or make it optional: true in that model"),
    (
        "at least one version must be available",
        "make a folder 1 with the model's file, or change version_policy",
    ),
    ("unable to find '", "copy the file there, or name it in default_model_filename"),
    ("Could not determine backend", 'write backend: "onnxruntime", "python" or another'),
    ("in the configuration, and", "take the model's own; -1 is an axis of any length"),
    ("must specify 'dims'", "write dims: [ ... ] without the axis of rows that max_batch_size adds"),
    ("circular dependency", "an ensemble is made of others than itself: take a step out"),
    ("is not written", "map it in the output_map of the step that makes it"),
    ("is unused in ensemble", "map it in the input_map of a step, or leave it out"),
    ("is not used", "map it in the input_map of a step, or leave it out"),
    ("dynamic batching requires", "set max_batch_size, or take dynamic_batching out"),
    ("preferred size must be <=", "take a size up to max_batch_size"),
    ("there is no such folder", "make the folder, or correct the name"),
    ("can't be the name of a model", "rename the folder"),
    ("inconsistent data type", "give the tensor one data_type, or convert it in a Python model between"),
    ("inconsistent shape", "make the dims of both models agree; -1 is an axis of any length"),
)


class Explanation(NamedTuple):
    """The description of a model repository that `explain_repository` returns, as text and as a drawing."""

    text: str
    drawing: str  # SVG
    complete: bool  # whether every model can be served


def explain_repository(folders: Sequence[Path]) -> Explanation:
    """Read the model repositories in these folders, and describe their models and load errors.

    Raises ConfigError for a folder that can't be read. No worker starts, so errors in a Python model's
    `initialize` are not detected.
    """
    served = ModelRepository(tuple(folders)).read_models()
    parts = ["\n".join(_describe_model(model, served)) for model in served.models]
    parts += [
        "\n    ".join(
            [f"{name}: can't be served{f', version {why.version}' if why.version else ''}", *_add_hint(why)]
        )
        for name, why in served.unavailable.items()
    ]
    parts += served.notes
    batchers = [
        "; ".join(_describe_batching(model.op, served)) if model.op else "" for model in served.models
    ]
    errors = [(name, " ".join(_add_hint(why))) for name, why in served.unavailable.items()]
    drawing = draw_models(served.models, batchers, errors)
    if not parts:
        parts = [f"{' and '.join(map(str, folders))}: there is no model here"]
    return Explanation("\n\n".join(parts), drawing, bool(served.models) and not served.unavailable)


def _add_hint(why: UnavailableModel) -> list[str]:
    """Return the lines that report a load error: why the model can't be served, and known remedies."""
    return [why.reason, *(f"-> {hint}" for words, hint in _HINTS if words in why.reason)]


def _describe_model(model: ServedModel, served: RepositoryContent) -> Iterator[str]:
    signature = model.signature
    assert model.config is not None and signature is not None  # models of a repository have both
    backend = model.config["backend"] or "ensemble"
    yield f"{model.name} version {model.version}: {backend}"
    for kind, specs in (("takes", signature.inputs), ("gives", signature.outputs)):
        yield f"    {kind} {', '.join(map(_describe_tensor, specs)) or 'anything'}"
    if model.op:
        for line in _describe_batching(model.op, served):
            yield f"    {line}"
    else:
        yield from _describe_steps(model)


def _describe_tensor(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.datatype} {list(spec.shape)}{' (optional)' if spec.optional else ''}"


def _describe_batching(op: str, served: RepositoryContent) -> Iterator[str]:
    """Yield lines that describe the batching and padding of a model version.

    op: its name, "model:version".
    """
    yield _describe_batcher(served.sections[op])
    if op in served.padding:
        yield f"rows of unequal length: {served.padding[op]}"


def _describe_batcher(section: dict[str, Any]) -> str:
    place = " in one process" if section.get("placement") == "thread" else ""
    instances = f"{_format_count(section['concurrency'], 'instance')}{_describe_threads(section)}{place}; "
    if section["batch_size"] == 1:
        return instances + "each request is run alone (no dynamic_batching)"
    delay = section["auto_batching_timeout"]
    waits = f", a partial batch waits {delay:g} ms" if delay else ""
    rows = "rows of equal shape"
    if "padding" in section:
        max_length = section["padding"].get("max_length")
        rows = f"rows of any length{f' up to {max_length}' if max_length else ''}"
    return instances + f"{rows} share a run, {section['max_batch_rows']} at most{waits}"


def _describe_threads(section: dict[str, Any]) -> str:
    """Describe how many threads the engine of a model uses per instance; empty for a Python model.

    section: the model's section of config.yml.
    """
    if "local_service_conf" not in section:
        return ""
    conf = section["local_service_conf"]
    operators = conf.get("inter_op_thread_num", 1)
    threads = f" of {_format_count(conf['thread_num'], 'thread')}"
    return threads + (f", {operators} operators beside each other" if operators > 1 else "")


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"


def _describe_steps(model: ServedModel) -> Iterator[str]:
    graph = model.graph
    for name in graph.order:
        node = graph.nodes[name]
        op, _, version = node.op.rpartition(":")
        inputs = [
            f"{'request' if edge.source == REQUEST_OP else f'step {edge.source}'}.{tensor} as {feeds}"
            for edge in node.inputs
            for tensor, feeds in (edge.tensors or {}).items()
        ]
        yield f"    step {name}: {op} version {version} takes {', '.join(inputs)}"
    answers = {graph.response: graph.answer or {}, **graph.carried}
    outputs = [f"step {step}.{old} as {new}" for step, names in answers.items() for old, new in names.items()]
    yield f"    answers with {', '.join(outputs)}"

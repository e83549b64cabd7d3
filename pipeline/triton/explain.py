"""What a model repository comes to, as text: models, tensors, steps, batchers, and what can't be served."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.api.op import REQUEST_OP
from pipeline.api.served_models import ServedModel
from pipeline.models.tensor_spec import TensorSpec
from pipeline.triton.drawing import drawn
from pipeline.triton.repository import ModelRepository, Served, Unavailable

_HINTS = (  # by words of a reason
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
    ("names no backend", 'write backend: "onnxruntime", "python" or another'),
    ("in the configuration, and", "take the model's own; -1 is an axis of any length"),
    ("must specify 'dims'", "write dims: [ ... ] without the axis of rows that max_batch_size adds"),
    ("circular dependency", "an ensemble is made of others than itself: take a step out"),
    ("is made by no step", "map it in the output_map of the step that makes it"),
    ("is not used", "map it in the input_map of a step, or leave it out"),
    ("dynamic batching requires", "set max_batch_size, or take dynamic_batching out"),
    ("preferred size must be <=", "take a size up to max_batch_size"),
    ("there is no such folder", "make the folder, or correct the name"),
    ("can't be the name of a model", "rename the folder"),
    ("inconsistent data type", "give the tensor one data_type, or convert it in a Python model between"),
    ("inconsistent shape", "make the dims of both models agree; -1 is an axis of any length"),
)


class Explained(NamedTuple):
    """text: for people. drawing: the same as SVG. complete: whether every model can be served."""

    text: str
    drawing: str
    complete: bool


def explained(folders: Sequence[Path]) -> Explained:
    """What the folders come to. Raises ConfigError for one that can't be read.

    Workers are not started: a model whose own code fails at its start is not found out.
    """
    served = ModelRepository(tuple(folders)).read()
    parts = ["\n".join(_of_model(model, served)) for model in served.models]
    parts += [
        "\n    ".join(
            [f"{name}: can't be served{f', version {why.version}' if why.version else ''}", *_with_hint(why)]
        )
        for name, why in served.unavailable.items()
    ]
    parts += served.notes
    told = ["; ".join(_batching(model.op, served)) if model.op else "" for model in served.models]
    flaws = [(name, " ".join(_with_hint(why))) for name, why in served.unavailable.items()]
    drawing = drawn(served.models, told, flaws)
    if not parts:
        parts = [f"{' and '.join(map(str, folders))}: there is no model here"]
    return Explained("\n\n".join(parts), drawing, bool(served.models) and not served.unavailable)


def _with_hint(why: Unavailable) -> list[str]:
    """The reason, and what may be done about it."""
    return [why.reason, *(f"-> {hint}" for words, hint in _HINTS if words in why.reason)]


def _of_model(model: ServedModel, served: Served) -> Iterator[str]:
    signature = model.signature
    assert model.config is not None and signature is not None  # of a repository each has both
    backend = model.config["backend"] or "ensemble"
    yield f"{model.name} version {model.version}: {backend}"
    for kind, specs in (("takes", signature.inputs), ("gives", signature.outputs)):
        yield f"    {kind} {', '.join(map(_tensor, specs)) or 'anything'}"
    if model.op:
        for line in _batching(model.op, served):
            yield f"    {line}"
    else:
        yield from _steps(model)


def _tensor(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.datatype} {list(spec.shape)}{' (optional)' if spec.optional else ''}"


def _batching(op: str, served: Served) -> Iterator[str]:
    """How the batches of an Op form."""
    yield _batcher(served.sections[op])
    if op in served.padding:
        yield f"rows of unequal length: {served.padding[op]}"


def _batcher(section: dict[str, Any]) -> str:
    told = f"{_many(section['concurrency'], 'instance')}{_threads(section)}; "
    if section["batch_size"] == 1:
        return told + "each request is run alone (no dynamic_batching)"
    delay = section["auto_batching_timeout"]
    waits = f", a partial batch waits {delay:g} ms" if delay else ""
    rows = "rows of equal shape"
    if "padding" in section:
        max_length = section["padding"].get("max_length")
        rows = f"rows of any length{f' up to {max_length}' if max_length else ''}"
    return told + f"{rows} share a run, {section['max_batch_rows']} at most{waits}"


def _threads(section: dict[str, Any]) -> str:
    """How an engine runs the model; empty for one that runs itself."""
    if "local_service_conf" not in section:
        return ""
    conf = section["local_service_conf"]
    beside = conf.get("inter_op_thread_num", 1)
    told = f" of {_many(conf['thread_num'], 'thread')}"
    return told + (f", {beside} operators beside each other" if beside > 1 else "")


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"


def _steps(model: ServedModel) -> Iterator[str]:
    graph = model.graph
    for name in graph.order:
        node = graph.nodes[name]
        op, _, version = node.op.rpartition(":")
        given = [
            f"{'request' if edge.source == REQUEST_OP else f'step {edge.source}'}.{tensor} as {feeds}"
            for edge in node.inputs
            for tensor, feeds in (edge.tensors or {}).items()
        ]
        yield f"    step {name}: {op} version {version} takes {', '.join(given)}"
    answers = {graph.response: graph.answer or {}, **graph.carried}
    told = [f"step {step}.{old} as {new}" for step, names in answers.items() for old, new in names.items()]
    yield f"    answers with {', '.join(told)}"

"""What a model repository comes to, as text: models, tensors, steps, batchers, and what can't be served."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.api.op import REQUEST_OP
from pipeline.api.served_models import ServedModel
from pipeline.models.tensor_spec import TensorSpec
from pipeline.triton.repository import ModelRepository, Served


def explained(folders: Sequence[Path]) -> tuple[str, bool]:
    """The text, and whether every model can be served. Raises ConfigError for a folder that can't be read.

    Workers are not started: a model whose own code fails at its start is not found out.
    """
    served = ModelRepository(tuple(folders)).read()
    parts = ["\n".join(_of_model(model, served)) for model in served.models]
    parts += [
        f"{name}: can't be served{f', version {why.version}' if why.version else ''}\n    {why.reason}"
        for name, why in served.unavailable.items()
    ]
    parts += served.notes
    return "\n\n".join(parts), not served.unavailable


def _of_model(model: ServedModel, served: Served) -> Iterator[str]:
    signature = model.signature
    assert model.config is not None and signature is not None  # of a repository each has both
    backend = model.config["backend"] or "ensemble"
    yield f"{model.name} version {model.version}: {backend}"
    for kind, specs in (("takes", signature.inputs), ("gives", signature.outputs)):
        yield f"    {kind} {', '.join(map(_tensor, specs)) or 'anything'}"
    if model.op:
        yield f"    {_batcher(served.sections[model.op])}"
    else:
        yield from _steps(model)


def _tensor(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.datatype} {list(spec.shape)}{' (optional)' if spec.optional else ''}"


def _batcher(section: dict[str, Any]) -> str:
    count = section["concurrency"]
    told = f"{count} instance{'s' if count > 1 else ''}; "
    if section["batch_size"] == 1:
        return told + "each request is run alone (no dynamic_batching)"
    delay = section["auto_batching_timeout"]
    waits = f", a partial batch waits {delay:g} ms" if delay else ""
    lengths = "any length" if "padding" in section else "equal lengths"
    return told + f"rows of {lengths} share a run, {section['max_batch_rows']} at most{waits}"


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

"""Description of a model repository: models, tensors, steps, batching, and models that can't be served."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.api.op import REQUEST_OP
from pipeline.api.served_models import ServedModel
from pipeline.models.tensor_spec import TensorSpec
from pipeline.triton.drawing import draw_models
from pipeline.triton.repository import ModelRepository, RepositoryContent, UnavailableModel

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


class Explanation(NamedTuple):
    """A model repository as text and as a drawing."""

    text: str
    drawing: str  # SVG
    complete: bool  # whether every model can be served


def explain_repository(folders: Sequence[Path]) -> Explanation:
    """Describe the models in the folders. Raises ConfigError for a folder that can't be read.

    No worker starts, so errors in a Python model's `initialize` are not detected.
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
    """Return the reason, and the hint for it if there is one."""
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
    """Describe how the batches of an Op form."""
    yield _describe_batcher(served.sections[op])
    if op in served.padding:
        yield f"rows of unequal length: {served.padding[op]}"


def _describe_batcher(section: dict[str, Any]) -> str:
    instances = f"{_format_count(section['concurrency'], 'instance')}{_describe_threads(section)}; "
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
    """Describe the engine's threads; empty for a Python model."""
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

"""Loads a PyTorch model and names its inputs and outputs. In the conversion environment only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from convert.from_paddle.factory import call_factory, find_user_sources
from convert.from_torch.pretrained import TEXT_FEEDS, is_pretrained, load_pretrained, text_feeds
from convert.from_torch.torch_source import is_factory
from convert.output.staging import hash_sources
from convert.programs.engines import first_line
from convert.programs.file_model import FileModel, example_inputs, find_id_limits, run_once
from convert.programs.program_feeds import ProgramTensor, parse_input_spec
from convert.programs.torch_file import as_program_tensors, find_torch_file, read_file_signature
from convert.proof.proof_inputs import Inputs
from convert.proof.target import Target, create_specs_target
from convert.to_serving.notes import text_padding
from pipeline.errors import ConversionError
from pipeline.models.label_names import get_labels, get_task, is_multi_label


@dataclass(frozen=True)
class TorchModel:
    """A PyTorch model in evaluation mode, with its input and output names and example inputs."""

    model: Any
    positional: Any  # takes tensors in the order of `feeds`, returns a tuple in the order of `outputs`
    feeds: tuple[ProgramTensor, ...]
    outputs: tuple[str, ...]
    id_limits: Mapping[str, int]  # rows of the embedding that looks up a feed
    examples: tuple[Any, ...]  # inputs by position that the model runs
    other_examples: tuple[tuple[Any, ...], ...]  # of other shapes; the model may reject some
    file: Path | None = None  # of TorchScript or torch.export, if the model is such a file


class Positional(torch.nn.Module):  # type: ignore[misc]
    """Wraps a PyTorch model to take and return tensors by position, as exporters require."""

    def __init__(self, model: Any, names: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(names) if is_pretrained(model) else ()

    def forward(self, *tensors: Any) -> tuple[Any, ...]:
        return tuple(self.named(*tensors).values())

    def named(self, *tensors: Any) -> dict[str, Any]:
        """Run the model on tensors in the order of its inputs; return the output tensors by name."""
        if self.names:
            outputs = self.model(**dict(zip(self.names, tensors, strict=True)))
        else:
            outputs = self.model(*tensors)
        return _named_tensors(outputs)


def load_torch_model(source: str, input_spec: str, sample: Sequence[str] = ()) -> TorchModel:
    """Load a Hugging Face directory, a model file or the result of module:factory, and run it once.

    `input_spec` is optional for models of transformers with token ids, and for files that describe their
    inputs; `sample` are files with inputs for the run. Raises ConversionError for a model that can't be
    loaded or run.
    """
    if (file := find_torch_file(source)) is not None:
        return _load_file(file, source, input_spec, sample)
    model = _from_factory(source) if is_factory(source) else load_pretrained(Path(source))
    feeds = parse_input_spec(input_spec) if input_spec else text_feeds(model, source)
    # eval() on all parts: the ONNX exporter sets every part to the mode of the root.
    positional = Positional(model, [feed.name for feed in feeds]).eval()
    examples, *other_examples = _examples(source, feeds, sample)
    outputs, limits = _first_run(positional, feeds, examples)
    return TorchModel(model, positional, feeds, outputs, limits, examples, tuple(other_examples))


def _load_file(file: Path, source: str, input_spec: str, sample: Sequence[str]) -> TorchModel:
    declared, fetches = read_file_signature(file, input_spec)
    model = FileModel(file, declared, [fetch.name for fetch in fetches])
    feeds = as_program_tensors(declared)
    examples, *other_examples = _examples(source, feeds, sample)
    outputs = run_once(model, declared, examples)
    limits = find_id_limits(model, examples)
    return TorchModel(
        model.model, model, feeds, tuple(outputs), limits, examples, tuple(other_examples), file
    )


def torch_target(source: str, feeds: tuple[ProgramTensor, ...], id_limits: Mapping[str, int]) -> Target:
    """Return the input facts of a PyTorch model, from which `Inputs` makes random or sample inputs.

    For a Hugging Face directory and a model file, the facts include the folder of the tokenizer.
    """
    file = find_torch_file(source)
    folder = file.parent if file else None if is_factory(source) else Path(source)
    return create_specs_target(source, feeds, id_limits, folder)


def _examples(source: str, feeds: tuple[ProgramTensor, ...], sample: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return example inputs by position: a batch, and batches of other shapes.

    Without a sample the inputs are generated. From a sample: a batch, the batch with all dynamic axes
    doubled, and the batch with only the batch axis doubled. A batch with two rows or more is preferred.
    """
    if not sample:
        return [example_inputs(feeds, batch=2, length=4), example_inputs(feeds, batch=3, length=7)]
    batches = Inputs(sample=tuple(map(Path, sample))).batches(torch_target(source, feeds, {}))
    chosen = next((b for b in batches if all(len(np.atleast_1d(a)) > 1 for a in b.values())), batches[0])
    first = tuple(torch.from_numpy(chosen[feed.name].copy()) for feed in feeds)
    return [
        first,
        *(
            tuple(
                tensor.repeat([2 if dim < 0 and axis < axes else 1 for axis, dim in enumerate(feed.shape)])
                for feed, tensor in zip(feeds, first, strict=True)
            )
            for axes in (max(len(feed.shape) for feed in feeds), 1)
        ),
    ]


def model_fingerprint(model: TorchModel) -> str:
    """Return a hash of the model's class, config and weights, and of the user's own source files."""
    if model.file is not None:
        facts = {"feeds": [str(feed) for feed in model.feeds], "torch": torch.__version__}
        return hash_sources([model.file], {**facts, "outputs": model.outputs})
    weights = hashlib.sha256()
    for name, tensor in sorted(model.model.state_dict().items()):
        weights.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        weights.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    config = model.model.config.to_json_string() if is_pretrained(model.model) else ""
    facts = {
        "class": type(model.model).__qualname__,
        "config": config,
        "feeds": [str(feed) for feed in model.feeds],
        "torch": torch.__version__,
        "weights": weights.hexdigest(),
    }
    return hash_sources(find_user_sources(), facts)


def model_notes(model: TorchModel) -> dict[str, Any]:
    """Return the fields of model_notes.json for a PyTorch model, except the tokenizer's files.

    Fields that the model doesn't have are empty.
    """
    architecture, config = "", {}
    if is_pretrained(model.model):
        architecture = type(model.model).__name__
        config = json.loads(model.model.config.to_json_string(use_diff=False))
    feeds = [feed.name for feed in model.feeds]
    hidden = bool(config) and "attention_mask" in feeds and set(feeds) <= {*TEXT_FEEDS, "position_ids"}
    return {
        "task": get_task(architecture),
        "architecture": architecture,
        "labels": get_labels(config),
        "multi_label": is_multi_label(config),
        "padding": text_padding(feeds, int(config.get("pad_token_id") or 0)) if hidden else "",
        "outputs": model.outputs,
    }


def _from_factory(factory: str) -> Any:
    _, model = call_factory(factory)
    if not isinstance(model, torch.nn.Module):
        raise ConversionError(f"{factory} returned a {type(model).__name__}, not a torch.nn.Module.")
    return model


def _first_run(
    positional: Positional, feeds: Sequence[ProgramTensor], inputs: Sequence[Any]
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Run the model once.

    Returns its output names, and, for each input of ids, the number of ids in its embedding table.
    """
    places = {tensor.data_ptr(): feed.name for tensor, feed in zip(inputs, feeds, strict=True)}
    limits: dict[str, int] = {}

    def record_limit(embedding: Any, arguments: tuple[Any, ...]) -> None:
        name = places.get(arguments[0].data_ptr()) if arguments else None
        if name is not None:
            limits[name] = min(embedding.num_embeddings, limits.get(name, embedding.num_embeddings))

    embeddings = [module for module in positional.modules() if isinstance(module, torch.nn.Embedding)]
    hooks = [embedding.register_forward_pre_hook(record_limit) for embedding in embeddings]
    try:
        with torch.no_grad():
            outputs = positional.named(*inputs)
    except Exception as exc:
        text = ";".join(str(feed) for feed in feeds)
        raise ConversionError(
            f"the PyTorch model can't run {text!r} ({first_line(exc)}); give it inputs that suit it with "
            "--sample, or correct --input-spec."
        ) from exc
    finally:
        for hook in hooks:
            hook.remove()
    if not outputs:
        raise ConversionError(
            f"{type(positional.model).__name__} returns no tensors; return what is to be served."
        )
    return tuple(outputs), limits


def _named_tensors(outputs: Any) -> dict[str, Any]:
    """Return the tensors in the results of forward() by name, without caches and similar results."""
    if isinstance(outputs, torch.Tensor):
        return {"output": outputs}
    if isinstance(outputs, Mapping):
        named = dict(outputs)
    elif isinstance(outputs, list | tuple):
        named = {f"output_{number}": value for number, value in enumerate(outputs)}
    else:
        named = {}
    return {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}

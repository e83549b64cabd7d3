"""The config.pbtxt of each model of an exported repository."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from client.protos.kserve_v2_pb2 import ModelConfig
from pipeline.errors import ConfigError
from pipeline.models.dtypes import BY_NAME
from pipeline.models.onnx_file import OnnxFacts
from pipeline.models.serving_model import Variable
from pipeline.ops.text_tasks.text_task import MAX_ROWS, TRUNCATED, WINDOWS, TextTask
from pipeline.triton.export.postprocess import LENGTHS, PLACES, PROMPT_TOKENS, Postprocess
from pipeline.triton.model_folder import get_data_type
from pipeline.triton.padding_proof import load_padding_proof
from pipeline.triton.repository import PADDING

SCORES = "scores"
IDS, TYPES, MASK = "input_ids", "token_type_ids", "attention_mask"
MAX_BATCH_SIZE = 64  # rows of a request, and of a run


class Graph(NamedTuple):
    """Inputs and output of the ONNX model."""

    feeds: Mapping[str, Variable]  # by the tokenizer's output: IDS, TYPES, MASK
    scores: Variable
    padding: Mapping[str, float]  # padding value by the tokenizer's output; empty without a proof


def build_graph(task: TextTask, facts: OnnxFacts, program: Path) -> Graph:
    """Match the ONNX model's inputs with the tokenizer's outputs.

    Raises ConfigError for an input that the tokenizer does not produce, and for a fixed number of rows.
    """
    text_input, model = task.input, task.model
    kinds = {text_input.ids: IDS, text_input.types: TYPES, text_input.mask: MASK}
    alias_of = {feed.name: feed.alias for feed in model.feeds}
    feeds = {}
    for feed in facts.feeds:
        kind = kinds.get(alias_of.get(feed.name, feed.name))
        if kind is None or feed.shape[:1] != (-1,):
            raise ConfigError(
                f"{model.directory}: the feed {feed.name} of its ONNX form, {list(feed.shape)}, is none of "
                "ids, segments and mask of any number of texts"
            )
        feeds[kind] = feed
    scores = next(
        (fetch for fetch in facts.fetches if fetch.name in (task.fetch.name, task.fetch.alias)), None
    )
    if scores is None:
        raise ConfigError(f"{model.directory}: its ONNX form has no output {task.fetch.alias}")
    if model.padding:
        padded = {alias: rule.value for alias, rule in model.padding.feeds.items()}
        reached = model.padding.max_length
    else:
        proof = load_padding_proof(program, "onnxruntime")
        proven, reached = proof.feeds, proof.max_length
        padded = {alias_of.get(name, name): value for name, value in proven.items()}
    if reached is not None and reached < task.reading.max_tokens:
        padded = {}  # Triton pads all texts of a request, including the longest
    padding = {kinds[alias]: value for alias, value in padded.items() if alias in kinds}
    return Graph(feeds, scores, padding if set(padding) >= set(feeds) else {})


def build_tokenizer_config(name: str, task: TextTask, graph: Graph, post: Postprocess) -> ModelConfig:
    reading = task.reading
    settings = {
        "max_tokens": reading.max_tokens,
        "too_long": reading.too_long,
        "stride": reading.stride or 0,
        "max_windows": reading.max_windows,
        "most_rows": min(MAX_BATCH_SIZE, MAX_ROWS),
        "padding": json.dumps(graph.padding),
        **post.tokenizer,
    }
    config = _create_python_config(name, settings)
    for text_input in task.names:
        _add_tensor(config.input, text_input, "BYTES", (-1,))
    for kind, feed in graph.feeds.items():
        _add_tensor(config.output, kind, _datatype(feed), (-1, -1))
    for output in (WINDOWS, *_list_tokenizer_outputs(task), *post.rows):
        _add_tensor(config.output, output, *_ROWS[output])
    return config


def build_onnx_config(name: str, task: TextTask, graph: Graph) -> ModelConfig:
    config = ModelConfig(name=name, backend="onnxruntime", max_batch_size=MAX_BATCH_SIZE)
    for feed in graph.feeds.values():
        _add_tensor(config.input, feed.name, _datatype(feed), feed.shape[1:])
    _add_tensor(config.output, graph.scores.name, _datatype(graph.scores), graph.scores.shape[1:])
    config.dynamic_batching.SetInParent()
    if graph.padding:
        padding_rules = ",".join(f"{feed.name}={graph.padding[kind]:g}" for kind, feed in graph.feeds.items())
        config.parameters[PADDING].string_value = padding_rules
    return config


def build_postprocess_config(name: str, task: TextTask, graph: Graph, post: Postprocess) -> ModelConfig:
    config = _create_python_config(name, post.settings)
    _add_tensor(config.input, SCORES, _datatype(graph.scores), (-1, *graph.scores.shape[1:]))
    for text_input in task.names if post.texts else ():
        _add_tensor(config.input, text_input, "BYTES", (-1,))
    for tensor in (WINDOWS, *post.rows):
        _add_tensor(config.input, tensor, *_ROWS[tensor])
    for output, declaration in task.declared().items():
        if output not in _list_tokenizer_outputs(task):
            _add_tensor(config.output, post.renamed.get(output, output), *_parse_declaration(declaration))
    return config


def build_ensemble_config(name: str, task: TextTask, graph: Graph, post: Postprocess) -> ModelConfig:
    config = ModelConfig(name=name, platform="ensemble")
    for text_input in task.names:
        _add_tensor(config.input, text_input, "BYTES", (-1,))
    answers = {
        post.renamed.get(output, output): declaration for output, declaration in task.declared_all().items()
    }
    for output, declaration in answers.items():
        _add_tensor(config.output, output, *_parse_declaration(declaration))
    direct = [*_list_tokenizer_outputs(task), *(output for output in (WINDOWS,) if output in answers)]
    rows = {
        output: output if output in direct else f"tokenizer_{output}"
        for output in (WINDOWS, *_list_tokenizer_outputs(task), *post.rows)
    }
    feeds = {feed.name: f"tokenizer_{kind}" for kind, feed in graph.feeds.items()}
    texts = {text_input: text_input for text_input in task.names}
    token_tensors = {kind: f"tokenizer_{kind}" for kind in graph.feeds}
    _add_step(config, f"{name}_tokenizer", texts, token_tensors | rows)
    _add_step(config, f"{name}_model", feeds, {graph.scores.name: "model_scores"})
    post_inputs = {SCORES: "model_scores"} | {tensor: rows[tensor] for tensor in (WINDOWS, *post.rows)}
    post_inputs |= texts if post.texts else {}
    names = [post.renamed.get(output, output) for output in task.declared() if output not in direct]
    _add_step(config, f"{name}_postprocess", post_inputs, {output: output for output in names})
    return config


_ROWS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    WINDOWS: ("INT64", (-1,)),
    TRUNCATED: ("BOOL", (-1,)),
    LENGTHS: ("INT64", (-1,)),
    PROMPT_TOKENS: ("INT64", (-1,)),
    PLACES: ("INT64", (-1, -1, 3)),
}


def _list_tokenizer_outputs(task: TextTask) -> tuple[str, ...]:
    """Return the declared outputs that only the tokenizer can compute."""
    return tuple(output for output in (TRUNCATED,) if output in task.declared_all())


def _create_python_config(name: str, settings: Mapping[str, Any]) -> ModelConfig:
    config = ModelConfig(name=name, backend="python")
    config.instance_group.add(count=1, kind="KIND_CPU")
    for key, value in settings.items():
        config.parameters[key].string_value = str(value)
    return config


def _add_step(config: ModelConfig, model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
    config.ensemble_scheduling.step.add(
        model_name=model, model_version=-1, input_map=inputs, output_map=outputs
    )


def _add_tensor(tensors: Any, name: str, datatype: str, dims: Sequence[int]) -> None:
    tensors.add(name=name, data_type=get_data_type(datatype), dims=dims)


def _datatype(variable: Variable) -> str:
    return BY_NAME[variable.dtype].datatype


def _parse_declaration(declared: str) -> tuple[str, list[int]]:
    """Parse datatype and dims of a declaration like `BYTES [-1, -1]`."""
    datatype, _, shape = declared.partition(" ")
    return datatype, [int(length) for length in re.findall(r"-?\d+", shape)]

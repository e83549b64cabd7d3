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
from pipeline.ops.text_tasks.text_task import MOST_ROWS, TRUNCATED, WINDOWS, TextTask
from pipeline.triton.export.postprocess import LENGTHS, PLACES, PROMPT_TOKENS, Postprocess
from pipeline.triton.model_folder import get_data_type
from pipeline.triton.padding_proof import load_padding_proof
from pipeline.triton.repository import PADDING

SCORES = "scores"
IDS, TYPES, MASK = "input_ids", "token_type_ids", "attention_mask"
MOST_BATCH = 64  # rows of a request, and of a run


class Graph(NamedTuple):
    """The tensors of the ONNX model: its feeds by what they are of the tokenizer, and the scores."""

    feeds: Mapping[str, Variable]
    scores: Variable
    padding: Mapping[str, float]
    """What each feed is padded with, by what it is of the tokenizer; nothing where that is not proven."""


def build_graph(task: TextTask, facts: OnnxFacts, program: Path) -> Graph:
    """Raises ConfigError for a model that takes more than a tokenizer makes, or a fixed number of rows."""
    given, model = task.input, task.model
    kinds = {given.ids: IDS, given.types: TYPES, given.mask: MASK}
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
    scores = next((one for one in facts.fetches if one.name in (task.fetch.name, task.fetch.alias)), None)
    if scores is None:
        raise ConfigError(f"{model.directory}: its ONNX form has no output {task.fetch.alias}")
    if model.padding:
        padded = {alias: one.value for alias, one in model.padding.feeds.items()}
        reached = model.padding.max_length
    else:
        proof = load_padding_proof(program, "onnxruntime")
        proven, reached = proof.feeds, proof.max_length
        padded = {alias_of.get(name, name): value for name, value in proven.items()}
    if reached is not None and reached < task.reading.max_tokens:
        padded = {}  # Triton pads all texts of a request, the longest as well
    padding = {kinds[alias]: value for alias, value in padded.items() if alias in kinds}
    return Graph(feeds, scores, padding if set(padding) >= set(feeds) else {})


def tokenizer(name: str, task: TextTask, graph: Graph, post: Postprocess) -> ModelConfig:
    reading = task.reading
    settings = {
        "max_tokens": reading.max_tokens,
        "too_long": reading.too_long,
        "stride": reading.stride or 0,
        "max_windows": reading.max_windows,
        "most_rows": min(MOST_BATCH, MOST_ROWS),
        "padding": json.dumps(graph.padding),
        **post.tokenizer,
    }
    config = _python(name, settings)
    for one in task.names:
        _add(config.input, one, "BYTES", (-1,))
    for kind, feed in graph.feeds.items():
        _add(config.output, kind, _datatype(feed), (-1, -1))
    for one in (WINDOWS, *_list_tokenizer_outputs(task), *post.rows):
        _add(config.output, one, *_ROWS[one])
    return config


def onnx_model(name: str, task: TextTask, graph: Graph) -> ModelConfig:
    config = ModelConfig(name=name, backend="onnxruntime", max_batch_size=MOST_BATCH)
    for feed in graph.feeds.values():
        _add(config.input, feed.name, _datatype(feed), feed.shape[1:])
    _add(config.output, graph.scores.name, _datatype(graph.scores), graph.scores.shape[1:])
    config.dynamic_batching.SetInParent()
    if graph.padding:
        told = ",".join(f"{feed.name}={graph.padding[kind]:g}" for kind, feed in graph.feeds.items())
        config.parameters[PADDING].string_value = told
    return config


def postprocess(name: str, task: TextTask, graph: Graph, post: Postprocess) -> ModelConfig:
    config = _python(name, post.settings)
    _add(config.input, SCORES, _datatype(graph.scores), (-1, *graph.scores.shape[1:]))
    for one in task.names if post.texts else ():
        _add(config.input, one, "BYTES", (-1,))
    for one in (WINDOWS, *post.rows):
        _add(config.input, one, *_ROWS[one])
    for one, told in task.declared().items():
        if one not in _list_tokenizer_outputs(task):
            _add(config.output, post.renamed.get(one, one), *_parsed(told))
    return config


def ensemble(name: str, task: TextTask, graph: Graph, post: Postprocess) -> ModelConfig:
    config = ModelConfig(name=name, platform="ensemble")
    for one in task.names:
        _add(config.input, one, "BYTES", (-1,))
    answers = {post.renamed.get(one, one): told for one, told in task.declared_all().items()}
    for one, told in answers.items():
        _add(config.output, one, *_parsed(told))
    own = [*_list_tokenizer_outputs(task), *(one for one in (WINDOWS,) if one in answers)]
    rows = {
        one: one if one in own else f"tokenizer_{one}"
        for one in (WINDOWS, *_list_tokenizer_outputs(task), *post.rows)
    }
    feeds = {feed.name: f"tokenizer_{kind}" for kind, feed in graph.feeds.items()}
    texts = {one: one for one in task.names}
    made = {kind: f"tokenizer_{kind}" for kind in graph.feeds}
    _step(config, f"{name}_tokenizer", texts, made | rows)
    _step(config, f"{name}_model", feeds, {graph.scores.name: "model_scores"})
    read = {SCORES: "model_scores"} | {one: rows[one] for one in (WINDOWS, *post.rows)}
    read |= texts if post.texts else {}
    names = [post.renamed.get(one, one) for one in task.declared() if one not in own]

    _step(config, f"{name}_postprocess", read, {one: one for one in names})
    return config


_ROWS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    WINDOWS: ("INT64", (-1,)),
    TRUNCATED: ("BOOL", (-1,)),
    LENGTHS: ("INT64", (-1,)),
    PROMPT_TOKENS: ("INT64", (-1,)),
    PLACES: ("INT64", (-1, -1, 3)),
}


def _list_tokenizer_outputs(task: TextTask) -> tuple[str, ...]:
    """What the tokenizer alone knows of an answer."""
    return tuple(one for one in (TRUNCATED,) if one in task.declared_all())


def _python(name: str, settings: Mapping[str, Any]) -> ModelConfig:
    config = ModelConfig(name=name, backend="python")
    config.instance_group.add(count=1, kind="KIND_CPU")
    for key, value in settings.items():
        config.parameters[key].string_value = str(value)
    return config


def _step(config: ModelConfig, model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
    config.ensemble_scheduling.step.add(
        model_name=model, model_version=-1, input_map=inputs, output_map=outputs
    )


def _add(tensors: Any, name: str, datatype: str, dims: Sequence[int]) -> None:
    tensors.add(name=name, data_type=get_data_type(datatype), dims=dims)


def _datatype(variable: Variable) -> str:
    return BY_NAME[variable.dtype].datatype


def _parsed(declared: str) -> tuple[str, list[int]]:
    """Datatype and dims of a declaration like `BYTES [-1, -1]`."""
    datatype, _, shape = declared.partition(" ")
    return datatype, [int(one) for one in re.findall(r"-?\d+", shape)]

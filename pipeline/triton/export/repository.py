"""Export of a text service to a Triton repository of four models: tokenizer, ONNX, postprocess, ensemble.

NAME/                ensemble: texts to answers, with the tensors of the service
NAME_tokenizer/      texts to token ids (Python)
NAME_model/          token ids to scores (ONNX)
NAME_postprocess/    scores to answers (Python)
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from client.protos.kserve_v2_pb2 import ModelConfig
from pipeline.errors import ConfigError
from pipeline.models.onnx_file import OnnxFacts, inspect_onnx
from pipeline.models.protobuf_text import format_message
from pipeline.models.sentence_files import LAYERS_FILE
from pipeline.models.serving_model import ServingModel, Variable
from pipeline.models.tensor_spec import BY_NAME
from pipeline.models.variants import load_for_engine
from pipeline.ops.text_tasks.embeddings import EmbeddingTask
from pipeline.ops.text_tasks.entity_spans import parse_labels
from pipeline.ops.text_tasks.tasks import text_task
from pipeline.ops.text_tasks.text_task import MAX_ROWS, TRUNCATED, WINDOWS, TextTask
from pipeline.triton.export.standalone import bundle_module
from pipeline.triton.model_folder import get_data_type
from pipeline.triton.padding_proof import load_padding_proof
from pipeline.triton.repository import PADDING

LENGTHS, PLACES, PROMPT_TOKENS = "lengths", "places", "prompt_tokens"
"""Outputs of the tokenizer: tokens per row, token and characters of each place, tokens of the prompt."""


@dataclass(frozen=True)
class Postprocess:
    """Files and settings of NAME_postprocess, the Python model that turns scores into the answer."""

    module: str  # in `models/`
    settings: Mapping[str, Any]  # parameters in config.pbtxt
    files: Mapping[str, Any] = field(default_factory=dict)  # JSON files in the version's folder
    rows: tuple[str, ...] = ()  # outputs of the tokenizer that it needs in addition to `windows`
    texts: bool = False  # whether it needs the texts
    renamed: Mapping[str, str] = field(default_factory=dict)  # output names in the ensemble, by the service's
    copies: tuple[Path, ...] = ()  # files of the service's model to copy into the version's folder
    tokenizer: Mapping[str, Any] = field(default_factory=dict)  # additional settings of the tokenizer


def create_postprocess(task: TextTask) -> Postprocess:
    """Return the files and settings of the postprocessing model for a text task (classes, entities, ...).

    Raises ConfigError for a task that can't be exported.
    """
    kind = task.output.kind
    if kind not in _FACTORIES:
        reason = _UNSUPPORTED_REASONS.get(kind, "no model is written for it")
        raise ConfigError(
            f"a service of kind {kind} can't be exported: {reason}; exported are {', '.join(_FACTORIES)}"
        )
    return _FACTORIES[kind](task)


def _create_classes(task: TextTask) -> Postprocess:
    output = task.output
    settings = {
        "top_k": output.top_k or 0,  # 0: any number
        "threshold": output.threshold,
        "activation": output.activation,
        "pooling": output.pooling,
    }
    classes = task.fetch.shape[-1]
    if not len(task.labels) and classes < 1:
        raise ConfigError(f"{task.model.directory}: neither labels nor the number of classes is known")
    labels = task.get_class_names(len(task.labels) or classes)
    module = {"classes": "classes", "multilabel": "multi_label"}[output.kind]
    return Postprocess(module, settings, {"labels.json": labels.tolist()})


def _create_entities(task: TextTask) -> Postprocess:
    output = task.output
    tags = parse_labels(task.labels.tolist(), output.scheme, output.outside)
    settings = {"threshold": output.threshold, "text": task.name}
    # An ensemble can't have an input and an output with the same name.
    renamed = {"text": "entity"}
    return Postprocess("entities", settings, {"tags.json": tags}, (PLACES,), texts=True, renamed=renamed)


def _create_embedding(task: TextTask) -> Postprocess:
    assert isinstance(task, EmbeddingTask)
    output, sentence, layers = task.output, task.sentence, task.layers
    settings = {
        "poolings": json.dumps(task.poolings),
        "layers": json.dumps(layers),
        "normalize": output.normalize,
        "dimensions": output.dimensions or 0,  # 0: all
    }
    skips = () if sentence.include_prompt else (PROMPT_TOKENS,)
    copies = (task.model.directory / LAYERS_FILE,) if layers else ()
    prompts = {
        "prompts": json.dumps(sentence.prompts),
        "default_prompt": sentence.default_prompt,
        "lowercase": sentence.lowercase,
    }
    return Postprocess("embedding", settings, rows=(LENGTHS, *skips), copies=copies, tokenizer=prompts)


_FACTORIES: Mapping[str, Callable[[TextTask], Postprocess]] = {
    "classes": _create_classes,
    "multilabel": _create_classes,
    "entities": _create_entities,
    "embedding": _create_embedding,
}
_UNSUPPORTED_REASONS = {
    "zero-shot": "its labels come with each request as parameters, and the tokenizer of an ensemble makes "
    "as many rows as there are texts and labels",
    "similarity": "it reads the two texts of a pair as rows of their own; export the embeddings, and take "
    "the cosine of two of them",
    "relevance": "a query that is sent once for all texts has another number of rows than they have",
}


SCORES = "scores"
IDS, TYPES, MASK = "input_ids", "token_type_ids", "attention_mask"
MAX_BATCH_SIZE = 64  # rows of a request, and of a run


class Graph(NamedTuple):
    """Inputs and output of the exported ONNX model, and how its inputs are padded."""

    feeds: Mapping[str, Variable]  # by the tokenizer's output: IDS, TYPES, MASK
    scores: Variable
    padding: Mapping[str, float]  # padding value by the tokenizer's output; empty without a proof


def build_graph(task: TextTask, facts: OnnxFacts, program: Path) -> Graph:
    """Match the inputs of the ONNX model with the tokenizer's outputs: token ids, segment ids, mask.

    program: the ONNX file. Raises ConfigError for an input that the tokenizer does not produce, and for a
    fixed batch dimension.
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
    """Build the config.pbtxt of NAME_tokenizer, the Python model that turns texts into token ids."""
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
    """Build the config.pbtxt of NAME_model, the ONNX model, with dynamic batching."""
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
    """Build the config.pbtxt of NAME_postprocess, the Python model that turns scores into answers."""
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
    """Build the config.pbtxt of the ensemble, which connects tokenizer, ONNX model and postprocess."""
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
    """Return the outputs of the service that come straight from the tokenizer, such as `truncated`."""
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
    """Parse a tensor declaration such as `BYTES [-1, -1]`. Returns (datatype, dims)."""
    datatype, _, shape = declared.partition(" ")
    return datatype, [int(length) for length in re.findall(r"-?\d+", shape)]


TOKENIZER, MODEL, POSTPROCESS = "_tokenizer", "_model", "_postprocess"
_MODELS = "pipeline.triton.export.models"
_VERSION = "1"


def export_repository(
    name: str, model: ServingModel, out: Path, *, onnx: Path | None = None, force: bool = False
) -> list[str]:
    """Write the four Triton models of a text service into the model repository `out`. Returns their names.

    name: of the ensemble, and prefix of the other names. model: the model directory of the service, with its
    description in serving.yml. onnx: the ONNX file, if it is not in the directory. force: replace existing
    models. Raises ConfigError for a service that can't be exported, and for models that exist already.
    """
    task = text_task(model)
    if task is None:
        raise ConfigError(
            f"{name} is no service of texts with one answer: its inputs and outputs in "
            f"{model.directory / 'serving.yml'} do not say how texts become labels"
        )
    post = create_postprocess(task)
    program = onnx or _find_onnx(model)
    check_no_model_exists(out, name, force=force)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export.", dir=out) as work:
        _write_models(Path(work), name, task, post, program)
        for model_name in get_model_names(name):
            shutil.rmtree(out / model_name, ignore_errors=True)
            (Path(work) / model_name).rename(out / model_name)
    return get_model_names(name)


def get_model_names(name: str) -> list[str]:
    """Return the names of the four Triton models of an exported service; the first is the ensemble."""
    return [name, *(name + end for end in (TOKENIZER, MODEL, POSTPROCESS))]


def _write_models(work: Path, name: str, task: TextTask, post: Postprocess, program: Path) -> None:
    facts = inspect_onnx(program)
    graph = build_graph(task, facts, program)
    config = build_tokenizer_config(f"{name}{TOKENIZER}", task, graph, post)
    tokenizer = _write_model(work / f"{name}{TOKENIZER}", config, "tokenizer")
    task.library_tokenizer().save(str(tokenizer / "tokenizer.json"))
    onnx = _write_model(work / f"{name}{MODEL}", build_onnx_config(f"{name}{MODEL}", task, graph))
    shutil.copyfile(program, onnx / "model.onnx")
    for file in facts.data_files:
        (onnx / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(program.parent / file, onnx / file)
    config = build_postprocess_config(f"{name}{POSTPROCESS}", task, graph, post)
    last = _write_model(work / f"{name}{POSTPROCESS}", config, post.module)
    for file, content in post.files.items():
        (last / file).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", "utf-8")
    for path in post.copies:
        shutil.copyfile(path, last / path.name)
    _write_model(work / name, build_ensemble_config(name, task, graph, post))


def _write_model(folder: Path, config: ModelConfig, module: str = "") -> Path:
    """Write a model's config.pbtxt, and model.py for a Python model. Returns the folder of its version.

    module: the name of a module in `pipeline.triton.export.models`; empty for other backends.
    """
    version = folder / _VERSION
    version.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(format_message(config), "utf-8")
    if module:
        (version / "model.py").write_text(bundle_module(f"{_MODELS}.{module}"), "utf-8")
    elif not config.backend:  # the version folder of an ensemble is empty
        (version / ".keep").touch()
    return version


def _find_onnx(model: ServingModel) -> Path:
    """Return the ONNX file of a model directory. Raises ConfigError if there is none."""
    try:
        return load_for_engine(model.directory, "onnxruntime").program
    except ConfigError as exc:
        raise ConfigError(
            f"{model.directory} has no ONNX form, which is what Triton runs: `paddlewheel convert "
            f"to-onnx {model.directory} OUT` makes one; name it by --onnx OUT/model.onnx"
        ) from exc


def check_no_model_exists(out: Path, name: str, *, force: bool) -> None:
    """Raise ConfigError if `out` already has a model that the export would write, unless `force` is set."""
    present = [str(out / model_name) for model_name in get_model_names(name) if (out / model_name).exists()]
    if present and not force:
        raise ConfigError(f"there already: {', '.join(present)}; --force replaces what is there")

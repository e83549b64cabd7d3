"""The registry of text tasks, by the `kind` of output in serving.yml, and the choice of a model's task."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.errors import ConfigError
from pipeline.models.description import OUTPUTS_KEY, TensorOutput, TextInput
from pipeline.models.serving_model import ADDITIONS, ServingModel, Variable
from pipeline.ops.text_tasks.classification import ClassesTask, MultiLabelTask, RelevanceTask, ZeroShotTask
from pipeline.ops.text_tasks.embeddings import EmbeddingTask, SimilarityTask
from pipeline.ops.text_tasks.labelling import EntitiesTask
from pipeline.ops.text_tasks.text_task import TextTask, is_task_output

TASKS: Mapping[str, type[TextTask]] = {
    "classes": ClassesTask,
    "multilabel": MultiLabelTask,
    "entities": EntitiesTask,
    "zero-shot": ZeroShotTask,
    "embedding": EmbeddingTask,
    "similarity": SimilarityTask,
    "relevance": RelevanceTask,
}
_OF_TEXTS_ALONE = ("entities", "zero-shot", "embedding", "similarity", "relevance")
_OF_PAIRS_ALONE = ("similarity", "relevance")


def text_task(model: ServingModel) -> TextTask | None:
    """Return the text task of a model whose only input is text and that has one output.

    None for other models. Raises ConfigError for a setting in serving.yml that only such models can have.
    """
    description = model.description
    texts = [item for item in description.inputs.items() if isinstance(item[1], TextInput)]
    outputs = {
        name: output for name, output in description.outputs.items() if not isinstance(output, TensorOutput)
    }
    tokenized = [
        (name, text_input)
        for name, text_input in texts
        if isinstance(text_input, TextInput) and not text_input.feed
    ]
    if len(tokenized) == len(description.inputs) == len(outputs) == len(description.outputs) == 1:
        ((name, text_input),), ((alias, output),) = tokenized, outputs.items()
        if output.kind in TASKS and is_task_output(output):
            (fetch,) = (variable for variable in model.fetches if variable.alias == alias)
            return _made(TASKS[output.kind], name, text_input, output, fetch, model)
    _refuse_without_task(model, [text_input for _, text_input in tokenized])
    return None


def _made(
    kind: type[TextTask],
    name: str,
    text_input: TextInput,
    output: object,
    fetch: Variable,
    model: ServingModel,
) -> TextTask:
    if text_input.pair and not kind.pairs:
        raise ConfigError(f"{model.directory / ADDITIONS}: inputs.{name}.pair: this task reads single texts")
    if not text_input.pair and kind in (TASKS[output_kind] for output_kind in _OF_PAIRS_ALONE):
        raise ConfigError(
            f"{model.directory / ADDITIONS}: inputs.{name}.pair: this task reads pairs; name the second text"
        )
    return kind(name, text_input, output, fetch, model)


def _refuse_without_task(model: ServingModel, texts: list[TextInput]) -> None:
    where = model.directory / ADDITIONS
    kinds = {name: output.kind for name, output in model.description.outputs.items()}
    only = next((name for name, kind in kinds.items() if kind in _OF_TEXTS_ALONE), None)
    alone = "goes with one input of texts that are tokenized, and no other output"
    if only is not None:
        raise ConfigError(f"{where}: {OUTPUTS_KEY}.{only}: kind {kinds[only]} {alone}")
    if any(text_input.pair or text_input.too_long == "windows" for text_input in texts):
        raise ConfigError(
            f"{where}: a text with `pair` or windows goes with one output of labels, without `raw`"
        )

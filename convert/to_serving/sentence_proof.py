"""Compares the sentence embeddings of a serving model with the embeddings that its source computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convert.programs.program_feeds import Array
from convert.proof.parity import ParityReport, compare
from convert.result import ConversionOptions
from pipeline.config.config_file import LocalServiceConf
from pipeline.engines import create_predictor
from pipeline.errors import ConfigError
from pipeline.models.serving_model import SERVER_FOLDER, load_serving_model, merge_model_settings
from pipeline.ops.text_files import EMBEDDINGS, TextSettings, described_texts
from pipeline.ops.text_tasks.embeddings import EmbeddingTask
from pipeline.ops.text_tasks.tasks import text_task

NOT_COMPARED = "The vectors of texts are not compared with the source's"


def sentence_parity(
    directory: Path, proof: Mapping[str, Sequence[Any]], options: ConversionOptions
) -> tuple[ParityReport, ...]:
    """Compare a converted model's text embeddings, from tokenizer to pooling, with the source's embeddings.

    proof: lists of "texts", "prompts" and expected "vectors". Returns the report. If this environment can't
    read the tokenizer, the reason is printed and the result is empty. Raises ParityError if the embeddings
    differ.
    """
    options.steps.step("Parity of sentence vectors")
    try:
        make_vector = _load_vectors(directory / SERVER_FOLDER)
    except (ConfigError, ImportError) as exc:
        options.steps.say(f"{NOT_COMPARED}: {exc}")
        return ()
    requests = zip(proof["texts"], proof["prompts"], strict=True)
    expected = iter(np.array([vector], np.float32) for vector in proof["vectors"])
    report = compare(
        "sentence vectors",
        ["embedding"],
        lambda feeds: [next(expected)],
        lambda feeds: [make_vector(str(feeds["text"][0]), str(feeds["prompt"][0]))],
        [{"text": np.array([text], object), "prompt": np.array([name], object)} for text, name in requests],
        options.tolerance,
    )
    report.require()
    return (report,)


def _load_vectors(folder: Path) -> Any:
    """Return a function that computes the embedding of a text with a prompt, as a service does.

    Raises ConfigError if the model's tokenizer or settings are unusable.
    """
    model = described_texts(load_serving_model(folder), TextSettings(EMBEDDINGS, too_long="truncate"))
    task = text_task(model)
    assert isinstance(task, EmbeddingTask)
    task.load()
    conf = LocalServiceConf.model_validate({"model_config": str(folder)})
    predictor = create_predictor(model, merge_model_settings(model, conf))

    def make_vector(text: str, prompt: str) -> Array:
        rows = task.rows({task.name: [text]}, {"prompt_name": prompt})
        fetches = [predictor.run(feeds)[task.fetch.alias] for feeds in task.feeds(rows)]
        return task.vectors(rows, fetches)

    return make_vector

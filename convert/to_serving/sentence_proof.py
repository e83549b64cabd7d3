"""Whether a serving model makes the vectors of texts that its source makes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convert.programs.program_feeds import Array
from convert.proof.parity import compare
from convert.proof.parity_report import ParityReport
from convert.result import ConversionOptions
from pipeline.config.config_file import LocalServiceConf
from pipeline.engines import create_predictor
from pipeline.errors import ConfigError
from pipeline.models.serving_model import SERVER_FOLDER, load_serving_model, merge_model_settings
from pipeline.ops.text_files import EMBEDDINGS, TextSettings, described_texts
from pipeline.ops.text_tasks.embeddings import EmbeddingTask
from pipeline.ops.text_tasks.tasks import text_task


def sentence_parity(
    directory: Path, proof: Mapping[str, Any], options: ConversionOptions
) -> tuple[ParityReport, ...]:
    """Compare the vectors of some texts: tokens, prompt, cut and pooling count, besides the model itself.

    Without a tokenizer that this environment can read there is nothing to compare, which is said.
    """
    options.steps.step("Parity of sentence vectors")
    try:
        vector = _load_vectors(directory / SERVER_FOLDER)
    except (ConfigError, ImportError) as exc:
        options.steps.say(f"The vectors of texts are not compared with the source's: {exc}")
        return ()
    texts = [np.array([text], object) for text in proof["texts"]]
    expected = iter(np.array([vector], np.float32) for vector in proof["vectors"])
    report = compare(
        "sentence vectors",
        ["embedding"],
        lambda feeds: [next(expected)],
        lambda feeds: [vector(feeds["text"][0])],
        [{"text": text} for text in texts],
        options.tolerance,
    )
    report.require()
    return (report,)


def _load_vectors(folder: Path) -> Any:
    """Return what makes the vector of a text, as a service does. Raises ConfigError where none can."""
    model = described_texts(load_serving_model(folder), TextSettings(EMBEDDINGS, too_long="truncate"))
    task = text_task(model)
    assert isinstance(task, EmbeddingTask)
    task.load()
    conf = LocalServiceConf.model_validate({"model_config": str(folder)})
    predictor = create_predictor(model, merge_model_settings(model, conf))

    def vector(text: str) -> Array:
        asked = task.rows({task.name: [text]}, {})
        fetches = [predictor.run(feeds)[task.fetch.alias] for feeds in task.feeds(asked)]
        return task.vectors(asked, fetches)

    return vector

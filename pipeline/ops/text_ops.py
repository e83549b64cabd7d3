"""Ops for text tasks, without user code: classification, entities, zero-shot labels, embeddings, reranking.

    ClassificationOp(name="news", input_ops=[read_op], top_k=3)

Task, labels and tokenizer are found in the model's files. Arguments, which are those of `TextSettings`, add
to or replace these settings. Hooks may be overridden like those of any other Op.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from pipeline.api.app import App
from pipeline.api.op import Op, RequestOp
from pipeline.api.service import WebService
from pipeline.models.serving_model import ServingModel
from pipeline.ops.described import DescribedOp
from pipeline.ops.text_files import (
    CLASSIFICATION,
    EMBEDDINGS,
    LABELLING,
    RERANKING,
    ZERO_SHOT,
    TextSettings,
    described_texts,
)

_SETTINGS = tuple(field.name for field in fields(TextSettings))


class TextOp(DescribedOp):
    """A service step (Op) without user code: serves a text model by the task found in the model's files."""

    task: ClassVar[str] = ""
    """The task where no argument says one; empty: the model's own."""

    def __init__(
        self, name: str | None = None, input_ops: Sequence[Op] | Op | None = None, **options: Any
    ) -> None:
        """`options` are the fields of `TextSettings` and the arguments of Op."""
        settings = {key: options.pop(key) for key in _SETTINGS if key in options}
        for key in ("labels", "candidates"):
            settings[key] = tuple(settings.get(key, ()))
        self.settings = TextSettings(**{"task": self.task, **settings})
        super().__init__(name, input_ops, **options)

    def described(self, model: ServingModel) -> ServingModel:
        return described_texts(model, self.settings)


class ClassificationOp(TextOp):
    """Classifies texts or pairs of texts: returns the best classes.

    With `task="multi-label"`, returns all classes over a threshold.
    """

    task = CLASSIFICATION


class LabellingOp(TextOp):
    """Finds the named entities in texts (token classification)."""

    task = LABELLING


class ZeroShotOp(TextOp):
    """Classifies texts by labels that the request provides, with a natural language inference (NLI) model."""

    task = ZERO_SHOT


class EmbeddingOp(TextOp):
    """Computes the embedding vectors of texts.

    The same Op answers requests in the protocols of OpenAI (`/v1/embeddings`) and TEI (`/embed`).
    """

    task = EMBEDDINGS


class RerankingOp(TextOp):
    """Scores the relevance of texts to a query, with a cross-encoder.

    The same Op answers requests in TEI's protocol (`/rerank`).
    """

    task = RERANKING


class TextService(WebService):
    """A service of one text model, started from command-line options without a script or config.yml."""

    def __init__(self, name: str, settings: TextSettings) -> None:
        super().__init__(name)
        self._settings = settings

    def get_pipeline_response(self, read_op: RequestOp) -> Op:
        return TextOp(name=self.name, input_ops=[read_op], **asdict(self._settings))

    def as_app(self) -> App:
        arguments = (self.name, json.dumps(asdict(self._settings)))
        script = str(Path(__file__).resolve())
        return replace(super().as_app(), script=script, module="pipeline.ops.text_ops", arguments=arguments)


def service_config(
    name: str, model: Path, *, http_port: int, rpc_port: int, engine: str
) -> Mapping[str, Any]:
    """Return the configuration of a service with a single text model, in the form of config.yml."""
    return {
        "http_port": http_port,
        "rpc_port": rpc_port,
        "dag": {"http_errors": "status", "request_timeout": 30},
        "op": {
            name: {
                "concurrency": 1,
                "batch_size": "auto" if engine == "auto" else 32,
                "local_service_conf": {
                    "engine": engine,
                    "client_type": "local_predictor",
                    "model_config": str(model),
                    "device_type": 0,
                    "thread_num": 2,
                },
            }
        },
    }


if __name__ == "__main__":  # in a worker
    TextService(sys.argv[1], TextSettings(**json.loads(sys.argv[2]))).serve()

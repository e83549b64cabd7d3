"""Ops of texts that need no code: classes, entities, the caller's own labels, vectors or ranks come out.

    ClassificationOp(name="news", input_ops=[read_op], top_k=3)

Task, labels and tokenizer are found in the model's files; arguments say what they don't, or say it otherwise:
those of `TextSettings`. Hooks may be overridden as those of any other Op.
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
    """Does with texts what the model is for."""

    task: ClassVar[str] = ""
    """The task where no argument says one; empty: the model's own."""

    def __init__(
        self, name: str | None = None, input_ops: Sequence[Op] | Op | None = None, **options: Any
    ) -> None:
        """options: those of `TextSettings`, and those of Op."""
        settings = {key: options.pop(key) for key in _SETTINGS if key in options}
        for key in ("labels", "candidates"):
            settings[key] = tuple(settings.get(key, ()))
        self.settings = TextSettings(**{"task": self.task, **settings})
        super().__init__(name, input_ops, **options)

    def described(self, model: ServingModel) -> ServingModel:
        return described_texts(model, self.settings)


class ClassificationOp(TextOp):
    """Texts, or pairs of texts, to the best of the model's classes; `task="multi-label"`: to any number."""

    task = CLASSIFICATION


class LabellingOp(TextOp):
    """Texts to the entities in them."""

    task = LABELLING


class ZeroShotOp(TextOp):
    """Texts to labels of the caller's own, by a model of natural language inference."""

    task = ZERO_SHOT


class EmbeddingOp(TextOp):
    """Texts to vectors; OpenAI's `/v1/embeddings` and TEI's `/embed` answer with them, too."""

    task = EMBEDDINGS


class RerankingOp(TextOp):
    """Pairs of a query and a text to their relevance, by a cross-encoder; TEI's `/rerank`, too."""

    task = RERANKING


class TextService(WebService):
    """Serves one model; nothing of it is in files."""

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
    """Return the configuration of the service, as config.yml would have it."""
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

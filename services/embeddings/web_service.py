"""Texts to vectors: `python3 web_service.py` serves the model that config.yml names."""

from pathlib import Path

from pipeline import WebService
from pipeline.ops.text_ops import EmbeddingOp
from pipeline.script import prepare_from_arguments


class EmbeddingService(WebService):
    def get_pipeline_response(self, read_op):
        return EmbeddingOp(name="embeddings", input_ops=[read_op], too_long="truncate")


if __name__ == "__main__":
    service = EmbeddingService(name="embeddings")
    prepare_from_arguments(service, Path(__file__).resolve().parent / "config.yml")
    service.run_service()

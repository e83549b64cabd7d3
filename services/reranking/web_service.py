"""Texts to their relevance for a query: `python3 web_service.py` serves the model that config.yml names."""

from pathlib import Path

from pipeline import WebService
from pipeline.ops.text_ops import RerankingOp
from pipeline.script import prepare_from_arguments


class RerankingService(WebService):
    def get_pipeline_response(self, read_op):
        return RerankingOp(name="reranking", input_ops=[read_op], too_long="truncate")


if __name__ == "__main__":
    service = RerankingService(name="reranking")
    prepare_from_arguments(service, Path(__file__).resolve().parent / "config.yml")
    service.run_service()

"""Headlines to topics: `python3 web_service.py` serves the model that train.py has made."""

from pathlib import Path

from pipeline import WebService
from pipeline.ops.text_ops import ClassificationOp
from pipeline.script import prepare_from_arguments


class NewsService(WebService):
    def get_pipeline_response(self, read_op):
        return ClassificationOp(name="news_classification", input_ops=[read_op], top_k=3, too_long="windows")


if __name__ == "__main__":
    service = NewsService(name="news_classification")
    prepare_from_arguments(service, Path(__file__).resolve().parent / "config.yml")
    service.run_service()

"""Texts to classes: `python3 web_service.py` serves the model that config.yml names."""

from pathlib import Path

from pipeline import WebService
from pipeline.ops.text_ops import ClassificationOp
from pipeline.script import prepare_from_arguments


class ClassificationService(WebService):
    def get_pipeline_response(self, read_op):
        return ClassificationOp(name="text_classification", input_ops=[read_op], top_k=3, too_long="windows")


if __name__ == "__main__":
    service = ClassificationService(name="text_classification")
    prepare_from_arguments(service, Path(__file__).resolve().parent / "config.yml")
    service.run_service()

"""Texts to the entities in them: `python3 web_service.py` serves the model that config.yml names."""

from pathlib import Path

from pipeline import WebService
from pipeline.ops.text_ops import LabellingOp
from pipeline.script import prepare_from_arguments


class LabellingService(WebService):
    def get_pipeline_response(self, read_op):
        return LabellingOp(name="sequence_labelling", input_ops=[read_op], too_long="windows")


if __name__ == "__main__":
    service = LabellingService(name="sequence_labelling")
    prepare_from_arguments(service, Path(__file__).resolve().parent / "config.yml")
    service.run_service()

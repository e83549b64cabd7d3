"""Texts to each caller's own labels: `python3 web_service.py` serves the NLI model that config.yml names."""

from pathlib import Path

from pipeline import WebService
from pipeline.ops.text_ops import ZeroShotOp
from pipeline.script import prepare_from_arguments


class ZeroShotService(WebService):
    def get_pipeline_response(self, read_op):
        return ZeroShotOp(name="zero_shot", input_ops=[read_op], too_long="windows")


if __name__ == "__main__":
    service = ZeroShotService(name="zero_shot")
    prepare_from_arguments(service, Path(__file__).resolve().parent / "config.yml")
    service.run_service()

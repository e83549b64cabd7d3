"""Windows of audio to probabilities of speech: `python3 web_service.py` serves the model that config.yml names."""

from pathlib import Path

from pipeline import WebService
from pipeline.ops.described import DescribedOp
from pipeline.script import prepare_from_arguments


class VoiceActivityOp(DescribedOp):
    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        return self.feeds_of(inputs)

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return self.answer_of(fetch_dict)


class VoiceActivityService(WebService):
    def get_pipeline_response(self, read_op):
        return VoiceActivityOp(name="voice_activity", input_ops=[read_op])


if __name__ == "__main__":
    service = VoiceActivityService(name="voice_activity")
    prepare_from_arguments(service, Path(__file__).resolve().parent / "config.yml")
    service.run_service()

"""Windows of audio to probabilities of speech: `python3 web_service.py` serves the model of config.yml."""

from pathlib import Path

from pipeline import Op, WebService
from pipeline.script import prepare_from_arguments


class VoiceActivityOp(Op):
    input_tensors = {"input": "FP32 [-1, 576]"}
    output_tensors = {"output": "FP32 [-1, 1]"}

    def preprocess(self, input_dicts, data_id, log_id):
        (request,) = input_dicts.values()
        return {"input": request["input"]}

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {"output": fetch_dict["output"]}


class VoiceActivityService(WebService):
    def get_pipeline_response(self, read_op):
        return VoiceActivityOp(name="voice_activity", input_ops=[read_op])


if __name__ == "__main__":
    service = VoiceActivityService(name="voice_activity")
    prepare_from_arguments(service, Path(__file__).resolve().parent / "config.yml")
    service.run_service()

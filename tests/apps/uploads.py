"""An Op that answers which inputs a request has, and how many bytes each file has."""

import os

from pipeline import InvalidInput, Op, WebService


class FilesOp(Op):
    input_tensors = {"sound": "BYTES [1]", "picture": "BYTES [1]"}
    output_tensors = {"inputs": "BYTES [-1]"}
    raw_bodies = {"audio/wav": "sound", "image/*": "picture"}
    example_bodies = {"audio/wav": b"RIFF\x04\x00\x00\x00WAVE", "image/png": b"\x89PNG\r\n\x1a\n"}

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        (inputs,) = input_dicts.values()
        if not inputs:
            raise InvalidInput("send a file or a text")
        return {
            "inputs": [
                f"{name}: {value if isinstance(value, str) else len(value)}"
                for name, value in sorted(inputs.items())
            ]
        }


class FilesService(WebService):
    def get_pipeline_response(self, read_op):
        return FilesOp(name="op", input_ops=[read_op])


service = FilesService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

"""An Op that answers which inputs a request has, and how many bytes each file has."""

import os

from pipeline import Op, WebService


class FilesOp(Op):
    input_tensors = {"sound": "BYTES [1]", "picture": "BYTES [1]"}
    output_tensors = {"inputs": "BYTES [-1]"}
    raw_bodies = {"audio/wav": "sound", "image/*": "picture"}

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        (inputs,) = input_dicts.values()
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

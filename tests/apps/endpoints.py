"""One Op that every endpoint may ask: doubles `numbers`, an array or a text such as "1 2".

The number -1 waits in preprocess for the file GATE of the environment. `rows` of an answer says how many rows
shared its run.
"""

import os
import time
from pathlib import Path

import numpy as np

from pipeline import Op, WebService


class DoublingOp(Op):
    input_tensors = {"numbers": "INT64 [-1]"}
    output_tensors = {"doubled": "INT64 [-1]", "rows": "INT64 [-1]"}

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        (inputs,) = input_dicts.values()
        given = inputs["numbers"]
        numbers = np.array(given.split(), np.int64) if isinstance(given, str) else given
        if numbers[0] == -1:
            gate = Path(os.environ["GATE"])
            Path(f"{gate}.waiting").touch()
            while not gate.exists():
                time.sleep(0.005)
        return {"numbers": numbers}

    def process(self, feed_batch, typical_logid=0):
        numbers = feed_batch[0]["numbers"]
        return {"doubled": numbers * 2, "rows": np.full(len(numbers), len(numbers))}


class DoublingService(WebService):
    def get_pipeline_response(self, read_op):
        return DoublingOp(name="double", input_ops=[read_op])


service = DoublingService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

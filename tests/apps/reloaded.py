"""One Op without a model that answers with what state.py beside it held when its worker started.

It does not start while that is "broken". `number` comes back doubled; `wait` waits for the file it names.
"""

import os
import time
from pathlib import Path

import numpy as np

from pipeline import Op, WebService


class ReloadedOp(Op):
    def init_op(self):
        self.state = Path(__file__).with_name("state.py").read_text()
        if self.state == "broken":
            raise ValueError("the state is broken")

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        (inputs,) = input_dicts.values()
        gate = inputs.get("wait")
        if gate:
            Path(gate + ".waiting").touch()
            while not Path(gate).exists():
                time.sleep(0.005)
        return {"number": np.array([[int(inputs["number"])]])}

    def process(self, feed_batch, typical_logid=0):
        return {"doubled": feed_batch[0]["number"] * 2}, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id=0, log_id=0):
        return {"doubled": str(fetch_dict["doubled"].item()), "state": self.state, "pid": str(os.getpid())}


class ReloadedService(WebService):
    def get_pipeline_response(self, read_op):
        return ReloadedOp(name="op", input_ops=[read_op])


service = ReloadedService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

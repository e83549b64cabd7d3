"""Both ends of a remote Op; the first argument names which.

`ask`: Ops without a model of their own, one after the other, with the names that follow; a request says
under `op` which one it is for (`ask` without), the others pass it on. Inputs are sent as they are, or those
under `arrays`, a JSON of {name: [dtype, nested list]}, as arrays. The answer is JSON: texts, arrays as nested
lists. With `gate` a request waits for that file before it is sent. TENSORS in the environment sends tensors.

`told`: answers with what it was sent, and with its process id; `told tensors` answers with tensors.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from client.protos.pipeline_service_pb2 import Response
from pipeline import Op, PipelineServer, ProductError, RequestOp, ResponseOp
from pipeline.wire.paddle_tensors import to_message


class AskingOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        ((_, inputs),) = input_dicts.items()
        if inputs.get("op", "ask") != self.name:
            return inputs, True, None, ""
        inputs = {name: value for name, value in inputs.items() if name != "op"}
        self.asked = True
        wait_for(inputs.pop("gate", None))
        if "arrays" in inputs:
            arrays = json.loads(inputs["arrays"])
            inputs = {name: np.array(values, dtype) for name, (dtype, values) in arrays.items()}
        return inputs, False, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        if not hasattr(self, "asked"):
            return fetch_dict, None, ""
        values = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in fetch_dict.items()}
        return {key: json.dumps(value, default=bytes.decode) for key, value in values.items()}, None, ""


class TellingOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        inputs = input_dicts["@DAGExecutor"]
        if "refuse" in inputs:
            raise ProductError(inputs["refuse"], err_no=57)
        wait_for(inputs.get("wait"))
        if sys.argv[2:] == ["tensors"]:
            return {"doubled": inputs["x"] * 2, "half": np.array([0.5], "float32")}, False, None, ""
        told = {name: value if isinstance(value, str) else repr(value) for name, value in inputs.items()}
        return {**told, "pid": str(os.getpid()), "log_id": str(log_id)}, False, None, ""


class TensorsOp(ResponseOp):
    def pack_response_package(self, channeldata):
        return Response(tensors=[to_message(name, value) for name, value in channeldata.parse().items()])


def wait_for(path):
    if path:
        Path(path + ".waiting").touch()
        while not Path(path).exists():
            time.sleep(0.005)


def asking():
    op = RequestOp()
    for name in sys.argv[2:] or ["ask"]:
        op = AskingOp(name=name, input_ops=[op])
        op.set_pack_tensor_format("TENSORS" in os.environ)
    return ResponseOp(input_ops=[op])


def telling():
    packing = TensorsOp if sys.argv[2:] == ["tensors"] else ResponseOp
    return packing(input_ops=[TellingOp(name="tell", input_ops=[RequestOp()])])


server = PipelineServer("test")
server.set_response_op({"ask": asking, "told": telling}[sys.argv[1]]())
server.prepare_server(yml_file=os.environ["SERVICE_CONFIG"])
server.run_server()

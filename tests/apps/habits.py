"""Habits of apps written for Paddle Serving, each in an Op of its own; the first argument names the service.

An input `gate` makes the Op `kept` wait for that file.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from paddle_serving_server.pipeline import PipelineServer, RequestOp, ResponseOp
from paddle_serving_server.pipeline.channel import ChannelData, ChannelDataErrcode, ChannelDataType
from paddle_serving_server.pipeline.proto import pipeline_service_pb2
from paddle_serving_server.web_service import Op, WebService


class Boxes:
    list = []
    """What the request under way has found, for its postprocess."""


class KeptOp(Op):
    """Keeps what is a request's own beside `self`: in a class, in a list and in an array of init_op's."""

    def init_op(self):
        self.texts = []
        self.array = np.zeros(4096, "int64")

    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        gate = inputs.get("gate")
        if gate:
            Path(gate + ".waiting").touch()
            while not Path(gate).exists():
                time.sleep(0.005)
        number = int(inputs["number"])
        Boxes.list = [number]
        self.texts[:] = [str(number)]
        self.array[:] = number
        if self.with_serving:
            return {"image": np.full((1, 3, 2, 2), number, "float32")}, False, None, ""
        return inputs, False, None, ""

    def postprocess(self, input_dicts, fetch_dict, log_id):
        kept = {"boxes": str(Boxes.list), "texts": str(self.texts), "log_id": str(log_id)}
        if self.with_serving:
            kept["sum"] = str(fetch_dict["doubled"].sum())
        return {**kept, "array": self.array}, None, ""


class ShownOp(Op):
    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {**fetch_dict, "array": str(set(fetch_dict["array"].tolist()))}, None, ""


class NumberOp(Op):
    """Tells the number that it knows the request by, and that of the Op before."""

    def preprocess(self, input_dicts, data_id, log_id):
        outputs = {}
        for output in input_dicts.values():
            outputs.update({name: text for name, text in output.items() if name.startswith("n")})
        return {**outputs, f"n_{self.name}": str(data_id)}, False, None, ""


class CheckingOp(Op):
    """An own `process` in the words of the default one."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.script_values = [self._batch_size, self._timeout, self._retry, self.concurrency]

    def init_op(self):
        self.told = {
            "line": self._log("is ready"),
            "feeds": self.right_feed_names,
            "on": [self.client_type, self.device_type, self.thread_num, self.concurrency],
            "model": Path(self.model_config).name,
            "mine": hasattr(self, "my_own_setting"),
            "arguments": [
                self._batch_size,
                self._timeout,
                self._retry,
                self._server_endpoints,
                Path(self._client_config).name,
                self._auto_batching_timeout,
            ],
            "script": self.script_values,
        }

    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        if inputs["number"] == "none":
            return {}, False, 901, "unknown type"
        return {"image": np.full((1, 3, 2, 2), int(inputs["number"]), "float32")}, False, None, ""

    def process(self, feed_dict_list, typical_logid):
        err, err_info = ChannelData.check_batch_npdata(feed_dict_list)
        if err != 0:
            raise NotImplementedError(f"{err_info} Please override preprocess func.")
        result = self.client.predict(
            feed=feed_dict_list[0], fetch=self._fetch_names, batch=True, log_id=typical_logid
        )
        return result, ChannelDataErrcode.OK.value, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {"sum": str(fetch_dict["doubled"].sum()), "told": json.dumps(self.told)}, None, ""


class OwnResponseOp(ResponseOp):
    """The default's own words, but for one refusal that becomes an answer."""

    def pack_response_package(self, channeldata):
        resp = pipeline_service_pb2.Response()
        error_code = channeldata.error_code
        error_info = channeldata.error_info
        if error_code == ChannelDataErrcode.OK.value:
            if channeldata.datatype != ChannelDataType.DICT.value:
                error_code = ChannelDataErrcode.TYPE_ERROR.value
                error_info = self._log(f"error type({channeldata.datatype}) in datatype.")
            else:
                for name, var in channeldata.parse().items():
                    resp.key.append(name)
                    resp.value.append(var)
        elif error_code == ChannelDataErrcode.PRODUCT_ERROR.value:
            error_code = channeldata.prod_error_code
            error_info = channeldata.prod_error_info
            if error_code == 901:
                error_code = 0
                resp.key.append("type")
                resp.value.append(f"{channeldata.error_info}{error_info}")
        resp.err_no = error_code
        resp.err_msg = error_info
        return resp


def numbers(read_op):
    first = NumberOp("first", [read_op])
    left, right = NumberOp("left", [first]), NumberOp("right", [first])
    return NumberOp("last", [left, right])


SERVICES = {"kept": lambda read_op: ShownOp("shown", [KeptOp("kept", [read_op])]), "numbers": numbers}


class HabitService(WebService):
    def get_pipeline_response(self, read_op):
        return SERVICES[sys.argv[1]](read_op)


if sys.argv[1] == "checking":
    server = PipelineServer("test")
    server.set_response_op(OwnResponseOp(input_ops=[CheckingOp("checking", [RequestOp()])]))
    server.prepare_server(os.environ["SERVICE_CONFIG"])
    server.run_server()
else:
    service = HabitService(name="test")
    service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
    service.run_service()

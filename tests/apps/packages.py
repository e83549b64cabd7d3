"""Ops of the script's own at both ends of the DAG; the first argument names which.

What `unpack_request_package` is asked to do stands under `unpack`, what `pack_response_package` is under
`pack`. The answer's `words` are the numbers that the message's words have in the vocabulary.
"""

import os
import sys

import numpy as np

from client.protos.pipeline_service_pb2 import Response
from pipeline import Op, PipelineServer, RequestOp, ResponseOp, WebService


class Vocabulary:
    """A class of the script's own, which passes between Ops."""

    def __init__(self, *words):
        self.words = list(words)

    def numbers(self, text):
        return np.array([self.words.index(word) for word in text.split()])


class WordsRequestOp(RequestOp):
    def init_op(self):
        self.vocabulary = Vocabulary("zero", "one", "two")

    def unpack_request_package(self, request):
        given = dict(zip(request.key, request.value, strict=True))
        action = given.pop("unpack", "")
        if action == "refuse":
            return {}, request.logid, 52, "no words today"
        if action == "dict":
            return given
        if action in LOG_IDS:
            return given, LOG_IDS[action], None, ""
        if action == "raise":
            raise ValueError("no words")
        if action in WRONG:
            return WRONG[action]
        for tensor in request.tensors:
            given[tensor.name], _ = self.proto_tensor_2_numpy(tensor)
        given["vocabulary"] = self.vocabulary
        given["from"] = f"{request.name}/{request.method} {request.clientip}"
        return given, request.logid + 1000, None, ""


WRONG = {"list": ([], 0, None, ""), "list id": ({}, ["seven"], None, ""), "nothing": None}
LOG_IDS = {"text id": "seven", "float id": 7.5, "no id": None}


class DefaultRequestOp(RequestOp):
    def unpack_request_package(self, request):
        inputs, log_id, code, info = super().unpack_request_package(request)
        return {**inputs, "from": "the default"}, log_id, code, info


class WordsOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        answer = {name: value for name, value in inputs.items() if isinstance(value, str)}
        if "vocabulary" in inputs:
            answer["words"] = str(inputs["vocabulary"].numbers(inputs["words"]))
        if "numbers" in inputs:
            answer["sum"] = str(inputs["numbers"].sum())
        return {**answer, "log_id": str(log_id), "inputs": " ".join(input_dicts)}, False, None, ""


class OwnResponseOp(ResponseOp):
    def pack_response_package(self, channeldata):
        if channeldata.error_code:
            code, info = channeldata.error_code, channeldata.error_info
            if code == 50:  # the app's own: number and text are beside it
                code, info = channeldata.prod_error_code, channeldata.prod_error_info
            text = f"packed {channeldata.datatype} {channeldata.log_id}: {info}"
            return Response(err_no=code, err_msg=text)
        output = channeldata.parse()
        action = output.pop("pack", "")
        if action == "list":
            return [output]
        if action == "raise":
            raise KeyError("pack")
        if action == "refuse":
            return Response(err_no=53, err_msg="not packed")
        return Response(key=["packed", *output], value=[str(channeldata.log_id), *output.values()])


class DefaultResponseOp(ResponseOp):
    def pack_response_package(self, channeldata):
        response = super().pack_response_package(channeldata)
        response.key.append("added")
        response.value.append("after")
        return response


class NumbersOp(Op):
    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {"numbers": np.array([[1, 2, 3]]), "half": np.array([0.5], "float32")}


def tensors(read_op):
    response_op = ResponseOp(input_ops=[NumbersOp(input_ops=[WordsOp(input_ops=[read_op])])])
    response_op.set_pack_format(isTensor=True)
    return response_op


def run_server(response_op):
    server = PipelineServer("test")
    if response_op is not None:
        server.set_response_op(response_op)
    server.prepare_server(yml_file=os.environ["SERVICE_CONFIG"])
    server.run_server()


class OwnReadOpService(WebService):
    """Leaves the read_op that it is given alone."""

    def get_pipeline_response(self, read_op):
        return WordsOp("words", [WordsRequestOp()])


def run_web_service():
    service = OwnReadOpService(name="test")
    service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
    service.run_service()


SERVICES = {
    "own": lambda: run_server(OwnResponseOp(input_ops=[WordsOp("words", [WordsRequestOp()])])),
    "defaults": lambda: run_server(DefaultResponseOp(input_ops=[WordsOp("words", [DefaultRequestOp()])])),
    "plain": lambda: run_server(ResponseOp(input_ops=[WordsOp("words", [RequestOp()])])),
    "tensors": lambda: run_server(tensors(RequestOp())),
    "web service": run_web_service,
    "no response op": lambda: run_server(None),
}
SERVICES[sys.argv[1]]()

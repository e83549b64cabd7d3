"""An app written for Paddle Serving: two models judge a review, and the mean of both is the answer."""

import logging

import numpy as np

from paddle_serving_app.reader import IMDBDataset
from paddle_serving_server.pipeline import Op, PipelineServer, RequestOp, ResponseOp
from paddle_serving_server.pipeline.channel import ChannelDataErrcode
from paddle_serving_server.pipeline.proto import pipeline_service_pb2

_LOGGER = logging.getLogger()


class ImdbRequestOp(RequestOp):
    def init_op(self):
        self.imdb_dataset = IMDBDataset()
        self.imdb_dataset.load_resource("imdb.vocab")

    def unpack_request_package(self, request):
        dictdata = {}
        for idx, key in enumerate(request.key):
            if key != "words":
                continue
            word_ids, _ = self.imdb_dataset.get_words_and_label(request.value[idx])
            if not word_ids:
                return {}, request.logid, 60, "there is no word"
            dictdata[key] = np.array(word_ids).reshape(1, len(word_ids))
        return dictdata, request.logid, None, ""


class BowOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        words = input_dicts["@DAGExecutor"]["words"]
        return {"input_ids": words, "attention_mask": np.ones_like(words)}, False, None, ""


class CnnOp(BowOp):
    def preprocess(self, input_dicts, data_id, log_id):
        feed, skip, code, info = super().preprocess(input_dicts, data_id, log_id)
        feed["token_type_ids"] = np.ones_like(feed["input_ids"])
        return feed, skip, code, info


class CombineOp(Op):
    def preprocess(self, input_data, data_id, log_id):
        combined_prediction = 0
        for op_name, data in input_data.items():
            _LOGGER.info("%s: %s", op_name, data["logits"])
            combined_prediction += data["logits"]
        return {"prediction": combined_prediction / 2}, False, None, ""


class ImdbResponseOp(ResponseOp):
    def pack_response_package(self, channeldata):
        resp = pipeline_service_pb2.Response()
        resp.err_no = channeldata.error_code
        if resp.err_no == ChannelDataErrcode.OK.value:
            feed = channeldata.parse()
            np.set_printoptions(threshold=np.inf)
            for name, var in feed.items():
                resp.value.append(var.__repr__())
                resp.key.append(name)
        else:
            resp.err_msg = channeldata.error_info
        return resp


read_op = ImdbRequestOp()
bow_op = BowOp(name="bow", input_ops=[read_op])
cnn_op = CnnOp(name="cnn", input_ops=[read_op])
combine_op = CombineOp("combine", input_ops=[bow_op, cnn_op])
response_op = ImdbResponseOp(input_ops=[combine_op])

server = PipelineServer("imdb")
server.set_response_op(response_op)
server.prepare_server("config.yml")
server.run_server()

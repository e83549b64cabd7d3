"""An Op whose feed is a sequence of word ids with its offsets."""

import os

import numpy as np

from pipeline import Op, WebService


class WordsOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        ((_, request),) = input_dicts.items()
        ids = [int(word) for word in request["words"].split()]
        feed = {"words": np.array(ids, np.int64).reshape(-1, 1), "words.lod": np.array([0, len(ids)])}
        return feed, False, None, ""


class Sequences(WebService):
    def get_pipeline_response(self, read_op):
        return WordsOp(name="words", input_ops=[read_op])


service = Sequences(name="sequences")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

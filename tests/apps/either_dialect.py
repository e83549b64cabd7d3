"""One Op around a model directory that is asked alike in each dialect: JSON text in and out, or arrays."""

import json
import os

import numpy as np

from pipeline import Op, WebService


class EitherOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        self.texts = any(isinstance(value, str) for value in inputs.values())
        if not self.texts:
            return dict(inputs)
        return {
            feed.alias: np.array(json.loads(inputs[feed.alias]), feed.numpy_dtype)
            for feed in self.predictor.feeds
        }

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        if not self.texts:
            return fetch_dict
        return {name: json.dumps(array.tolist()) for name, array in fetch_dict.items()}


class EitherService(WebService):
    def get_pipeline_response(self, read_op):
        return EitherOp(name="model", input_ops=[read_op])


service = EitherService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

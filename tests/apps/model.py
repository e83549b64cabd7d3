"""One Op around a model directory (environment MODEL): JSON in under the feeds' names, JSON out.

With `gate` a request waits for that file in preprocess. MAX_ROWS in the environment becomes the maximum of
dynamic_shape_info. WARMUP_SHAPES are the shapes of the warm-up, in JSON.
"""

import json
import os
import time
from pathlib import Path

import numpy as np

from pipeline import Op, WebService


class ModelOp(Op):
    warmup_shapes = json.loads(os.environ.get("WARMUP_SHAPES", "{}"))

    def set_dynamic_shape_info(self):
        if "MAX_ROWS" in os.environ:
            names = ("input_ids", "token_type_ids", "attention_mask")
            self.dynamic_shape_info = {
                "min_input_shape": {name: [1, 1] for name in names},
                "max_input_shape": {name: [int(os.environ["MAX_ROWS"]), 512] for name in names},
                "opt_input_shape": {name: [4, 32] for name in names},
            }

    def preprocess(self, input_dicts, data_id, log_id):
        inputs = dict(input_dicts["@DAGExecutor"])
        gate = inputs.pop("gate", None)
        if gate:
            Path(gate + ".waiting").touch()
            while not Path(gate).exists():
                time.sleep(0.005)
        dtypes = {feed.alias: feed.numpy_dtype for feed in self.predictor.feeds}
        return {name: np.array(json.loads(text), dtypes.get(name)) for name, text in inputs.items()}

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {name: json.dumps(array.tolist()) for name, array in fetch_dict.items()}


class ModelService(WebService):
    def get_pipeline_response(self, read_op):
        return ModelOp(name="model", input_ops=[read_op])


service = ModelService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

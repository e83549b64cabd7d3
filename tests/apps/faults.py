"""An Op around captioned.onnx that goes wrong as the key `how` says; feeds that are sent it passes on."""

import json
import os

import numpy as np

from pipeline import InvalidInput, Op, ProductError, WebService

IMAGE = np.zeros((1, 3, 4, 4), np.float32)
IDS = np.array([[1, 2]])


def refused():
    raise InvalidInput("'how' is 'invalid'; send another")


def refused_by_number():
    raise ProductError("not for sale", err_no=51)


def broken():
    raise ValueError("a mistake of the app's author")


FEEDS = {
    "well": lambda: {"image": IMAGE, "ids": IDS},
    "rank": lambda: {"image": IMAGE, "ids": IDS[0]},
    "empty": lambda: {"image": IMAGE, "ids": IDS[:, :0]},
    "image": lambda: {"image": np.zeros((1, 3, 5, 5), np.float32), "ids": IDS},
    "id": lambda: {"image": IMAGE, "ids": np.array([[1, 8]])},
    "number": lambda: {"image": IMAGE, "ids": np.array([[0.5, 1.0]])},
    "invalid": refused,
    "product": refused_by_number,
    "raises": broken,
    "returns": lambda: None,
    "forgets": lambda: {"image": IMAGE},
    "answer": lambda: {"image": IMAGE, "ids": IDS},
    "model": lambda: {"image": np.repeat(IMAGE, 2, axis=0), "ids": np.repeat(IDS, 3, axis=0)},
}


class FaultyOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        if "image" in inputs or "ids" in inputs:
            dtypes = {feed.alias: feed.numpy_dtype for feed in self.predictor.feeds}
            return {name: np.array(json.loads(value), dtypes[name]) for name, value in inputs.items()}
        return FEEDS[inputs["how"]]()

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        (inputs,) = input_dicts.values()
        if inputs["how"] == "answer":
            return {"score": object()}
        return {"score": str(fetch_dict["score"].tolist())}


class FaultyService(WebService):
    def get_pipeline_response(self, read_op):
        return FaultyOp(name="faulty", input_ops=[read_op])


service = FaultyService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

"""An Op around a model of x [-1, 13] whose preprocess makes the feed that the key `feed` names.

With `gate` a request waits for that file in preprocess. With OWN_PROCESS in the environment its `process`
hands the feeds on to the default one.
"""

import os
import time
from pathlib import Path

import numpy as np

from pipeline import Op, WebService

HOUSE = np.arange(13, dtype="float32")
FEEDS = {
    "usual": {"x": HOUSE.reshape(1, 13)},
    "rank": {"x": HOUSE.reshape(1, 1, 13)},
    "rank_rows": {"x": np.stack([HOUSE, HOUSE + 1]).reshape(1, 2, 13)},
    "objects": {"x": HOUSE.reshape(1, 13).astype(object)},
    "badtype": {"x": "text"},
    "listval": {"x": HOUSE.tolist()},
    "none": {"x": None},
    "texts": {"x": np.array([["a"] * 13])},
    "mixed_objects": {"x": np.array([[{}] * 13], object)},
    "badshape": {"x": np.ones((1, 12), "float32")},
    "badrank": {"x": np.ones((), "float32")},
    "empty": {"x": np.ones((0, 13), "float32")},
    "extra": {"x": HOUSE.reshape(1, 13), "y": HOUSE},
    "missing": {},
    "other_name": {"z": HOUSE.reshape(1, 13)},
    "no_name": {1: HOUSE.reshape(1, 13)},
    "no_dict": "text",
}


class FeedOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        ((_, inputs),) = input_dicts.items()
        if gate := inputs.get("gate"):
            Path(gate + ".waiting").touch()
            while not Path(gate).exists():
                time.sleep(0.005)
        return FEEDS[inputs["feed"]], False, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {"y": str(fetch_dict["y"].tolist())}, None, ""


class ForwardingOp(FeedOp):
    def process(self, feed_batch, typical_logid):
        return super().process(feed_batch, typical_logid)


class FeedService(WebService):
    def get_pipeline_response(self, read_op):
        kind = ForwardingOp if "OWN_PROCESS" in os.environ else FeedOp
        return kind(name="feeds", input_ops=[read_op])


service = FeedService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

"""An Op around the model `images` whose hooks do what the key `how` of each request says.

An image is given as `size`, its height and width, and `value`, of every pixel. The first argument says how
the Op comes by its model: "section" of config.yml, or "handler" in the script (environment MODEL).
"""

import os
import sys

import numpy as np

from paddle_serving_server.pipeline import LocalServiceHandler
from paddle_serving_server.web_service import Op, WebService


def image_of(inputs, value):
    height, width = (int(side) for side in inputs.get("size", "2x2").split("x"))
    return {"image": np.full((1, 3, height, width), value, "float32")}


async def asynchronous():
    return {"image": np.zeros((1, 3, 2, 2), "float32")}


def generated():
    yield {"image": np.zeros((1, 3, 2, 2), "float32")}


def as_tensor():
    import paddle  # here: the model's engine has imported it by now

    return {"image": paddle.zeros([1, 3, 2, 2])}


class ContractOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        how = inputs.get("how", "")
        value = float(inputs.get("value", "0"))
        if how == "skip":
            return {"skipped": inputs["value"]}, True, None, ""
        if how == "mini-batch":
            return [image_of(inputs, value), image_of({"size": "1x5"}, value + 1)], False, None, ""
        if how == "rows":  # a client batch: as many instances as it says
            rows = [image_of(inputs, value + row)["image"] for row in range(int(inputs["rows"]))]
            return {"image": np.concatenate(rows)}, False, None, ""
        if how in WRONG_FEEDS:
            return WRONG_FEEDS[how]
        if how in MADE_WRONGLY:
            return MADE_WRONGLY[how]()
        return image_of(inputs, value), False, None, ""

    def postprocess(self, input_data, fetch_data, data_id, log_id):
        (inputs,) = input_data.values()
        how = inputs.get("how", "")
        if how in WRONG_OUTPUTS:
            return WRONG_OUTPUTS[how]
        if how == "skip":
            return fetch_data, None, ""
        if isinstance(fetch_data, list):
            return {"sums": " ".join(str(one["doubled"].sum()) for one in fetch_data)}, None, ""
        doubled = fetch_data["doubled"]
        return {"sums": " ".join(str(row.sum()) for row in doubled), "log_id": str(log_id)}, None, ""

    def check_jumping(self, input_data):
        (data,) = input_data.values()
        return data.parse().get("jump", False)


WRONG_FEEDS = {
    "a list as feed": ({"image": [[1.0]]}, False, None, ""),
    "no feed": (None, False, None, ""),
    "a text": "feed",
    "feeds that are none": [{"image": np.zeros(1)}, 7],
    "five values": ({}, False, None, "", 5),
}
MADE_WRONGLY = {"async": asynchronous, "yield": generated, "a tensor": as_tensor}
WRONG_OUTPUTS = {"a number": 5, "a list": ([1], None, ""), "two values": ({}, None)}
WRONG_OUTPUTS["a jump"] = {"jump": "to the start"}


class ContractService(WebService):
    def get_pipeline_response(self, read_op):
        start = Op(name="start", input_ops=[read_op])
        handler = None
        if sys.argv[1] == "handler":
            handler = LocalServiceHandler(os.environ["MODEL"], device_type=0, fetch_names=["doubled"])
        return ContractOp("contract", [start], jump_to_ops=[start], local_service_handler=handler)


service = ContractService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

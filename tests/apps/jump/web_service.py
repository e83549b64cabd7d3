"""An app written for Paddle Serving: a model is run again and again until its output is large enough."""

import numpy as np

from paddle_serving_server.web_service import Op, WebService


class StartOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (_, input_dict), = input_dicts.items()  # fmt: skip
        pixels = [float(number) for number in input_dict["pixels"].split(",")]
        return {
            "image": np.array(pixels, "float32").reshape(1, 3, 1, 1),
            "limit": float(input_dict["limit"]),
            "rounds": 0,
        }, False, None, ""  # fmt: skip


class GrowOp(Op):
    """Jumps to the consumers of `start`, itself, while its output is below the limit."""

    def preprocess(self, input_dicts, data_id, log_id):
        (_, input_dict), = input_dicts.items()  # fmt: skip
        self.limit, self.rounds = input_dict["limit"], input_dict["rounds"]
        return {"image": input_dict["image"]}, False, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {"image": fetch_dict["doubled"], "limit": self.limit, "rounds": self.rounds + 1}, None, ""

    def check_jumping(self, input_data):
        for _, channeldata in input_data.items():
            data = channeldata.parse()
            if data["image"].max() < data["limit"]:
                return True
        return False


class EndOp(Op):
    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {"image": fetch_dict["image"], "rounds": np.array(fetch_dict["rounds"])}, None, ""


class JumpService(WebService):
    def get_pipeline_response(self, read_op):
        start_op = StartOp(name="start", input_ops=[read_op])
        grow_op = GrowOp(name="grow", input_ops=[start_op], jump_to_ops=[start_op])
        return EndOp(name="end", input_ops=[grow_op])


if __name__ == "__main__":
    service = JumpService(name="jump")
    service.prepare_pipeline_config("config.yml")
    service.run_service()

"""The likeliest class of each image of a request, in the shape of Paddle Serving's ImageNet examples.

labels.txt lies in the working directory.
"""

import base64
import os

import cv2
import numpy as np

from paddle_serving_app.reader import RGB2BGR, CenterCrop, Div, Normalize, Resize, Sequential, Transpose

try:
    from paddle_serving_server_gpu.web_service import Op, WebService
except ImportError:
    from paddle_serving_server.web_service import Op, WebService


class ImagenetOp(Op):
    def init_op(self):
        normalize = Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225], True)
        steps = [Resize(256), CenterCrop(224), RGB2BGR(), Transpose((2, 0, 1)), Div(255), normalize]
        self.seq = Sequential(steps)
        self.label_dict = {}
        with open("labels.txt") as fin:  # noqa: PTH123
            for number, line in enumerate(fin):
                self.label_dict[number] = line.strip()

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, input_dict),) = input_dicts.items()
        imgs = []
        for key in input_dict.keys():  # noqa: SIM118
            data = np.fromstring(base64.b64decode(input_dict[key].encode("utf8")), np.uint8)
            imgs.append(self.seq(cv2.imdecode(data, cv2.IMREAD_COLOR))[np.newaxis, :].copy())
        return {"image": np.concatenate(imgs, axis=0)}, False, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        result = {"label": [], "prob": []}
        for score in fetch_dict["score"]:
            score = score.tolist()
            result["label"].append(self.label_dict[score.index(max(score))])
            result["prob"].append(max(score))
        return {name: str(values) for name, values in result.items()}, None, ""


class ImageService(WebService):
    def get_pipeline_response(self, read_op):
        return ImagenetOp(name="imagenet", input_ops=[read_op])


service = ImageService(name="imagenet")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

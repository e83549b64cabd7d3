"""The boxes of an image, in the shape of Paddle Serving's detection examples.

label_list.txt lies in the working directory.
"""

import base64
import os

import cv2
import numpy as np

from paddle_serving_app.reader import *  # noqa: F403
from paddle_serving_server.web_service import Op, WebService


class YoloOp(Op):
    def init_op(self):
        normalize = Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225], False)  # noqa: F405
        steps = [BGR2RGB(), Div(255.0), normalize, Resize((320, 320)), Transpose((2, 0, 1))]  # noqa: F405
        self.img_preprocess = Sequential(steps)  # noqa: F405
        self.img_postprocess = RCNNPostprocess("label_list.txt", "output")  # noqa: F405

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, input_dict),) = input_dicts.items()
        data = np.fromstring(base64.b64decode(input_dict["image"].encode("utf8")), np.uint8)
        image = self.img_preprocess(cv2.imdecode(data, cv2.IMREAD_COLOR))
        feed = {
            "image": image[np.newaxis, :],
            "im_shape": np.array(list(image.shape[1:])).reshape(-1)[np.newaxis, :],
            "scale_factor": np.array([1.0, 1.0]).reshape(-1)[np.newaxis, :],
        }
        return feed, False, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {"bbox_result": str(self.img_postprocess(fetch_dict, visualize=False))}, None, ""


class YoloService(WebService):
    def get_pipeline_response(self, read_op):
        return YoloOp(name="yolov3", input_ops=[read_op])


service = YoloService(name="yolov3")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

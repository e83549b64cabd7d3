"""Text detection, then recognition, in the shape of Paddle Serving's OCR example.

What a request's hooks hand on to each other is kept on `self`. Crops go to the recogniser two at a time, as a
list of feeds, which is empty for an image without text. keys.txt lies in the working directory.
"""

import base64
import copy
import os

import cv2
import numpy as np

from paddle_serving_app.reader import (
    DBPostProcess,
    Div,
    FilterBoxes,
    GetRotateCropImage,
    Normalize,
    OCRReader,
    ResizeByFactor,
    Sequential,
    SortedBoxes,
    Transpose,
)
from paddle_serving_server.web_service import Op, WebService

CROPS = 2


class DetOp(Op):
    def init_op(self):
        normalize = Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        self.read = Sequential([ResizeByFactor(32, 960), Div(255), normalize, Transpose((2, 0, 1))])
        self.filter_boxes = FilterBoxes(10, 10)
        self.find = DBPostProcess(
            {"thresh": 0.3, "box_thresh": 0.6, "max_candidates": 1000, "unclip_ratio": 1.5, "min_size": 3}
        )

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, inputs),) = input_dicts.items()
        self.raw = base64.b64decode(inputs["image"].encode("utf8"))
        image = cv2.imdecode(np.fromstring(self.raw, np.uint8), cv2.IMREAD_COLOR)
        self.ori_h, self.ori_w, _ = image.shape
        feed = self.read(image)
        _, self.new_h, self.new_w = feed.shape
        return {"x": feed[np.newaxis, :].copy()}, False, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        ratios = [float(self.new_h) / self.ori_h, float(self.new_w) / self.ori_w]
        boxes = self.find(fetch_dict["save_infer_model/scale_0.tmp_1"], [ratios])[0]
        boxes = self.filter_boxes(boxes, [self.ori_h, self.ori_w])
        return {"dt_boxes": boxes, "image": self.raw}, None, ""


class RecOp(Op):
    def init_op(self):
        self.reader = OCRReader(char_dict_path="keys.txt")
        self.crop = GetRotateCropImage()
        self.sort = SortedBoxes()

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, inputs),) = input_dicts.items()
        image = cv2.imdecode(np.frombuffer(inputs["image"], np.uint8), cv2.IMREAD_COLOR)
        self.sorted_boxes = self.sort(inputs["dt_boxes"])
        crops = [self.crop(image, box) for box in copy.deepcopy(self.sorted_boxes)]
        feeds = []
        for start in range(0, len(crops), CROPS):
            batch = crops[start : start + CROPS]
            widest = max(crop.shape[1] / crop.shape[0] for crop in batch)
            feeds.append({"x": np.stack([self.reader.resize_norm_img(crop, widest) for crop in batch])})
        return feeds, False, None, ""

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        texts = [
            text for batch in fetch_data for text in self.reader.postprocess_ocrv2(batch, with_score=True)
        ]
        lines = [[texts[i], box.tolist()] for i, box in enumerate(self.sorted_boxes)]
        return {"result": str(lines)}, None, ""


class OcrService(WebService):
    def get_pipeline_response(self, read_op):
        det_op = DetOp(name="det", input_ops=[read_op])
        return RecOp(name="rec", input_ops=[det_op])


service = OcrService(name="ocr")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

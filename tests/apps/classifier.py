"""A text classifier that counts words: `text` BYTES in, `label` INT64 and `confidence` FP32 out."""

import os

import numpy as np

from pipeline import Op, WebService


class SentimentOp(Op):
    input_tensors = {"text": "BYTES [-1]"}
    output_tensors = {"label": "INT64 [-1]", "confidence": "FP32 [-1]"}

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        (inputs,) = input_dicts.values()
        texts = [inputs["text"]] if isinstance(inputs["text"], str) else inputs["text"]
        texts = [text.decode() if isinstance(text, bytes) else text for text in texts]
        good = [text.split().count("good") for text in texts]
        bad = [text.split().count("bad") for text in texts]
        labels = np.array([int(g > b) for g, b in zip(good, bad, strict=True)])
        shares = [max(g, b) / len(text.split()) for g, b, text in zip(good, bad, texts, strict=True)]
        return {"label": labels, "confidence": np.array(shares, np.float32)}


class SentimentService(WebService):
    def get_pipeline_response(self, read_op):
        return SentimentOp(name="words", input_ops=[read_op])


service = SentimentService(name="sentiment")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

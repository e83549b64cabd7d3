"""One Op without a model: each text is short or long, says `label`; `text` and `mark` tell what was asked.

A text with `unwelcome` is refused. At one with `wait` the Op waits for the file that GATE names, and makes
GATE.waiting.
"""

import os
import time
from pathlib import Path

import numpy as np

from pipeline import InvalidInput, Op, WebService


class LengthOp(Op):
    input_tensors = {"text": "BYTES [-1]"}
    output_tensors = {"label": "BYTES [-1]", "length": "INT64 [-1]", "mark": "BYTES [-1]"}

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        (inputs,) = input_dicts.values()
        texts = [text.decode() for text in inputs["text"]]
        for number, text in enumerate(texts):
            if "unwelcome" in text:
                raise InvalidInput(f"text {number} is unwelcome")
            if "wait" in text:
                gate = Path(os.environ["GATE"])
                gate.with_suffix(".waiting").touch()
                while not gate.exists():
                    time.sleep(0.005)
        lengths = np.array([len(text) for text in texts])
        mark = str(self.request_options.parameters.get("mark", ""))
        labels = np.where(lengths > 5, "long", "short")
        return {"label": labels, "length": lengths, "mark": np.array([mark] * len(texts))}


class LengthService(WebService):
    def get_pipeline_response(self, read_op):
        return LengthOp(name="lengths", input_ops=[read_op])


service = LengthService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

"""One Op that every dialect may ask: its texts in capitals.

"fail" is an error of the app's. "wait" waits in preprocess for the file GATE of the environment. "modules" is
answered with those of the front that this worker has imported. With the argument "unpacks" the app makes the
inputs itself.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

from pipeline import Op, RequestOp, WebService

FRONT = "pipeline.front", "lines_dialect.http_routes"


class CapitalsOp(Op):
    input_tensors = {"text": "BYTES [-1]"}
    output_tensors = {"capitals": "BYTES [-1]"}

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        (inputs,) = input_dicts.values()
        given = inputs["text"]
        texts = [given] if isinstance(given, str) else list(given)
        texts = [text.decode() if isinstance(text, bytes) else text for text in texts]
        if "fail" in texts:
            return None, False, 51, "this text can't be written in capitals"
        if "wait" in texts:
            gate = Path(os.environ["GATE"])
            Path(f"{gate}.waiting").touch()
            while not gate.exists():
                time.sleep(0.005)
        if "modules" in texts:
            texts = [name for name in sys.modules if name.startswith(FRONT)] or ["none"]
        return {"texts": texts}

    def process(self, feed_batch, typical_logid=0):
        return {"capitals": [text.upper() for text in feed_batch[0]["texts"]]}

    def postprocess(self, input_dicts, fetch_dict, data_id=0, log_id=0):
        return {"capitals": np.array(fetch_dict["capitals"], object).tolist()}


class OwnRequestOp(RequestOp):
    def unpack_request_package(self, request):
        return super().unpack_request_package(request)


class CapitalsService(WebService):
    def get_pipeline_response(self, read_op):
        if sys.argv[1:] == ["unpacks"]:
            read_op = OwnRequestOp()
        return CapitalsOp(name="capitals", input_ops=[read_op])


if __name__ == "__main__":
    service = CapitalsService(name="test")
    service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
    service.run_service()

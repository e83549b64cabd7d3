"""An Op whose model takes texts: its feed is a list of str, one for each line of the key `lines`.

With `gate` a request waits for that file in preprocess. With LISTS in the environment the app's own `process`
hands the list on to `self.client`.
"""

import os
import time
from pathlib import Path

from pipeline import Op, WebService


class TextOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        ((_, inputs),) = input_dicts.items()
        if gate := inputs.get("gate"):
            Path(gate + ".waiting").touch()
            while not Path(gate).exists():
                time.sleep(0.005)
        return {"text": inputs["lines"].split("\n")}, False, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {name: str(fetch.tolist()) for name, fetch in fetch_dict.items()}, None, ""


class ForwardingOp(TextOp):
    def process(self, feed_batch, typical_logid):
        return self.client.predict(feed_batch[0], ["score"], batch=True), 0, ""


class TextService(WebService):
    def get_pipeline_response(self, read_op):
        kind = ForwardingOp if "LISTS" in os.environ else TextOp
        return kind(name="texts", input_ops=[read_op])


service = TextService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

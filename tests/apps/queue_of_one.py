"""One Op that takes as long as its text says: "sleep SECONDS", or "wait PATH" until there is a file."""

import os
import time
from pathlib import Path

from pipeline import Op, WebService


def wait(path):
    Path(path + ".waiting").touch()
    while not Path(path).exists():
        time.sleep(0.005)


class QueueOp(Op):
    input_tensors = {"text": "BYTES [-1]"}
    output_tensors = {"done": "BYTES [-1]"}

    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        text = inputs["text"] if isinstance(inputs["text"], str) else inputs["text"][0].decode()
        what, argument = text.split(" ", 1)
        if what == "sleep":
            time.sleep(float(argument))
        else:
            wait(argument)
        return {"done": [argument]}


class QueueService(WebService):
    def get_pipeline_response(self, read_op):
        return QueueOp(name="queue", input_ops=[read_op])


if __name__ == "__main__":
    service = QueueService(name="test")
    service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
    service.run_service()

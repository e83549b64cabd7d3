"""One Op without a model that answers with what state.py beside it held when its worker started.

It does not start while that is "broken"; of "doomed FOLDER" see `doom`. `number` comes back doubled; `wait`
waits for the file it names.
"""

import os
import threading
import time
from pathlib import Path

import numpy as np

from pipeline import Op, WebService


def doom(folder):
    """The first worker to start becomes ready, and dies when the second starts, which does not get ready."""
    first, second = folder / "first", folder / "second"
    try:
        with first.open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        second.touch()
        while Path("/proc", first.read_text()).exists():
            time.sleep(0.005)
        raise ValueError("the first is gone") from None

    def die_with_the_second():
        while not second.exists():
            time.sleep(0.005)
        os._exit(9)

    threading.Thread(target=die_with_the_second).start()


class ReloadedOp(Op):
    def init_op(self):
        self.state = Path(__file__).with_name("state.py").read_text()
        if self.state == "broken":
            raise ValueError("the state is broken")
        if self.state.startswith("doomed "):
            doom(Path(self.state.removeprefix("doomed ")))

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        (inputs,) = input_dicts.values()
        gate = inputs.get("wait")
        if gate:
            Path(gate + ".waiting").touch()
            while not Path(gate).exists():
                time.sleep(0.005)
        return {"number": np.array([[int(inputs["number"])]])}

    def process(self, feed_batch, typical_logid=0):
        return {"doubled": feed_batch[0]["number"] * 2}, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id=0, log_id=0):
        return {"doubled": str(fetch_dict["doubled"].item()), "state": self.state, "pid": str(os.getpid())}


class ReloadedService(WebService):
    def get_pipeline_response(self, read_op):
        return ReloadedOp(name="op", input_ops=[read_op])


service = ReloadedService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

"""Ops that keep what belongs to a request on `self` between every two hooks, and raise where they find more.

KIND names the Op, BATCHED says whether requests may share a run. Inputs: `number`; `mark`, which the own
preprocess sets, "none" to set it to what init_op did; `widths` of its feeds, which can't be joined where they
differ: several make a mini-batch; `action` (one of ACTIONS) of its process, with an `argument`; `gate`: a
file that preprocess waits for.
An answer tells all that its postprocess found on `self`.
"""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np

from pipeline import Op, WebService


def wait_for(path):
    Path(path + ".waiting").touch()
    while not Path(path).exists():
        time.sleep(0.005)


def once(path):
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def fail(_):
    raise ValueError("the process does not take this")


def stall_once(path):
    if once(path):
        wait_for(path + ".gate")


def die_once(path):
    if once(path):
        os.kill(os.getpid(), signal.SIGKILL)


ACTIONS = {"": lambda _: None, "fail": fail, "stall_once": stall_once, "die_once": die_once}
NUMBERS = list(ACTIONS)
BATCHED = os.environ["BATCHED"] == "yes"  # several requests share a run of process


class KeepingOp(Op):
    argument = None

    def init_op(self):
        self.mark = None
        self.handed_over = []
        self.answers = 0

    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        self.must_lack("number", "batch", "answered")
        return self.prepared(inputs)

    def process(self, feed_batch, typical_logid):
        if BATCHED or vars(self).get("batch", [self.number]) != [self.number]:  # else of this mini-batch
            self.must_lack("batch", "widths")
        self.must_lack("answered")
        numbers = feed_batch[0]["number"]
        self.batch = numbers[:, 0].tolist()
        for action in numbers[:, 1]:
            ACTIONS[NUMBERS[action]](self.argument)
        self.widths = [*vars(self).get("widths", ()), feed_batch[0]["width"].shape[1]]
        time.sleep(0.0005)  # other threads go on
        self.seen = self.number
        self.mark = f"process of {self.number}"
        return {"doubled": numbers[:, 0] * 2}, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        self.must_lack("answered")
        self.answered = True
        return self.told(fetch_dict)

    def prepared(self, inputs):
        self.number = int(inputs["number"])
        self.argument = inputs.get("argument")
        if "gate" in inputs:
            wait_for(inputs["gate"])
        if "mark" in inputs:
            self.mark = None if inputs["mark"] == "none" else inputs["mark"]
        time.sleep(0)
        return self.feeds(inputs)

    def feeds(self, inputs):
        row = np.array([[int(inputs["number"]), NUMBERS.index(inputs.get("action", ""))]])
        feeds = [
            {"number": row, "width": np.zeros((1, int(w)))} for w in inputs.get("widths", "1").split(",")
        ]
        return feeds[0] if len(feeds) == 1 else feeds

    def must_lack(self, *names):
        found = {name: value for name, value in vars(self).items() if name in names}
        if found:
            raise AssertionError(f"left by another: {found}")

    def told(self, fetch):
        names = ("number", "mark", "batch", "widths", "seen", "handed_over", "answers")
        found = {name: vars(self)[name] for name in names if name in vars(self)}
        fetches = fetch if isinstance(fetch, list) else [fetch]
        doubled = [int(one["doubled"][0]) for one in fetches]
        return {"told": json.dumps({**found, "doubled": doubled})}


class BatchPreprocessOp(KeepingOp):
    """`preprocess_batch` runs on the shared Op, the rest on the request's own."""

    preprocess = Op.preprocess

    def preprocess_batch(self, requests):
        self.must_lack("batch", "seen", "answered")
        for request in requests:
            if "gate" in request.inputs:
                wait_for(request.inputs["gate"])
        self.handed_over = [int(request.inputs["number"]) for request in requests]
        self.number = -1
        return [self.feeds(request.inputs) for request in requests]


class BatchPostprocessOp(KeepingOp):
    """`postprocess_batch` runs on the shared Op, and finds there what process has set for its requests."""

    postprocess = Op.postprocess

    def postprocess_batch(self, requests, fetches):
        self.answers += len(requests)
        return [self.told(fetch) for fetch in fetches]


class BatchWiseOp(BatchPreprocessOp):
    postprocess = Op.postprocess
    postprocess_batch = BatchPostprocessOp.postprocess_batch


KINDS = {
    "keeping": KeepingOp, "pre": BatchPreprocessOp, "post": BatchPostprocessOp, "both": BatchWiseOp,
}  # fmt: skip


class KeepingService(WebService):
    def get_pipeline_response(self, read_op):
        return KINDS[os.environ.get("KIND", "keeping")](name="keeping", input_ops=[read_op])


service = KeepingService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

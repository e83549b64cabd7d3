"""An Op with batch-wise or single hooks (argument "batch" or "single") that goes wrong as each request says.

A request has as many `rows` as it says; the Op's config caps what `process` is given at once, so that a
request with more of them is run in slices.
"""

import os
import sys

import numpy as np

from pipeline import InvalidInput, Op, ProductError, ServingError, WebService


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Interrupting(Exception):
    def __str__(self):
        raise KeyboardInterrupt


class Traceless(Exception):
    @property
    def __traceback__(self):
        raise RuntimeError("no traceback")


class Statusless(ServingError):
    http_status = None


class Teapot(ServingError):
    """An app's own class of error."""

    err_no = 77
    http_status = 418


ERRORS = {
    "surrogate": lambda: InvalidInput("not \udcff text"),
    "numpy number": lambda: ProductError("a label as number", err_no=np.int64(52)),
    "huge number": lambda: ProductError("too large", err_no=2**70),
    "unspeakable": Unspeakable,
    "interrupting": Interrupting,
    "traceless": Traceless,
    "statusless": lambda: Statusless("no status"),
    "own class": lambda: Teapot("short and stout"),
    "no arguments": InvalidInput,
}


def feed_of(inputs):
    if "http_status" in inputs:
        error = ServingError("of this status")
        error.http_status = int(inputs["http_status"])
        raise error
    if "chars" in inputs:
        raise ServingError(inputs["char"] * int(inputs["chars"]))
    if inputs.get("preprocess"):
        raise ERRORS[inputs["preprocess"]]()
    rows = int(inputs.get("rows", "1"))
    kinds = ["", "ragged", "list", "nothing", "raise", "code", "scalar"]
    feed = np.zeros((rows, 2), "int64")
    feed[:, 0] = kinds.index(inputs.get("process", ""))
    feed[:, 1] = np.arange(rows)
    return {"kind": feed}


def answer_of(inputs, fetch):
    if inputs.get("postprocess"):
        raise ERRORS[inputs["postprocess"]]()
    if inputs.get("answer") == "number":
        return {"seen": 5}
    if inputs.get("answer") == "list":
        return ["seen"]
    return {"seen": np.array(sorted(fetch))}


class MishapOp(Op):
    def process(self, feed_batch, typical_logid=0):
        kind, first = feed_batch[0]["kind"].max(axis=0)
        rows = len(feed_batch[0]["kind"])
        if kind == 4:
            raise ValueError("refused by process")
        if kind == 5:
            return {}, 3, "a code"
        fetch = {
            1: {"fetch": np.zeros((rows, 1 + first))},
            2: [1, 2],
            3: None,
            6: {"fetch": 1.5},
        }
        return fetch.get(kind, {"fetch": np.zeros((rows, 1))}), None, ""


class SingleOp(MishapOp):
    def preprocess(self, input_dicts, data_id, log_id):
        return feed_of(input_dicts["@DAGExecutor"])

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return answer_of(input_dicts["@DAGExecutor"], fetch_dict)


class BatchOp(MishapOp):
    def preprocess_batch(self, requests):
        return [self._attempt(feed_of, request.inputs) for request in requests]

    def postprocess_batch(self, requests, fetches):
        pairs = zip(requests, fetches, strict=True)
        return [self._attempt(answer_of, request.inputs, fetch) for request, fetch in pairs]

    def _attempt(self, function, *arguments):
        try:
            return function(*arguments)
        except Exception as exc:
            return exc


class MishapService(WebService):
    def get_pipeline_response(self, read_op):
        kind = {"single": SingleOp, "batch": BatchOp}[sys.argv[1]]
        return kind(name="mishap", input_ops=[read_op])


if __name__ == "__main__":
    service = MishapService(name="test")
    service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
    service.run_service()

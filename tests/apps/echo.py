"""One Op without a model that answers with what it was asked, and misbehaves on request.

Inputs: `number` (an integer, 0 without), `action` (one of ACTIONS) and its `argument`. Every batch goes
through `process`, which doubles the numbers. The `rows` of an answer say how many requests shared its run.
"""

import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

from pipeline import InvalidInput, Op, ProductError, WebService


def hang(_: str) -> None:
    while True:
        signal.pause()


def wait_for_file(path: str) -> None:
    Path(path + ".waiting").write_text(str(os.getpid()))
    while not Path(path).exists():
        time.sleep(0.005)


def wait_once(path: str) -> None:
    """The first to come stays until the file `<path>.gate` is there; the next pass."""
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return
    wait_for_file(path + ".gate")


def read_once(path: str) -> None:
    """The first to come reads the FIFO `<path>.gate`, which takes no CPU; the next pass."""
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return
    Path(path + ".waiting").touch()
    Path(path + ".gate").read_bytes()


def fail(text: str) -> None:
    raise KeyError(text)


def fail_with_text(text: str) -> None:
    raise RuntimeError(text)  # whose traceback has the text as it is


def refuse(text: str) -> None:
    raise InvalidInput(text)


def refuse_with_51(text: str) -> None:
    raise ProductError(text, err_no=51)


def die(_: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(path: str) -> None:
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return
    die("")


def tell(text: str) -> None:
    logging.getLogger("pipeline.echo").warning(text)


def tell_and_die(text: str) -> None:
    tell(text)
    die("")


def tell_in_fork(text: str) -> None:
    pid = os.fork()
    if pid == 0:
        tell(text)
        os._exit(0)
    os.waitpid(pid, 0)


def interrupt(_: str) -> None:
    raise KeyboardInterrupt


ACTIONS = {
    "": lambda _: None,
    "hang": hang,
    "wait": wait_for_file,
    "wait_once": wait_once,
    "read_once": read_once,
    "raise": fail,
    "raise_text": fail_with_text,
    "refuse": refuse,
    "refuse_51": refuse_with_51,
    "die": die,
    "die_once": die_once,
    "exit": sys.exit,
    "interrupt": interrupt,
    "print": print,
    "tell": tell,
    "tell_and_die": tell_and_die,
    "tell_in_fork": tell_in_fork,
    "leave": lambda _: os._exit(3),
}


IN_PROCESS = {"": 0, "raise": 1, "lose_gpu": 2}
lost = (
    threading.Event()
)  # as after an assertion in a CUDA kernel, which each later call of the process repeats


class EchoOp(Op):
    def init_op(self):
        self.started_by = os.getpid()
        self.seen = []
        self.lock = threading.Lock()

    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        self.own_number = int(inputs.get("number", "0"))
        self.own_text = inputs.get("text", "")
        with self.lock:
            self.seen.append(self.own_number)
        ACTIONS[inputs.get("action", "")](inputs.get("argument", ""))
        fault = IN_PROCESS[inputs.get("action_in_process", "")]
        return {"number": np.array([[self.own_number, fault]])}, False, None, ""

    def process(self, feed_batch, typical_logid=0):
        numbers = feed_batch[0]["number"]
        if (numbers[:, 1] == IN_PROCESS["lose_gpu"]).any():
            lost.set()
        if lost.is_set():
            raise RuntimeError("CUDA error: device-side assert triggered\nPass `CUDA_LAUNCH_BLOCKING=1`")
        if numbers[:, 1].any():
            raise ValueError("the engine does not take this")
        rows = np.full(len(numbers), len(numbers))
        return {"doubled": numbers[:, 0] * 2, "rows": rows}, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        answer = {
            "number": self.own_number,
            "doubled": fetch_dict["doubled"][0],
            "rows": fetch_dict["rows"][0],
            "seen": len(self.seen),
            "pid": self.started_by,
            "text": self.own_text,
        }
        return {key: str(value) for key, value in answer.items()}, None, ""


class EchoService(WebService):
    def get_pipeline_response(self, read_op):
        return EchoOp(name="echo", input_ops=[read_op])


if __name__ == "__main__":
    service = EchoService(name="test")
    service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
    service.run_service()

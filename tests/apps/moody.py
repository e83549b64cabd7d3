"""An Op whose model does, once it is served, as the file MOOD says: "fail" or "hang"; else it runs.

Inputs: `do` (one of DEEDS) and its `argument`.
"""

import os
import signal
import time
from pathlib import Path

from pipeline import Op, WebService
from pipeline.messages.frames import arena_fds, frame
from pipeline.messages.messages import Reply, Timings

MOOD = Path(os.environ.get("MOOD", "/nonexistent"))
HOARD = []


def grow(megabytes):
    HOARD.append(b"x" * (int(megabytes) * 1_000_000))


def fork(session):
    """A child that outlives its parent, as one of multiprocessing or of a careless library may."""
    child = os.fork()
    if not child:
        if session:
            os.setsid()
        time.sleep(600)
        os._exit(0)
    return child


def native(path):
    """Stay in a native call that holds Python's lock."""
    import ctypes

    Path(path).touch()
    ctypes.PyDLL(None).sleep(60)


def shorten(_):
    """What a hook might do that closes or cuts all files it finds."""
    for fd in arena_fds():
        os.ftruncate(fd, 0)


def end_the_first_dispatch(path):
    """Tell the front, the first time, that the dispatch has ended, though none was answered."""
    send_once(path, frame(Reply(0, True, [], Timings())))


def begin_a_frame(path):
    """Announce a megabyte, the first time, and send less."""
    send_once(path, frame(Reply(0, True, [], Timings()), [bytes(1_000_000)])[:1])


def send_once(path, parts):
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return
    connections = [int(entry.name) for entry in Path("/proc/self/fd").iterdir() if is_socket(entry)]
    for part in parts:
        os.write(connections[0], part)


def is_socket(entry):
    try:
        return str(entry.readlink()).startswith("socket:")
    except FileNotFoundError:  # the one that listed them
        return False


DEEDS = {
    "": lambda _: None,
    "grow": grow,
    "fork": fork,
    "fork_and_return": lambda _: os.fork(),
    "native": native,
    "shorten": shorten,
    "end_the_first_dispatch": end_the_first_dispatch,
    "begin_a_frame": begin_a_frame,
}


class MoodyOp(Op):
    def init_op(self):
        if self.predictor is not None:
            run = self.predictor.run

            def moody_run(feeds):
                mood = MOOD.read_text() if MOOD.exists() else ""
                if mood == "fail":
                    raise RuntimeError("the card has fallen off the bus")
                if mood == "hang":
                    signal.pause()
                return run(feeds)

            self.predictor.run = moody_run

    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        done = DEEDS[inputs.get("do", "")](inputs.get("argument", ""))
        return {"pid": str(os.getpid()), "done": str(done)}, True, None, ""


class MoodyService(WebService):
    def get_pipeline_response(self, read_op):
        return MoodyOp(name="moody", input_ops=[read_op])


if __name__ == "__main__":
    service = MoodyService(name="test")
    service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
    service.run_service()

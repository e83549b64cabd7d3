"""An Op that writes to descriptors 1 and 2 as native code does: a text, or so many bytes.

The script writes a line before it runs the service: in a worker, while that starts.
"""

import ctypes
import faulthandler
import os

from pipeline import Op, WebService

libc = ctypes.PyDLL(None)  # its functions hold Python's lock while they run


def write(fd, text):
    data = text.encode() + b"\n"
    libc.write(fd, data, len(data))


def flood(_, size):
    for fd in (1, 2):
        for _ in range(int(size) // 1000):
            write(fd, "x" * 999)


def abort(_, text):
    write(2, text)
    libc.abort()


def segfault(_, text):
    faulthandler.enable()
    print(text)  # noqa: T201 - of a hook
    ctypes.string_at(0)


DOES = {
    "print": lambda _, text: print(text),  # noqa: T201 - of a hook
    "write": lambda fd, text: write(int(fd), text),
    "begin": lambda fd, text: libc.write(int(fd), text.encode(), len(text.encode())),
    "flood": flood,
    "abort": abort,
    "segfault": segfault,
}


class NativeOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        DOES[inputs["do"]](inputs.get("fd", "1"), inputs.get("text", ""))
        return {"done": inputs["do"]}


class NativeService(WebService):
    def get_pipeline_response(self, read_op):
        return NativeOp(name="native", input_ops=[read_op])


if __name__ == "__main__":
    service = NativeService(name="test")
    service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
    write(2, "E1123 12:00:00.000001 1 native.cc:7] the script runs")
    service.run_service()

"""Two Ops: `make` puts out the value that the request names, `look` says what arrived."""

import collections
import datetime
import enum
import os
import sys
from dataclasses import dataclass

import numpy as np
import PIL.Image

from pipeline import Op, WebService

REGION_BYTES = 16 * 1024 * 1024  # of shared memory for one dispatch; more goes over the socket


@dataclass
class Box:
    """Defined in the script itself, which is `__main__` in every worker."""

    content: object


class Colour(enum.IntEnum):
    RED = 1


class LoadsBadly:
    """Pickles, but can't be unpickled."""

    def __reduce__(self):
        return (int, ("no number",))


class LeavesWhenLoaded:
    def __reduce__(self):
        return (sys.exit, ("it leaves",))


class PicklesBadly:
    def __reduce__(self):
        raise ValueError("not this one")


VALUES = {
    "none": lambda: None,
    "bool": lambda: True,
    "int": lambda: -(2**63),
    "large int": lambda: 2**80,
    "float": lambda: 0.1,
    "complex": lambda: 1 + 2j,
    "str": lambda: "国足 é \ud800",
    "empty str": lambda: "",
    "bytes": lambda: b"\x00\xff",
    "list": lambda: [1, [2.5, None], ["a"]],
    "tuple": lambda: (1, (2, [3, ()])),
    "set": lambda: {1, 2},
    "dict of odd keys": lambda: {1: "a", (2, 3): "b", None: "c", b"d": 4},
    "ordered dict": lambda: collections.OrderedDict(b=1, a=2),
    "class of the script": lambda: Box([1, Box("x")]),
    "class in a tuple in a list": lambda: [(Box(1), 2)],
    "enum": lambda: Colour.RED,
    "datetime": lambda: datetime.datetime(2020, 2, 29, tzinfo=datetime.UTC),
    "image": lambda: PIL.Image.frombytes("RGB", (2, 1), b"abcdef"),
    "numpy int": lambda: np.int16(-5),
    "numpy float": lambda: np.float32(0.1),
    "numpy bool": lambda: np.bool_(True),
    "numpy str": lambda: np.str_("国"),
    "numpy empty str": lambda: np.str_(""),
    "numpy date": lambda: np.datetime64("2020-02-29"),
    "0-d array": lambda: np.array(3.5),
    "empty array": lambda: np.zeros((2, 0, 3), "float32"),
    "small array": lambda: np.arange(6, dtype="int8").reshape(2, 3),
    "array of str": lambda: np.array(["", "国足"]),
    "array of bool": lambda: np.array([True, False]),
    "array of objects": lambda: np.array([Box(1), None], object),
    "structured array": lambda: np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
    "big-endian array": lambda: np.arange(3, dtype=">i4"),
    "Fortran-ordered array": lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "array at the inline limit": lambda: np.arange(4096, dtype="uint8"),
    "strided array": lambda: np.arange(4000)[::2],
    "array for shared memory": lambda: np.arange(25_000, dtype="float32"),
    "array as large as the shared memory": lambda: np.arange(REGION_BYTES, dtype="uint8"),
    "array over the shared memory": lambda: np.arange(REGION_BYTES // 4 + 1, dtype="float32"),
    "two arrays over the shared memory": lambda: [np.full(REGION_BYTES, i, "uint8") for i in (1, 2)],
    "unloadable": LoadsBadly,
    "leaving": LeavesWhenLoaded,
    "unpicklable": PicklesBadly,
    "lambda": lambda: lambda: None,
}


def same(a: object, b: object) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


class MakeOp(Op):
    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        name = fetch_dict["name"]
        return {"name": name, "value": VALUES[name]()}


class LookOp(Op):
    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        value = fetch_dict["value"]
        if same(value, VALUES[fetch_dict["name"]]()):
            return {"seen": "the same"}
        return {"seen": f"{type(value).__name__} {value!r:.200}"}


class ValueService(WebService):
    def get_pipeline_response(self, read_op):
        make = MakeOp(name="make", input_ops=[read_op])
        return LookOp(name="look", input_ops=[make])


service = ValueService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

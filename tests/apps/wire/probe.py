"""An app written for Paddle Serving: the key `cmd` chooses what its only Op does or answers."""

import enum
import os
import sys

import numpy as np

from paddle_serving_server.pipeline.error_catch import CustomException, CustomExceptionCode
from paddle_serving_server.web_service import Op, WebService


class OwnCode(enum.Enum):
    """An app's numbers as an enumeration; the wire takes plain numbers alone."""

    OUT_OF_STOCK = 77


REFUSALS = {
    "pre_prod51": (51, "product error 51"),
    "pre_prod100001": (100001, "product error 100001"),
    "pre_prod_enum": (OwnCode.OUT_OF_STOCK, "enum"),
    "pre_prod_str": ("51", "strcode"),
    "pre_prod_noneinfo": (52, None),
}


def answers():
    """What `postprocess` answers by `cmd`."""
    four = np.arange(4)
    thirds = np.arange(4, dtype="float64") / 3
    single = {
        # arrays
        "f32": np.arange(4, dtype="float32") / 3,
        "f64": thirds,
        "f16": four.astype("float16"),
        "i64": four,
        "i32": four.astype("int32"),
        "u8": four.astype("uint8"),
        "bool": np.array([True, False]),
        "npstr": np.array(["x", "中文"]),
        "bytes": np.array([b"ab"]),
        "obj": np.array([{"k": 1}, None], dtype=object),
        "zerod": np.array(3.5),
        "npscalar": np.float32(3.5),
        "empty": np.zeros((0, 3), "float32"),
        "nan": np.array([np.nan, np.inf, -np.inf]),
        "big": np.arange(3000, dtype="float32").reshape(3, 1000),
        "d3": np.zeros((2, 2, 2), "float32"),
        "sci": np.array([1e-8, 1e8, 1.0], "float32"),
        "complex": np.array([1 + 2j]),
        # Python objects
        "str": 'hello 中文 <&>\u2028"q"',
        "strempty": "",
        "liststr": ["x", "中文", "it's"],
        "listint": [1, 2],
        "listnd": [np.array([1])],
        "emptylist": [],
        "int": 1,
        "float": 1.5,
        "none": None,
        "dict": {"b": 1},
        "boolpy": True,
        "bytespy": b"x",
        "tuple": ("x",),
    }
    several = {
        "two": {"b": np.array([1]), "a": np.array([2])},
        "str2": {"b": "1", "a": "2"},
        "mixed": {"a": np.array([1]), "b": "s"},
        "mixed2": {"b": "s", "a": np.array([1])},
        "emptydict": {},
        "intkey": {1: "x"},
        "intkey_nd": {1: np.array([1])},
        "lod": {"a": np.arange(3), "a.lod": np.array([0, 3])},
        "retlist": [1],
        "retnone": None,
        "retlistofdict": [{"a": np.array([1])}],
    }
    return {cmd: {"a": value} for cmd, value in single.items()} | several


class ProbeOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        ((_, inputs),) = input_dicts.items()
        cmd = inputs.get("cmd", "")
        if cmd == "pre_raise":
            raise ValueError("boom 'quoted' \"dq\"\nnewline: colon, 中文 <b>&")
        if cmd == "pre_keyerror":
            return {}["nokey"]
        if cmd == "pre_custom_user":
            raise CustomException(
                CustomExceptionCode.INPUT_PARAMS_ERROR, "my custom message: with colon", True
            )
        if cmd in REFUSALS:
            return inputs, False, *REFUSALS[cmd]
        if cmd == "pre_wrong_arity":
            return inputs
        if cmd == "pre_none":
            return None, False, None, ""
        return inputs, cmd == "pre_skip", None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        ((_, inputs),) = input_dicts.items()
        cmd = inputs.get("cmd", "")
        if cmd in ANSWERS:
            return ANSWERS[cmd], None, ""
        if cmd == "post_raise":
            raise RuntimeError("post boom")
        if cmd == "post_prod60":
            return {"a": "x"}, 60, "post product error"
        if cmd == "post_wrong_arity":
            return {"a": "x"}
        if cmd == "respsize":
            return {"a": "x" * int(inputs["s"])}, None, ""
        if cmd == "echo":
            return {key: repr(value) for key, value in inputs.items()}, None, ""
        if cmd == "types":
            return {key: described(value) for key, value in inputs.items()}, None, ""
        if cmd == "ids":
            return self.identity(input_dicts, fetch_dict, data_id, log_id), None, ""
        return {"echo": cmd or "nocmd"}, None, ""

    def identity(self, input_dicts, fetch_dict, data_id, log_id):
        ((_, inputs),) = input_dicts.items()
        facts = {
            "data_id": data_id,
            "log_id": log_id,
            "input_dicts_keys": list(input_dicts),
            "concurrency_idx": self.concurrency_idx,
            "fetch_dict_is": type(fetch_dict).__name__,
            "same": sorted(fetch_dict) == sorted(inputs),
            "pid": os.getpid(),
        }
        return {name: repr(fact) for name, fact in facts.items()}


def described(value):
    return "|".join(str(fact) for fact in (type(value).__name__, dtype_of(value), shape_of(value), value))


def dtype_of(value):
    return getattr(value, "dtype", "")


def shape_of(value):
    return getattr(value, "shape", "")


ANSWERS = answers()


class ProbeService(WebService):
    def get_pipeline_response(self, read_op):
        return ProbeOp(name="probe", input_ops=[read_op])


# Not guarded by `if __name__`, as in most of the examples of the time.
service = ProbeService(name="probe")
service.prepare_pipeline_config(sys.argv[1])
service.run_service()

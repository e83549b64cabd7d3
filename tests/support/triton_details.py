"""A repository of small models for details of Triton: flawed settings, and tensors that few models have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from tests.support.triton_repository import write_model

_X = 'input { name: "X" data_type: TYPE_FP32 dims: 2 }\n'
_Y = 'output { name: "Y" data_type: TYPE_FP32 dims: 2 }\n'
_IDENTITY = 'backend: "identity"\n'
_LEVELS = "max_batch_size: 2\ndynamic_batching { priority_levels: 2 default_priority_level: "
_DELAY = "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 }"
FLAWED = {
    "type": 'input { name: "X" dims: 2 }\n' + _Y,
    "reshape": _X.replace("dims: 2", "dims: [ -1, 2 ] reshape { shape: [ -1, 3 ] }") + _Y,
    "level": _X + _Y + _LEVELS + "1 priority_queue_policy { key: 3 value { max_queue_size: 1 } } }",
    "default": _X + _Y + _LEVELS + "3 }",
    "delay": _X + _Y + f"dynamic_batching {{ preserve_ordering: true {_DELAY} }}",
    "order": _X + _Y + _LEVELS + "1 preserve_ordering: true }",
    "cpu": _X + _Y + "instance_group { kind: KIND_CPU gpus: 0 }",
    "gpu": _X + _Y + "instance_group { kind: KIND_GPU gpus: 99 }",
    "seventh_gpu": _X + _Y + "instance_group { kind: KIND_GPU gpus: [ 0, 7 ] }",  # of fewer
    "passive": _X + _Y + "instance_group { passive: true }",
    "scalar": _X.replace("dims: 2", "dims: 1 reshape { }") + _Y,
    "preference": _X + _Y + "dynamic_batching { preferred_batch_size: 1 }",
    "metrics": _X + _Y + 'model_metrics { metric_control { metric_identifier { family: "f" } } }',
}
_SETTINGS = f"""{_IDENTITY}{_X.replace("dims: 2", "dims: -1")}{_Y.replace("dims: 2", "dims: -1")}
dynamic_batching {{ }}
response_cache {{ enable: true }}
instance_group {{ name: "idle" count: 3 passive: true }}
instance_group {{
  rate_limiter {{ resources {{ name: "R" count: 1 }} priority: 1 }}
  secondary_devices {{ kind: KIND_NVDLA device_id: 1 }}
}}
metric_tags {{ key: "team" value: "vision" }}
metric_tags {{ key: "not-a-label" value: "x" }}
model_operations {{ op_library_filename: "libmine.so" }}
"""
_STEPS = f"""platform: "ensemble"
max_batch_size: 8
{_X}{_Y}
ensemble_scheduling {{ step {{ model_name: "two_rows" model_version: -1
  input_map {{ key: "X" value: "X" }} output_map {{ key: "Y" value: "Y" }} }} }}
"""
_HALVES = """
backend: "onnxruntime"
input { name: "x" data_type: TYPE_BF16 dims: -1 }
output { name: "y" data_type: TYPE_BF16 dims: -1 }
"""
_MIXED = """
backend: "onnxruntime"
input { name: "rows" data_type: TYPE_FP32 dims: [ -1, 4 ] }
input { name: "texts" data_type: TYPE_STRING dims: -1 }
input { name: "number" data_type: TYPE_FP32 dims: 1 }
input { name: "pair" data_type: TYPE_FP32 dims: 2 }
input { name: "stored" data_type: TYPE_FP32 dims: 2 optional: true }
"""


def write_details(folder: Path) -> Path:
    for name, config in FLAWED.items():
        write_model(folder, f"flawed_{name}", f"{_IDENTITY}{config}")
    write_model(folder, "two_rows", f"{_IDENTITY}max_batch_size: 2\n{_X}{_Y}")
    write_model(folder, "flawed_steps", _STEPS)
    write_model(folder, "settings", _SETTINGS)
    x, y = (helper.make_tensor_value_info(name, TensorProto.BFLOAT16, ["N"]) for name in "xy")
    write_onnx(folder, "halves", _HALVES, [helper.make_node("Identity", ["x"], ["y"])], [x], [y])
    _write_mixed(folder)
    return folder


def _write_mixed(folder: Path) -> None:
    """A model with an input without rows, of texts, of rank 0, and one whose value is stored in the file."""
    kinds = {
        "rows": (TensorProto.FLOAT, ["N", 4]),
        "texts": (TensorProto.STRING, ["M"]),
        "number": (TensorProto.FLOAT, []),
        "pair": (TensorProto.FLOAT, [2]),
    }
    tensors = [helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()]
    tensors.append(helper.make_tensor_value_info("stored", TensorProto.FLOAT, [2]))
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in ("rows", "texts", "number")]
    nodes.append(helper.make_node("Add", ["pair", "stored"], ["pair_out"]))
    outputs = [helper.make_tensor_value_info(f"{name}_out", *kind) for name, kind in kinds.items()]
    stored = helper.make_tensor("stored", TensorProto.FLOAT, [2], [10.0, 20.0])
    write_onnx(folder, "mixed", _MIXED, nodes, tensors, outputs, [stored])


def write_onnx(
    folder: Path,
    name: str,
    config: str,
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    stored: Sequence[TensorProto] = (),
) -> None:
    path = write_model(folder, name, config)
    graph = helper.make_graph(list(nodes), name, list(inputs), list(outputs), initializer=list(stored))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path / "1" / "model.onnx")

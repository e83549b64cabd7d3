"""Converts a Paddle model to ONNX by paddle2onnx, in a separate process with the converters' packages.

Workarounds for paddle2onnx:
- A missing operator aborts its process without a message. Its list of operators mixes names of old and new
  programs.
- It writes every GELU by erf, also GELU by tanh: outputs are then off by about 1e-4.
- It names the outputs of a .pdmodel fetch_name_0 and so on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from convert.steps.progress import Steps
from pipeline.errors import ConversionError

# Name in a PIR program: name in paddle2onnx's list.
_LISTED_AS = {
    "add": "elementwise_add",
    "all": "reduce_all",
    "any": "reduce_any",
    "arange": "range",
    "argmax": "arg_max",
    "argmin": "arg_min",
    "batch_norm_": "batch_norm",
    "combine": "builtin_combine",
    "divide": "elementwise_div",
    "expand": "expand_v2",
    "flatten": "flatten_contiguous_range",
    "floor_divide": "elementwise_floordiv",
    "grid_sample": "grid_sampler",
    "hardsigmoid": "hard_sigmoid",
    "hardswish": "hard_swish",
    "matmul": "matmul_v2",
    "max": "reduce_max",
    "maximum": "elementwise_max",
    "mean": "reduce_mean",
    "min": "reduce_min",
    "minimum": "elementwise_min",
    "multiply": "elementwise_mul",
    "nonzero": "where_index",
    "prod": "reduce_prod",
    "remainder": "elementwise_mod",
    "subtract": "elementwise_sub",
    "sync_batch_norm_": "batch_norm",
    "topk": "top_k_v2",
    "unsqueeze": "unsqueeze2",
}
# Operators of the program's frame, or outside the list.
_FRAME_OPERATORS = {
    "p",
    "data",
    "feed",
    "fetch",
    "shadow_output",
    "parameter",
    "constant",
    "set_parameter",
    "yield",
}
_FRAME_OPERATORS |= {"if", "while", "tuple_pop", "tuple_push", "increment_", "assign_value_", "full_"}


def iterate_operators(program: Path) -> Iterator[tuple[str, bool]]:
    """Yield each operator's name and boolean attribute `approximate` from a Paddle graph file, in order."""
    if program.suffix == ".json":
        yield from _pir_operators(json.loads(program.read_text("utf-8"))["program"])
        return
    from paddle.base.proto import framework_pb2

    desc = framework_pb2.ProgramDesc()
    desc.ParseFromString(program.read_bytes())
    for block in desc.blocks:
        for op in block.ops:
            yield op.type, any(attribute.name == "approximate" and attribute.b for attribute in op.attrs)


def unsupported(program: Path) -> list[str]:
    """Return the Paddle model's operators that paddle2onnx can't convert, in alphabetical order."""
    from paddle2onnx import paddle2onnx_cpp2py_export as native

    listed = {*native.get_all_supported_operators_pir(), *native.get_all_supported_operators()}
    names = {name for name, _ in iterate_operators(program)} - _FRAME_OPERATORS
    return sorted(name for name in names if name not in listed and _LISTED_AS.get(name, "") not in listed)


def restore_tanh_gelu(model: Any, program: Path) -> None:
    """Rewrite GELU nodes of an ONNX ModelProto, in place, to the tanh formula if the Paddle graph has it.

    paddle2onnx numbers the nodes in the order of the Paddle graph. x * (1 + erf(x / sqrt 2)) / 2 becomes x *
    (1 + tanh(c x + d x^3)) / 2. Raises ValueError for a graph that paddle2onnx has not written.
    """
    forms = [approximate for name, approximate in iterate_operators(program) if name == "gelu"]
    made_by = {output: node for node in model.graph.node for output in node.output}
    for number, approximate in enumerate(forms):
        if not approximate:
            continue
        tensor = f"p2o.pd_op.gelu.{number}.0"
        chain = []
        for operator, position in (("Mul", 0), ("Mul", 1), ("Add", 0), ("Erf", 0), ("Div", 0)):
            node = made_by.get(tensor)
            if node is None or node.op_type != operator:
                raise ValueError(f"GELU number {number} is not written as expected ({tensor})")
            chain.append(node)
            tensor = node.input[position]
        erf, division = chain[-2:]
        erf.op_type = "Tanh"
        _replace_division(model.graph, division, number)


def name_outputs(model: Any, names: list[str]) -> None:
    """Rename the outputs of an ONNX ModelProto in place; `names` has a name for each output, in order."""
    from onnx import helper

    for output, name in zip(model.graph.output, names, strict=True):
        if output.name != name:
            # Constant folding removes it.
            model.graph.node.append(helper.make_node("Identity", [output.name], [name]))
            output.name = name


def _replace_division(graph: Any, division: Any, number: int) -> None:
    """Replace the node x / sqrt 2 of an ONNX graph by x * (c + d * x * x), the argument of tanh in GELU."""
    from onnx import TensorProto, helper

    x, _ = division.input
    factor = math.sqrt(2 / math.pi)
    name = f"gelu_tanh.{number}"
    # Before it paddle2onnx casts half precision to float32.
    for constant, value in (("c", factor), ("d", factor * 0.044715)):
        tensor = helper.make_tensor(f"{name}.{constant}", TensorProto.FLOAT, [], [value])
        graph.initializer.append(tensor)
    nodes = [
        helper.make_node("Mul", [x, x], [f"{name}.square"]),
        helper.make_node("Mul", [f"{name}.square", f"{name}.d"], [f"{name}.cubic"]),
        helper.make_node("Add", [f"{name}.cubic", f"{name}.c"], [f"{name}.slope"]),
        helper.make_node("Mul", [f"{name}.slope", x], list(division.output)),
    ]
    at = list(graph.node).index(division)
    graph.node.remove(division)
    for node in reversed(nodes):
        graph.node.insert(at, node)


def _pir_operators(part: Any) -> Iterator[tuple[str, bool]]:
    """Yield name and `approximate` of the operators in a part of a .json program.

    The number of the dialect is removed: "1.matmul" becomes matmul.
    """
    if isinstance(part, list):
        for item in part:
            yield from _pir_operators(item)
    elif isinstance(part, dict):
        for op in part.get("ops", ()):
            # Parameters have their attributes as a plain list.
            attributes = [entry for entry in op.get("A", ()) if isinstance(entry, dict)]
            approximate = any(a["N"] == "approximate" and a["AT"].get("D") is True for a in attributes)
            yield op["#"].rpartition(".")[2], approximate
        for value in part.values():
            yield from _pir_operators(value)


OPSETS = range(11, 22)
OPSET = 17  # the first with LayerNormalization as one operator


def export_step(
    steps: Steps,
    program: str,
    params: str,
    fetches: list[str],
    out: str,
    opset: int,
) -> int:
    """Convert a Paddle model to the ONNX file `out` with outputs named `fetches`; return the file's opset.

    paddle2onnx raises the opset if an operator needs a later opset.
    """
    steps.step("Paddle to ONNX")
    import onnx
    import paddle2onnx

    raw = Path(out).with_name("raw.onnx")
    # Its optimisers install packages, or leave duplicate names.
    paddle2onnx.export(
        program,
        params,
        str(raw),
        opset_version=opset,
        enable_optimize=False,
        optimize_tool="none",
    )
    if not raw.is_file():
        raise ConversionError(f"paddle2onnx wrote nothing of {program}; --debug shows what it said.")
    model = onnx.load(str(raw))
    restore_tanh_gelu(model, Path(program))
    name_outputs(model, fetches)
    onnx.save(model, str(raw))
    steps.step("Constant folding")
    _fold_constants(raw, Path(out))
    raw.unlink()
    return _check_and_clean(Path(out))


def unsupported_step(steps: Steps, program: str) -> dict[str, Any]:
    """Return the Paddle model's operators that paddle2onnx can't convert, and the version of paddle2onnx."""
    return {"version": metadata.version("paddle2onnx"), "operators": unsupported(Path(program))}


def _fold_constants(raw: Path, out: Path) -> None:
    """Fold the constants of the ONNX file `raw` with ONNX Runtime, and write the result to `out`.

    The basic optimization level is used, which writes only standard operators.
    """
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    settings.optimized_model_filepath = str(out)
    settings.log_severity_level = 3
    onnxruntime.InferenceSession(str(raw), settings, providers=["CPUExecutionProvider"])


def _check_and_clean(file: Path) -> int:
    """Remove unused operator domains from an ONNX file and run ONNX's checker; return the opset."""
    import onnx

    model = onnx.load(str(file))
    used = {node.domain for node in model.graph.node} | {""}
    opset_imports = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(opset_imports)
    onnx.save(model, str(file))
    onnx.checker.check_model(str(file), full_check=True)
    return next(int(entry.version) for entry in opset_imports if entry.domain == "")

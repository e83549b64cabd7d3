"""Converts an ONNX model to Paddle by x2paddle, in a separate process with the converters' packages.

x2paddle knows the operators of opset 15. Later operators are rewritten to opset 15 one by one, where their
meaning stays: `onnx.version_converter` would corrupt reductions silently. x2paddle writes and runs Python
code with the model's names, so all names are replaced.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from convert.from_paddle.export import export_layer
from convert.from_paddle.weights import set_weights
from convert.programs.engines import import_paddle
from convert.programs.inference_program import read_program
from convert.programs.program_feeds import ProgramTensor
from convert.steps.progress import Steps
from pipeline.errors import ConversionError

OPSETS = range(7, 22)
KNOWN = 15
FEED, FETCH = "feed", "fetch"
# Opset 16 and later only add types to these.
_SAME = {
    *("Cast", "Constant", "ConstantOfShape", "Equal", "Flatten", "GreaterOrEqual", "Identity", "LessOrEqual"),
    *("PRelu", "Reshape", "Shape", "Size", "Squeeze", "Transpose", "Unsqueeze", "Where"),
}
# x2paddle makes layers of these, which remove their weights from the rest of the graph.
_LAYERS = {"BatchNormalization", "Conv", "ConvTranspose", "Gemm", "InstanceNormalization", "PRelu"}
_REDUCTIONS = {"ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"}
_PLAIN = re.compile(r"[A-Za-z0-9_ ]*")


def prepare(model: Any) -> Any:
    """Rewrite an ONNX ModelProto for x2paddle, with equal arithmetic: opset 15, inputs feed_0, feed_1.

    Raises ConversionError that names an unsupported operator or opset.
    """
    import onnx

    _refuse_foreign(model)  # first: a model of such operators alone has no opset of the standard
    opset = _opset(model)
    inferred = onnx.shape_inference.infer_shapes(model)
    graph = _Graph(inferred)
    for node in list(inferred.graph.node):
        rewrite = _REWRITES.get(node.op_type)
        if rewrite is not None:
            rewrite(graph, node)
    _part_shared_weights(inferred)
    if opset > KNOWN:
        for node in inferred.graph.node:
            _write_as_known(node, opset)
        for entry in inferred.opset_import:
            entry.version = KNOWN if entry.domain in ("", "ai.onnx") else entry.version
    _rename(inferred)
    del inferred.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(inferred)


class _Graph:
    """An editable ONNX graph that finds constants and inferred element types by tensor name."""

    def __init__(self, model: Any) -> None:
        from onnx import numpy_helper

        self.graph = model.graph
        self.constants = {tensor.name: tensor for tensor in self.graph.initializer}
        for node in self.graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self.constants[node.output[0]] = node.attribute[0].t
        values = [*self.graph.value_info, *self.graph.input]
        self.types = {value.name: value.type.tensor_type.elem_type for value in values}
        self._read = numpy_helper.to_array
        self._made = 0

    def values(self, name: str) -> Any:
        """Return the tensor of this name as an array if it is a constant; None for a computed tensor."""
        tensor = self.constants.get(name)
        return None if tensor is None else self._read(tensor)

    def constant(self, value: Any) -> str:
        """Add an array to the graph as an initializer with a new name; return the name."""
        from onnx import numpy_helper

        name = self.name()
        self.graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    def name(self) -> str:
        self._made += 1
        return f"lowered.{self._made}"

    def replace(self, node: Any, nodes: Sequence[Any]) -> None:
        """Replace a node by several nodes at the same position."""
        at = list(self.graph.node).index(node)
        self.graph.node.remove(node)
        for new_node in reversed(nodes):
            self.graph.node.insert(at, new_node)

    def chain(self, node: Any, *steps: tuple[Any, ...]) -> None:
        """Replace a node by a chain of nodes, each given as (operator, input, ..., {attributes}).

        An input of None stands for the output of the previous node.
        """
        from onnx import helper

        nodes: list[Any] = []
        for number, (operator, *inputs) in enumerate(steps):
            attributes = inputs.pop() if inputs and isinstance(inputs[-1], dict) else {}
            names = [nodes[-1].output[0] if name is None else name for name in inputs]
            last = number == len(steps) - 1
            output = node.output[0] if last else attributes.pop("named", None) or self.name()
            nodes.append(helper.make_node(operator, names, [output], **attributes))
        self.replace(node, nodes)


def _layer_normalization(graph: _Graph, node: Any) -> None:
    """Rewrite a LayerNormalization node as (x - mean) / sqrt(variance + epsilon) * scale + bias.

    The mean is taken over `axis` and all later axes.
    """
    import numpy as np

    attributes = _attributes(node)
    rank = _rank(graph, node.input[0])
    axis = attributes.get("axis", -1)
    if len([name for name in node.output if name]) > 1 or (axis != -1 and rank is None):
        raise ConversionError("LayerNormalization gives its mean, too, or has an axis that can't be told")
    axes = [-1] if axis == -1 else list(range(axis % (rank or 1), rank or 1))
    epsilon = graph.constant(np.array(attributes.get("epsilon", 1e-5), np.float32))
    centred, reduced = graph.name(), {"axes": axes, "keepdims": 1}
    x, scale, *bias = node.input
    steps: list[tuple[Any, ...]] = [
        ("ReduceMean", x, dict(reduced)),
        ("Sub", x, None, {"named": centred}),
        ("Mul", centred, centred),
        ("ReduceMean", None, dict(reduced)),
        ("Add", None, epsilon),
        ("Sqrt", None),
        ("Div", centred, None),
        ("Mul", None, scale),
    ]
    graph.chain(node, *steps, *([("Add", None, bias[0])] if bias and bias[0] else []))


def _gelu(graph: _Graph, node: Any) -> None:
    """Rewrite a Gelu node as x / 2 * (1 + erf(x / sqrt 2)), or by its tanh formula."""
    import numpy as np

    x = node.input[0]
    half, unit = graph.constant(np.array(0.5, np.float32)), graph.constant(np.array(1.0, np.float32))
    end = (("Add", None, unit), ("Mul", None, x), ("Mul", None, half))
    if _attributes(node).get("approximate", b"none") != b"tanh":
        graph.chain(node, ("Div", x, graph.constant(np.array(math.sqrt(2), np.float32))), ("Erf", None), *end)
        return
    factor = math.sqrt(2 / math.pi)
    cubic = graph.constant(np.array(factor * 0.044715, np.float32))
    linear = graph.constant(np.array(factor, np.float32))
    start = (("Mul", x, x), ("Mul", None, cubic), ("Add", None, linear), ("Mul", None, x), ("Tanh", None))
    graph.chain(node, *start, *end)


def _reduction(graph: _Graph, node: Any) -> None:
    """Rewrite the axes of a reduction node as an attribute; since opset 18 they are an input."""
    from onnx import helper

    if len(node.input) < 2 or not node.input[1]:
        return
    axes = graph.values(node.input[1])
    if axes is None:
        raise ConversionError(f"{node.op_type} computes its axes")
    if not axes.size and _attributes(node).get("noop_with_empty_axes"):
        raise ConversionError(f"{node.op_type} may reduce nothing")
    keep = helper.make_attribute("keepdims", _attributes(node).get("keepdims", 1))
    del node.attribute[:]
    node.attribute.append(keep)
    if axes.size:
        node.attribute.append(helper.make_attribute("axes", [int(axis) for axis in axes.ravel()]))
    del node.input[1:]


def _constant_of_shape(graph: _Graph, node: Any) -> None:
    """Rewrite a ConstantOfShape node with Expand if Gather uses its output as indices.

    The rewritten node keeps the integer type.
    """
    import numpy as np
    from onnx import numpy_helper

    users = [user for user in graph.graph.node if node.output[0] in user.input[1:]]
    if not any(user.op_type == "Gather" for user in users):
        return
    value = _attributes(node).get("value")
    filling = np.zeros(1, np.float32) if value is None else numpy_helper.to_array(value).reshape(1)
    graph.chain(node, ("Expand", graph.constant(filling), node.input[0]))


def _cumulative_sum(graph: _Graph, node: Any) -> None:
    """Add a cast to the input's type after CumSum.

    Paddle returns int64 for int32 inputs, and can't multiply int64 with int32.
    """
    kind = graph.types.get(node.input[0])
    if kind is not None and kind != 7 and kind != 1:  # int64, float
        graph.chain(node, ("CumSum", *node.input, _attributes(node)), ("Cast", None, {"to": kind}))


def _max_pool(graph: _Graph, node: Any) -> None:
    """Remove a dilation of 1 from MaxPool, which PyTorch's exporter writes and x2paddle rejects."""
    for attribute in list(node.attribute):
        if attribute.name == "dilations" and set(attribute.ints) == {1}:
            node.attribute.remove(attribute)


_REWRITES: dict[str, Callable[[_Graph, Any], None]] = {
    "ConstantOfShape": _constant_of_shape,
    "CumSum": _cumulative_sum,
    "Gelu": _gelu,
    "LayerNormalization": _layer_normalization,
    "MaxPool": _max_pool,
    **dict.fromkeys(_REDUCTIONS, _reduction),
}


def _opset(model: Any) -> int:
    versions = [int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if not versions or versions[0] not in OPSETS:
        shown_version = versions[0] if versions else "unknown"
        raise ConversionError(
            f"opset {shown_version} is not one from {OPSETS[0]} to {OPSETS[-1]}; export it again at {KNOWN}"
        )
    return versions[0]


def _refuse_foreign(model: Any) -> None:
    """Raise ConversionError for operators of other domains, nested graphs, and strings unsafe in code.

    x2paddle writes the strings of a model into Python code.
    """
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx"):
            raise ConversionError(f"{node.op_type} of {node.domain} is no operator of the standard")
        for attribute in node.attribute:
            if attribute.HasField("g") or attribute.graphs:
                raise ConversionError(f"{node.op_type} holds a graph of its own")
            for text in (attribute.s, *attribute.strings):
                if not _PLAIN.fullmatch(text.decode("utf-8", "replace")):
                    raise ConversionError(f"{node.op_type} has a {attribute.name} that is no plain word")


def _write_as_known(node: Any, opset: int) -> None:
    """Remove a node's attributes that opset 15 does not have.

    Raises ConversionError for an operator that is missing or different in opset 15.
    """
    from onnx import defs

    since = defs.get_schema(node.op_type, max_inclusive_version=opset).since_version
    lowered = node.op_type in _REWRITES and node.op_type not in ("Gelu", "LayerNormalization")
    if since <= KNOWN:
        return
    if node.op_type not in _SAME and not lowered:
        raise ConversionError(
            f"{node.op_type} of opset {since} can't be written as that of {KNOWN}; export it again at {KNOWN}"
        )
    # Attributes about later types, such as Cast's `saturate`, are dropped.
    allowed = defs.get_schema(node.op_type, max_inclusive_version=KNOWN).attributes
    attributes = [attribute for attribute in node.attribute if attribute.name in allowed]
    del node.attribute[:]
    node.attribute.extend(attributes)


def _part_shared_weights(model: Any) -> None:
    """Copy weights that several layers share, so that each layer has its own.

    PyTorch's exporter stores equal weights once, with Identity nodes.
    """
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    named = {
        node.output[0]: node for node in graph.node if node.op_type == "Identity" and node.input[0] in stored
    }
    used_names: set[str] = set()
    for number, node in enumerate(graph.node):
        for place, name in enumerate(node.input if node.op_type in _LAYERS else ()):
            origin = named[name].input[0] if name in named else name
            if origin in stored and (origin != name or name in used_names):
                copy = graph.initializer.add()
                copy.CopyFrom(stored[origin])
                copy.name = node.input[place] = f"{origin}.of_{number}_{place}"
            used_names.add(name)
    used = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    for name in named.keys() - used:
        graph.node.remove(named[name])


def _rename(model: Any) -> None:
    """Rename all tensors and nodes of a ModelProto in place, as feed_0, t5 or n3.

    Constants are removed from the inputs.
    """
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    del graph.input[:]
    graph.input.extend(inputs)
    names = {"": ""}
    names |= {value.name: f"{FEED}_{number}" for number, value in enumerate(graph.input)}
    names |= {value.name: f"{FETCH}_{number}" for number, value in enumerate(graph.output)}
    for value in (*graph.input, *graph.output):
        value.name = names[value.name]
    for tensor in graph.initializer:
        tensor.name = names.setdefault(tensor.name, f"t{len(names)}")
    for number, node in enumerate(graph.node):
        node.name = f"n{number}"
        for tensors in (node.input, node.output):
            tensors[:] = [names.setdefault(name, f"t{len(names)}") for name in tensors]
    graph.name = "model"


def _attributes(node: Any) -> dict[str, Any]:
    from onnx import helper

    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _rank(graph: _Graph, name: str) -> int | None:
    for value in (*graph.graph.value_info, *graph.graph.input):
        if value.name == name and value.type.tensor_type.HasField("shape"):
            return len(value.type.tensor_type.shape.dim)
    return None


_PREFIX = "x2paddle_"


def export_step(steps: Steps, model: str, out: str) -> list[str]:
    """Convert a .onnx file to a Paddle model in the folder `out`, and return the names of unused inputs.

    Raises ConversionError with the unsupported operator or opset; its message completes the caller's
    sentence.
    """
    import onnx

    steps.step("Preparing the ONNX model")
    feeds = read_program(Path(model)).feeds
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        onnx.save(prepare(onnx.load(model)), str(file))
        steps.step("ONNX to Paddle")
        import_paddle()
        layer = _create_layer(file)
        by_name = {f"{_PREFIX}{FEED}_{number}": feed for number, feed in enumerate(feeds)}
        arguments: list[ProgramTensor | None] = [
            by_name[n] for n in inspect.signature(layer.forward).parameters
        ]
        export_layer(layer, arguments, Path(out))
    used = {feed.name for feed in arguments if feed}
    return [feed.name for feed in feeds if feed.name not in used]


def _create_layer(file: Path) -> Any:
    """Return a Paddle Layer with the ONNX file's weights, built by the code that x2paddle writes."""
    from x2paddle.decoder.onnx_decoder import ONNXDecoder
    from x2paddle.op_mapper.onnx2paddle.onnx_op_mapper import ONNXOpMapper
    from x2paddle.op_mapper.onnx2paddle.opset15 import OpSet15
    from x2paddle.optimizer.optimizer import GraphOptimizer

    decoder = ONNXDecoder(str(file), enable_onnx_checker=True)
    opset = OpSet15(decoder, None)
    kinds = {getattr(decoder.graph.get_node(name), "layer_type", "") for name in decoder.graph.topo_sort}
    lacking = sorted(
        kind
        for kind in kinds - {"place_holder", "create_parameter"}
        if not hasattr(opset, kind) and kind not in {**opset.directly_map_ops, **opset.elementwise_ops}
    )
    if lacking:
        raise ConversionError(f"x2paddle has no Paddle form of {', '.join(lacking)}")
    graph = ONNXOpMapper(ONNXDecoder(str(file), enable_onnx_checker=True)).paddle_graph
    graph.build()
    GraphOptimizer(source_frame="onnx").optimize(graph)
    graph.gen_code(str(file.parent))
    code = file.parent / "x2paddle_code.py"
    spec = importlib.util.spec_from_file_location("x2paddle_code", code)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    layer = getattr(module, graph.name)()
    set_weights(layer, graph.parameters, file, allow_extra=True)
    layer.eval()
    return layer

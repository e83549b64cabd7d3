"""Makes the fixed batch size of an ONNX graph dynamic, in a process with the converters' packages."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from convert.steps.progress import Steps

BATCH = "batch"  # the name of the axis
# Operators with a stored shape, and the length there that keeps the input's length.
_SHAPED = {"Reshape": -1, "Expand": 1}
_RECURRENT = {"LSTM", "GRU", "RNN"}
_STATES = (5, 6)  # the places of `initial_h` and `initial_c` among their inputs
_REPEATING = {"Expand", "Tile", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Cast", "Concat", "Transpose"}
_SHAPE_FUSIONS = ["MatMulAddFusion", "ReshapeFusion"]  # they store shapes, with the rows in them
_END = "_for_any_batch"  # ends the names of added tensors


def rebatch_step(steps: Steps, file: str, out: str, rows: int, fold: bool) -> dict[str, Any]:
    """Write a copy of the ONNX model `file` to `out` whose batch dimension is dynamic instead of `rows`.

    fold: constants are folded first, so that computed shapes become stored shapes. Weights in separate files
    are not copied. Returns how many nodes and constants were changed. The caller must check that the outputs
    are still equal.
    """
    model = onnx.load(file, load_external_data=False)
    _free_ports(model.graph, rows)
    if fold:
        onnx.save(model, out)
        model = _folded(out, f"{out}.folded")
    changed = _FixedGraph(model.graph, rows).free()
    onnx.save(model, out)
    return {"changed": changed}


def _free_ports(graph: Any, rows: int) -> None:
    """Make the batch axis of the graph's inputs and outputs dynamic, and drop stored shapes in between."""
    for port in (*_feeds(graph), *graph.output):
        dims = port.type.tensor_type.shape.dim
        if dims and (dims[0].dim_value == rows or port in graph.output):
            dims[0].dim_param = BATCH
    del graph.value_info[:]


def _feeds(graph: Any) -> list[Any]:
    stored = {tensor.name for tensor in graph.initializer}
    return [port for port in graph.input if port.name not in stored]


def _folded(file: str, out: str) -> Any:
    """Fold constants of an ONNX file with ONNX Runtime, to standard operators only; return the new model."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = out
    options.log_severity_level = 4
    onnxruntime.InferenceSession(
        file, options, providers=["CPUExecutionProvider"], disabled_optimizers=_SHAPE_FUSIONS
    )
    return onnx.load(out)


class _FixedGraph:
    """An ONNX graph whose inputs have a dynamic batch, but whose constants still have the fixed size."""

    def __init__(self, graph: Any, rows: int) -> None:
        self._graph = graph
        self._rows = rows
        self._makers = {output: node for node in graph.node for output in node.output}
        self._stored = {
            tensor.name: tensor
            for tensor in graph.initializer
            if tensor.data_location != onnx.TensorProto.EXTERNAL
        }
        for node in graph.node:
            for attribute in node.attribute if node.op_type == "Constant" else ():
                if attribute.name == "value":
                    self._stored[node.output[0]] = attribute.t

    def free(self) -> int:
        """Rewrite the constants so that any batch size works. Return the number of changes."""
        nodes = list(self._graph.node)
        changed = sum(self._begin_by_itself(node) + self._free_shape(node) for node in nodes)
        if self._rows > 1:
            changed += sum(self._keep_one_row(name) for name in list(self._stored))
        return changed + sum(self._spread_stored(node) for node in nodes)

    def _begin_by_itself(self, node: Any) -> int:
        """Remove a recurrent layer's initial states if they are zeros, which is the default.

        Returns the number of removed states.
        """
        changed = 0
        for place in _STATES if node.op_type in _RECURRENT else ():
            if place < len(node.input) and node.input[place] and self._is_zeros(node.input[place]):
                node.input[place] = ""
                changed += 1
        return changed

    def _is_zeros(self, name: str) -> bool:
        """Return whether a tensor has only zeros: a constant, or zeros that are repeated or reshaped."""
        if name in self._stored:
            return not np.any(self._find_array(name))
        maker = self._makers.get(name)
        if maker is None:
            return False
        if maker.op_type == "ConstantOfShape":
            return not any(np.any(numpy_helper.to_array(attribute.t)) for attribute in maker.attribute)
        parts = maker.input if maker.op_type == "Concat" else maker.input[:1]
        return maker.op_type in _REPEATING and all(map(self._is_zeros, parts))

    def _free_shape(self, node: Any) -> int:
        """Make a node's stored target shape dynamic if it begins with the batch size.

        Return 1 if changed, else 0.
        """
        if node.op_type not in _SHAPED or len(node.input) < 2 or node.input[1] not in self._stored:
            return 0
        shape = np.array(self._find_array(node.input[1]))
        if not shape.size or shape[0] != self._rows:
            return 0
        # Only one length may be -1; beside it, 0 copies the first length of the input.
        shape[0] = 0 if node.op_type == "Reshape" and -1 in shape[1:] else _SHAPED[node.op_type]
        node.input[1] = self._store(f"{node.output[0]}_shape{_END}", shape)
        return 1

    def _keep_one_row(self, name: str) -> int:
        """Replace a constant with equal rows, such as a text's token types, by a single row.

        Return 1 if changed, else 0.
        """
        dims = self._stored[name].dims
        if len(dims) < 2 or dims[0] != self._rows:
            return 0
        array = self._find_array(name)
        if not (array == array[:1]).all():
            return 0
        row = self._store(f"{name}_row{_END}", np.ascontiguousarray(array[:1]))
        for node in self._graph.node:
            for place, tensor in enumerate(node.input):
                if tensor == name:
                    node.input[place] = row
        return 1

    def _spread_stored(self, node: Any) -> int:
        """Repeat a stored row that Concat joins to each batch row, such as a vision model's class token.

        Returns the number of changes.
        """
        stored = [place for place, name in enumerate(node.input) if name in self._stored]
        if node.op_type != "Concat" or not stored or len(stored) == len(node.input):
            return 0
        at = list(self._graph.node).index(node)
        changed = 0
        for place in stored:
            dims = self._stored[node.input[place]].dims
            if len(dims) < 2 or dims[0] != 1:
                continue
            nodes = self._repeated(node.input[place], list(dims), f"{node.output[0]}_{place}")
            for number, node_to_insert in enumerate(nodes):
                self._graph.node.insert(at + number, node_to_insert)
            node.input[place] = nodes[-1].output[0]
            changed += 1
        return changed

    def _repeated(self, name: str, dims: list[int], of: str) -> list[Any]:
        """Return nodes that repeat a stored tensor of one row to the batch size of the inputs.

        of: prefix for the names of the added tensors.
        """
        shape, rows, target, all_rows = (f"{of}_{part}{_END}" for part in ("shape", "rows", "target", "all"))
        first = self._store(f"{of}_first{_END}", np.array([0]))
        rest = self._store(f"{of}_rest{_END}", np.array(dims[1:]))
        return [
            helper.make_node("Shape", [_feeds(self._graph)[0].name], [shape]),
            helper.make_node("Gather", [shape, first], [rows]),
            helper.make_node("Concat", [rows, rest], [target], axis=0),
            helper.make_node("Expand", [name, target], [all_rows]),
        ]

    def _find_array(self, name: str) -> Any:
        return numpy_helper.to_array(self._stored[name])

    def _store(self, name: str, array: Any) -> str:
        tensor = numpy_helper.from_array(array, name)
        self._graph.initializer.append(tensor)
        self._stored[name] = tensor
        return name

"""The step that writes an ONNX model as a Paddle program by x2paddle, in the conversion environment."""

from __future__ import annotations

import importlib.util
import inspect
import tempfile
from pathlib import Path
from typing import Any

from convert.from_paddle.export import export_layer
from convert.from_paddle.weights import set_weights
from convert.paddle_onnx.x2paddle_gaps import FEED, prepare
from convert.programs.engines import import_paddle
from convert.programs.inference_program import read_program
from convert.programs.input_spec import ProgramTensor
from convert.steps.progress import Steps
from pipeline.errors import ConversionError

_PREFIX = "x2paddle_"


def export_step(steps: Steps, model: str, out: str) -> list[str]:
    """Write the Paddle program of a .onnx file to `out`, with its feeds; return the unused feeds.

    Raises ConversionError with the unsupported operator or opset; its message ends the caller's sentence.
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
    """Create the Layer of the code that x2paddle writes beside the file, with its weights."""
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

"""Models of sequences for tests: ONNX models with declared state, and Python models that keep their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as v2_grpc
import tritonclient.http as v2_http

from tests.support.onnx_graphs import Graph
from tests.support.service_process import ServiceProcess
from tests.support.triton_repository import write_model

STATE = """state [ { input_name: "STATE" output_name: "NEXT" data_type: TYPE_FP32 dims: [ 1 ] INITIAL } ]"""
ZEROS = 'initial_state { name: "zeros" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }'


def sum_graph() -> bytes:
    """OUTPUT and the next state are the sum of INPUT and STATE."""
    graph = Graph()
    x, state = (graph.feed(name, "float32", "rows", 1) for name in ("INPUT", "STATE"))
    total = graph.add("Add", x, state)
    graph.fetch(total, "OUTPUT", "float32", "rows", 1)
    graph.fetch(total, "NEXT", "float32", "rows", 1)
    return graph.model()


def write_sum(
    repository: Path,
    name: str = "sum",
    *,
    strategy: str = "oldest { max_candidate_sequences: 4 }",
    idle_us: int = 60_000_000,
    initial: str = ZEROS,
    more: str = "",
    rows: int = 8,
) -> Path:
    """A model that returns the sum of all inputs of its sequence. more: lines of config.pbtxt."""
    config = f"""
    backend: "onnxruntime"
    max_batch_size: {rows}
    input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
    output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
    sequence_batching {{
      max_sequence_idle_microseconds: {idle_us}
      {strategy}
      {STATE.replace("INITIAL", initial)}
    }}
    {more}
    """
    folder = write_model(repository, name, config)
    (folder / "1" / "model.onnx").write_bytes(sum_graph())
    return folder


MEMORY = "memory"
WIDTH = 4


def write_memory(repository: Path, *, idle_s: int) -> Path:
    """A recurrent model of two instances: an answer depends on all inputs of the sequence so far."""
    graph = Graph()
    x, state = (graph.feed(name, "float32", "rows", WIDTH) for name in ("INPUT", "STATE"))
    weights = np.random.default_rng(7).normal(size=(2, WIDTH, WIDTH))
    products = [graph.add("MatMul", of, graph.tensor(w)) for of, w in zip((x, state), weights, strict=True)]
    following = graph.add("Tanh", graph.add("Add", *products))
    for name in ("OUTPUT", "NEXT"):
        graph.fetch(following, name, "float32", "rows", WIDTH)
    config = f"""
    backend: "onnxruntime"
    max_batch_size: 32
    input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]
    output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]
    sequence_batching {{
      max_sequence_idle_microseconds: {idle_s * 1_000_000}
      oldest {{ }}
      state [ {{ input_name: "STATE" output_name: "NEXT" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]
    }}
    instance_group [ {{ count: 2 kind: KIND_CPU }} ]
    """
    folder = write_model(repository, MEMORY, config)
    (folder / "1" / "model.onnx").write_bytes(graph.model())
    return folder


COUNTDOWN = "countdown"
_COUNTDOWN_CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "IN" data_type: TYPE_INT32 dims: 1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
sequence_batching { iterative_sequence: true }
model_transaction_policy { decoupled: true }
instance_group { count: 2 kind: KIND_CPU }
"""
_COUNTDOWN = """
class TritonPythonModel:
    def initialize(self, args):
        self.left = {}

    def execute(self, requests):
        for request in requests:
            key, sender = request.correlation_id(), request.get_response_sender()
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.left[key] = request.inputs()[0].as_numpy().item()
            self.left[key] -= 1
            left = np.array([[self.left[key]]], np.int32)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", left)]))
            if self.left[key] > 0:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                del self.left[key]
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def write_countdown(repository: Path) -> None:
    """A generative model of two instances: it answers the numbers below its input, the last is 0."""
    write_model(repository, COUNTDOWN, _COUNTDOWN_CONFIG, _COUNTDOWN)


def write_ensemble(repository: Path, first: str, second: str) -> None:
    """The ensemble `both`: the output of a model of sequences is the input of another."""
    steps = [(first, "INPUT", "between"), (second, "between", "OUTPUT")]
    step = ", ".join(
        f"""{{ model_name: "{model}" model_version: -1 input_map {{ key: "INPUT" value: "{source}" }}
          output_map {{ key: "OUTPUT" value: "{target}" }} }}"""
        for model, source, target in steps
    )
    config = f"""
    platform: "ensemble"
    max_batch_size: 8
    input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
    output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
    ensemble_scheduling {{ step [ {step} ] }}
    """
    write_model(repository, "both", config)


Infer = Callable[..., Any]


def build_inputs(value: Any, datatype: str = "FP32", kind: Any = v2_grpc) -> list[Any]:
    """The tensor INPUT for a client. kind: tritonclient's module of the protocol."""
    array = np.asarray(value, v2_http.triton_to_np_dtype(datatype)).reshape(-1, 1)
    tensor = kind.InferInput("INPUT", list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return [tensor]


def _infer(kind: Any, client: Any, model: str, value: Any, datatype: str = "FP32", **options: Any) -> Any:
    return client.infer(model, build_inputs(value, datatype, kind), **options)


@contextlib.contextmanager
def protocols(service: ServiceProcess) -> Iterator[list[Infer]]:
    """Functions that send a request of a sequence with tritonclient, over HTTP and over gRPC."""
    with (
        v2_http.InferenceServerClient(f"127.0.0.1:{service.http_port}") as http_client,
        v2_grpc.InferenceServerClient(f"127.0.0.1:{service.rpc_port}") as grpc_client,
    ):
        yield [partial(_infer, v2_http, http_client), partial(_infer, v2_grpc, grpc_client)]


def first(result: Any, name: str = "OUTPUT") -> Any:
    """The only element of an output."""
    (element,) = result.as_numpy(name).ravel().tolist()
    return element


def control(name: str, kind: str, values: str) -> str:
    return f'{{ name: "{name}" control [ {{ kind: CONTROL_SEQUENCE_{kind} {values} }} ] }}'


CONTROLS = [
    control("START", "START", "int32_false_true: [ 0, 1 ]"),
    control("END", "END", "fp32_false_true: [ 0, 1 ]"),
    control("READY", "READY", "bool_false_true: [ false, true ]"),
]
_KINDS = {"UINT64": "uint64", "INT32": "int32", "STRING": "string"}


def write_controls(repository: Path, datatype: str) -> None:
    """A model that returns its controls, beside a sum. datatype: Triton's, of the correlation id."""
    kinds = {"START": "int32", "END": "float32", "READY": "bool", "CORRID": _KINDS[datatype]}
    names = {"START": "STARTED", "END": "ENDED", "READY": "READIED", "CORRID": "ID"}
    graph = Graph()
    x, state = (graph.feed(name, "float32", "rows", 1) for name in ("INPUT", "STATE"))
    graph.fetch(graph.add("Add", x, state), "NEXT", "float32", "rows", 1)
    for name, kind in kinds.items():
        graph.fetch(graph.feed(name, kind, "rows", 1), names[name], kind, "rows", 1)
    types = {"float32": "FP32", "bool": "BOOL"}
    outputs = ", ".join(
        f'{{ name: "{names[name]}" data_type: TYPE_{types.get(kind, kind.upper())} dims: [ 1 ] }}'
        for name, kind in kinds.items()
    )
    corrid = control("CORRID", "CORRID", f"data_type: TYPE_{datatype}")
    config = f"""
    backend: "onnxruntime"
    max_batch_size: 4
    input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
    output [ {outputs} ]
    sequence_batching {{
      control_input [ {", ".join([*CONTROLS, corrid])} ]
      {STATE.replace("INITIAL", "")}
    }}
    """
    folder = write_model(repository, f"controls_{datatype.lower()}", config)
    (folder / "1" / "model.onnx").write_bytes(graph.model())


def layered_graph() -> bytes:
    """A recurrent model with the batch axis of its state second, and a scalar input: `OUTPUT = sr * 6 * sum`.

    The state has 2 layers of width 3.
    """
    graph = Graph()
    x, state = graph.feed("INPUT", "float32", "rows", 1), graph.feed("state", "float32", 2, "rows", 3)
    rate = graph.feed("sr", "int64")
    total = graph.add("Add", state, x)
    over_layers = graph.add("ReduceSum", total, graph.ints(0, 2), keepdims=0)
    scaled = graph.add("Mul", over_layers, graph.add("Cast", rate, to=1))
    graph.fetch(graph.add("Unsqueeze", scaled, graph.ints(1)), "OUTPUT", "float32", "rows", 1)
    graph.fetch(total, "stateN", "float32", 2, "rows", 3)
    return graph.model()


def write_layered(folder: Path, additions: str) -> Path:
    """A model folder of this project. additions: its serving.yml."""
    folder.mkdir()
    (folder / "model.onnx").write_bytes(layered_graph())
    (folder / "serving.yml").write_text(additions, "utf-8")
    return folder

"""Ensembles that mix models with and without a batch axis: Triton adds or removes the axis between steps."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as v2_grpc
import tritonclient.http as v2_http
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from tests.support.repository_process import RepositoryProcess
from tests.support.triton_repository import write_model

# Doubles its input, and refuses a rank that config.pbtxt does not declare.
DOUBLES = """
class TritonPythonModel:
    def execute(self, requests):
        arrays = [request.inputs()[0].as_numpy() for request in requests]
        assert all(array.ndim == RANK for array in arrays), [array.shape for array in arrays]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", 2 * array)]) for array in arrays]
"""
# By name: the backend, max_batch_size and dims. All double `x`.
MODELS: dict[str, tuple[str, int, list[int]]] = {
    "p0": ("python", 0, [4]),
    "pn": ("python", 8, [4]),
    "o0": ("onnxruntime", 0, [4]),
    "on": ("onnxruntime", 8, [4]),
    "p0rows": ("python", 0, [-1, 4]),
    "o0rows": ("onnxruntime", 0, [-1, 4]),
}
ONE = list(itertools.product(("p0", "pn", "o0", "on"), repeat=2))
ROWS = list(itertools.product(("p0rows", "pn", "o0rows", "on"), repeat=2))


def tensor(kind: str, name: str, dims: list[int]) -> str:
    return f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: {dims} }}\n'


def write_doubling(folder: Path, name: str) -> None:
    backend, rows, dims = MODELS[name]
    batching = "dynamic_batching { }" if rows else ""
    config = f'backend: "{backend}"\nmax_batch_size: {rows}\n{batching}\n'
    config += tensor("input", "x", dims) + tensor("output", "y", dims)
    code = DOUBLES.replace("RANK", str(len(dims) + bool(rows))) if backend == "python" else None
    path = write_model(folder, name, config, code)
    if code is None:
        shape: list[str | int] = ["N", 4] if rows or len(dims) == 2 else [4]
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
        graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "doubles", [x], [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, path / "1" / "model.onnx")


def ensemble(rows: int, dims: list[int], steps: list[tuple[str, str, str]], *outputs: str) -> str:
    """steps: the model, its input and its output. A step of an ensemble has other names of its tensors."""
    head = f'platform: "ensemble"\nmax_batch_size: {rows}\n' + tensor("input", "x", dims)
    head += "".join(tensor("output", name, dims) for name in outputs)
    texts = [
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "x" value: "{source}" }} '
        f'output_map {{ key: "y" value: "{target}" }} }}'
        for model, source, target in steps
    ]
    return f"{head}ensemble_scheduling {{ step [ {', '.join(texts)} ] }}"


def write_repository(folder: Path) -> Path:
    for name in MODELS:
        write_doubling(folder, name)
    for pairs, dims, kind in ((ONE, [4], "one"), (ROWS, [-1, 4], "rows")):
        for first, last in pairs:
            steps = [(first, "x", "m"), (last, "m", "y")]
            write_model(folder, f"{kind}0_{first}_{last}", ensemble(0, dims, steps, "y"))
            write_model(folder, f"{kind}n_{first}_{last}", ensemble(8, [4], steps, "y"))
    inner = [("one0_p0_pn", "x", "m"), ("pn", "m", "y")]
    write_model(folder, "nested", ensemble(8, [4], inner, "m", "y"))
    write_model(folder, "nested0", ensemble(0, [4], [("onen_pn_p0", "x", "m"), ("o0", "m", "y")], "y"))
    fork = [("p0", "x", "m"), ("on", "x", "k"), ("on", "m", "y")]
    write_model(folder, "fork", ensemble(8, [4], fork, "m", "k", "y"))
    return folder


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    with RepositoryProcess(write_repository(tmp_path_factory.mktemp("mixed"))) as process:
        yield process


Infer = Callable[[str, np.ndarray[Any, Any]], np.ndarray[Any, Any]]


@contextlib.contextmanager
def protocols(service: RepositoryProcess) -> Iterator[list[Infer]]:
    """Functions that ask a model with tritonclient, over HTTP and over gRPC, and return the output y."""

    def infer(kind: Any, client: Any, model: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        x = kind.InferInput("x", list(array.shape), "FP32")
        x.set_data_from_numpy(array)
        y: np.ndarray[Any, Any] = client.infer(model, [x]).as_numpy("y")
        return y

    with (
        v2_http.InferenceServerClient(f"127.0.0.1:{service.http_port}") as http_client,
        v2_grpc.InferenceServerClient(f"127.0.0.1:{service.rpc_port}") as grpc_client,
    ):
        yield [partial(infer, v2_http, http_client), partial(infer, v2_grpc, grpc_client)]


def rows(shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).random(shape, np.float32)


def ask_all(service: RepositoryProcess, names: list[str], shape: tuple[int, ...]) -> None:
    """Ask every ensemble from four callers at once, each with content of its own."""

    def check(number: int) -> None:
        with protocols(service) as calls:
            for (at, name), infer in itertools.product(enumerate(names), calls):
                array = rows(shape, 1000 * number + at)
                answer = infer(name, array)
                assert answer.shape == shape, (name, answer.shape)
                np.testing.assert_array_equal(answer, 4 * array)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, range(4)))


@pytest.mark.parametrize(
    ("kind", "pairs", "shape"),
    [
        ("one0", ONE, (4,)),
        ("onen", ONE, (1, 4)),
        ("onen", [pair for pair in ONE if set(pair) <= {"pn", "on"}], (3, 4)),
        ("rows0", ROWS, (1, 4)),
        ("rows0", ROWS, (3, 4)),
        ("rowsn", ROWS, (1, 4)),
        ("rowsn", ROWS, (3, 4)),
    ],
)
def test_the_batch_axis_is_added_or_removed_between_steps(
    mixed: RepositoryProcess, kind: str, pairs: list[tuple[str, str]], shape: tuple[int, ...]
) -> None:
    ask_all(mixed, [f"{kind}_{first}_{last}" for first, last in pairs], shape)


@pytest.mark.parametrize("model", ["onen_p0_pn", "onen_pn_p0", "onen_o0_on", "onen_on_o0"])
def test_several_rows_are_refused_by_a_step_that_takes_one(mixed: RepositoryProcess, model: str) -> None:
    expected = r"unexpected shape for input 'x'.*\[4\], got \[3, 4\]"
    with protocols(mixed) as calls:
        for infer in calls:
            with pytest.raises(InferenceServerException, match=expected):
                infer(model, rows((3, 4), 1))


def test_ensembles_within_ensembles_and_forks_mix_them_as_well(mixed: RepositoryProcess) -> None:
    array = rows((1, 4), 2)
    x = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": array.ravel().tolist()}
    for model, factors in {"nested": {"m": 4, "y": 8}, "fork": {"k": 2, "m": 2, "y": 4}}.items():
        answer = mixed.http(f"/v2/models/{model}/infer", json.dumps({"inputs": [x]}))
        assert answer.status == 200, answer
        outputs = {output["name"]: output for output in answer.json["outputs"]}
        assert outputs.keys() == factors.keys()
        for name, factor in factors.items():
            assert outputs[name]["shape"] == [1, 4], name
            np.testing.assert_array_equal(np.float32(outputs[name]["data"]), factor * array.ravel())
    with protocols(mixed) as calls:
        for infer in calls:
            np.testing.assert_array_equal(infer("nested0", array[0]), 8 * array[0])


@pytest.mark.parametrize(("model", "shape"), [("one0_p0_pn", [4]), ("onen_p0_pn", [-1, 4])])
def test_metadata_and_configuration_are_those_of_the_ensemble(
    mixed: RepositoryProcess, model: str, shape: list[int]
) -> None:
    metadata = mixed.http(f"/v2/models/{model}").json
    assert [metadata[side][0]["shape"] for side in ("inputs", "outputs")] == [shape, shape]
    config = mixed.http(f"/v2/models/{model}/config").json
    assert [config[side][0]["dims"] for side in ("input", "output")] == [[4], [4]]
    assert {step["model_version"] for step in config["ensemble_scheduling"]["step"]} == {-1}

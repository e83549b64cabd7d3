"""Ensembles: steps of other batch sizes, inputs that may be left out, tensors of several steps; misfits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.onnx_models import onnx_file
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import HttpAnswer
from tests.support.triton_repository import write_model

ADDS = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            a, b = (pb_utils.get_input_tensor_by_name(request, name) for name in "AB")
            total = a.as_numpy() if b is None else a.as_numpy() + b.as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("SUM", total)]))
        return answers
"""
LIES = """
class TritonPythonModel:
    def execute(self, requests):
        made = pb_utils.Tensor("SUM", np.ones((1, 3), np.float32))
        return [pb_utils.InferenceResponse([made]) for _ in requests]
"""
# Returns the positive rows, and the other rows only if there are any.
SORTS = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            rows = request.inputs()[0].as_numpy()
            positive = (rows > 0).all(1)
            tensors = [pb_utils.Tensor("POSITIVE", rows[positive])]
            if not positive.all():
                tensors.append(pb_utils.Tensor("OTHERS", rows[~positive]))
            answers.append(pb_utils.InferenceResponse(tensors))
        return answers
"""


def tensors(kind: str, given: Mapping[str, str]) -> str:
    """Tensors of a configuration: by name the data type and the dims; a name may end with a question mark."""
    told = []
    for name, of in given.items():
        data_type, _, dims = of.partition(" ")
        optional = "optional: true" if name.endswith("?") else ""
        name = name.rstrip("?")
        told.append(f'{kind} {{ name: "{name}" data_type: TYPE_{data_type} dims: {dims} {optional} }}\n')
    return "".join(told)


def adds(rows: int, dims: str = "[ 2 ]") -> str:
    given = {"A": f"FP32 {dims}", "B?": f"FP32 {dims}"}
    batched = "dynamic_batching { }\n" if rows else ""
    head = f'backend: "python"\nmax_batch_size: {rows}\n{batched}'
    return head + tensors("input", given) + tensors("output", {"SUM": f"FP32 {dims}"})


def step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> str:
    maps = [
        f'{kind} {{ key: "{key}" value: "{value}" }}'
        for kind, names in (("input_map", inputs), ("output_map", outputs))
        for key, value in names.items()
    ]
    return f'{{ model_name: "{model}" model_version: -1 {" ".join(maps)} }}'


def ensemble(*steps: str, inputs: Mapping[str, str], outputs: Mapping[str, str], rows: int = 8) -> str:
    head = f'platform: "ensemble"\nmax_batch_size: {rows}\n'
    told = tensors("input", inputs) + tensors("output", outputs)
    return f"{head}{told}ensemble_scheduling {{ step [ {', '.join(steps)} ] }}"


SORTED = {"POSITIVE": "FP32 2", "OTHERS": "FP32 2"}
ROW = {"X": "FP32 2"}
ONE = {"OUT": "FP32 2"}
FOUR = {"OUT": "FP32 4"}
FIRST = step("adds", {"A": "X"}, {"SUM": "m"})
LAST = step("scaled", {"x": "m"}, {"y": "OUT"})
ENSEMBLES = {
    "optional": ensemble(
        step("adds", {"A": "X", "B": "Y"}, {"SUM": "M"}),
        step("whole", {"A": "M", "B": "M"}, {"SUM": "m"}),
        step("inner", {"X": "m"}, {"OUT": "OUT"}),
        inputs={**ROW, "Y?": "FP32 2"},
        outputs={**ONE, "M": "FP32 2"},
    ),
    "inner": ensemble(FIRST, step("adds", {"A": "m"}, {"SUM": "OUT"}), inputs=ROW, outputs=ONE),
    "wide": ensemble(FIRST, step("few", {"A": "m"}, {"SUM": "OUT"}), inputs=ROW, outputs=ONE),
    "typed": ensemble(step("adds", {"A": "X"}, {"SUM": "OUT"}), inputs=ROW, outputs={"OUT": "INT64 2"}),
    "shaped": ensemble(FIRST, LAST, inputs=ROW, outputs=FOUR),
    "sorted": ensemble(
        step("sorts", {"A": "X"}, {"POSITIVE": "POSITIVE", "OTHERS": "m"}),
        step("adds", {"A": "m"}, {"SUM": "OTHERS"}),
        inputs=ROW,
        outputs=SORTED,
    ),
    "misfit": ensemble(step("lies", {"A": "X"}, {"SUM": "m"}), LAST, inputs=ROW, outputs=FOUR),
}
RESHAPED = """
backend: "onnxruntime"
max_batch_size: 8
dynamic_batching { }
input { name: "x" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: 4 } }
output { name: "y" data_type: TYPE_FP32 dims: [ 1, 4 ] reshape { shape: 4 } }
"""


WORKERS = 'parameters {{ key: "paddlewheel.ensemble_workers" value {{ string_value: "{}" }} }}\n'


def write_repository(folder: Path, workers: int) -> Path:
    """workers: that run all steps of an ensemble."""
    for name, config in {"adds": adds(16), "few": adds(2), "whole": adds(0, "[ -1, 2 ]")}.items():
        write_model(folder, name, config, ADDS)
    lies = adds(8).replace(tensors("output", {"SUM": "FP32 [ 2 ]"}), tensors("output", {"SUM": "FP32 -1"}))
    write_model(folder, "lies", lies, LIES)
    sorts = adds(8).replace(tensors("output", {"SUM": "FP32 [ 2 ]"}), tensors("output", SORTED))
    write_model(folder, "sorts", sorts.replace(tensors("input", {"B?": "FP32 [ 2 ]"}), ""), SORTS)
    scaled = 'backend: "onnxruntime"\nmax_batch_size: 8\ndynamic_batching { }\n'
    for name, config in {"scaled": scaled, "squares": RESHAPED}.items():
        shutil.copyfile(onnx_file("scaled"), write_model(folder, name, config) / "1" / "model.onnx")
    for name, config in ENSEMBLES.items():
        write_model(folder, name, config + WORKERS.format(workers))
    return folder


@pytest.fixture(scope="module", params=[0, 1], ids=["steps apart", "steps in one worker"])
def ensembles(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[RepositoryProcess]:
    folder = write_repository(tmp_path_factory.mktemp("ensembles"), request.param)
    with RepositoryProcess(folder, arguments=["--strict-readiness=false"]) as process:
        yield process


def ask(service: RepositoryProcess, model: str, wanted: Sequence[str] = (), **given: Any) -> HttpAnswer:
    """wanted: the outputs that are asked for; all without."""
    inputs = [
        {"name": name, "shape": list(np.shape(rows)), "datatype": "FP32", "data": np.ravel(rows).tolist()}
        for name, rows in given.items()
    ]
    body = {"inputs": inputs} | ({"outputs": [{"name": name} for name in wanted]} if wanted else {})
    return service.http(f"/v2/models/{model}/infer", json.dumps(body))


def outputs(answer: HttpAnswer) -> dict[str, Any]:
    assert answer.status == 200, answer
    return {one["name"]: np.reshape(one["data"], one["shape"]).tolist() for one in answer.json["outputs"]}


def test_an_input_may_be_left_out_where_its_step_takes_it_so(ensembles: RepositoryProcess) -> None:
    rows = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    alone = outputs(ask(ensembles, "optional", X=rows))
    assert alone == {"M": rows, "OUT": [[2 * one for one in row] for row in rows]}
    both = outputs(ask(ensembles, "optional", X=rows, Y=rows))
    assert both == {"M": alone["OUT"], "OUT": [[4 * one for one in row] for row in rows]}


def test_outputs_that_a_client_names_are_those_of_the_ensemble(ensembles: RepositoryProcess) -> None:
    rows = [[1.0, 2.0]]
    assert outputs(ask(ensembles, "optional", ["M"], X=rows)) == {"M": rows}
    assert outputs(ask(ensembles, "optional", ["OUT"], X=rows)) == {"OUT": [[2.0, 4.0]]}


def test_a_step_may_return_only_some_of_its_outputs(ensembles: RepositoryProcess) -> None:
    both = [[1.0, 2.0], [-1.0, 2.0]]
    assert outputs(ask(ensembles, "sorted", X=both)) == {"POSITIVE": both[:1], "OTHERS": both[1:]}
    assert outputs(ask(ensembles, "sorted", ["POSITIVE"], X=both[:1])) == {"POSITIVE": both[:1]}
    for requested in ([], ["OTHERS"]):
        answer = ask(ensembles, "sorted", requested, X=both[:1])
        assert answer.status == 400, answer
        assert "unexpected deadlock, at least one output is not set" in answer.json["error"]
        assert "no step has returned 'OTHERS'" in answer.json["error"]


def test_more_rows_than_the_ensemble_takes_are_refused(ensembles: RepositoryProcess) -> None:
    answer = ask(ensembles, "inner", X=[[1, 2]] * 9)
    assert (answer.status, "batch-size must be <= 8" in answer.json["error"]) == (400, True), answer


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("typed", "tensor OUT: inconsistent data type: INT64 is inferred from model typed while FP32"),
        ("shaped", "tensor m: inconsistent shape: [-1, 2] is inferred from model adds while [-1, 4]"),
        ("wide", "ensemble wide allows maximum batch size 8, but it contains model few which only allows"),
    ],
)
def test_models_that_do_not_agree_on_a_tensor_or_on_rows_are_refused_at_the_load(
    ensembles: RepositoryProcess, model: str, told: str
) -> None:
    rows = {one["name"]: one for one in ensembles.http("/v2/repository/index", b"").json}
    assert (rows[model]["state"], told in rows[model]["reason"]) == ("UNAVAILABLE", True), rows[model]


def test_an_error_names_step_model_version_tensor_and_both_shapes(ensembles: RepositoryProcess) -> None:
    answer = ask(ensembles, "misfit", X=[[1, 2]])
    assert answer.status in (400, 500)
    told = answer.json["error"]
    assert "in ensemble 'misfit', step 2 ('scaled' version 1): " in told
    assert "feed 'x' has shape (1, 3), expected float32 [-1, 4]" in told
    labels = {"model": "misfit", "step_model": "scaled"}
    assert ensembles.metric("paddlewheel_ensemble_step_failures_total", **labels) == 1


def test_tensors_of_a_model_have_the_dims_of_its_configuration_and_the_shape_of_its_file(
    ensembles: RepositoryProcess,
) -> None:
    rows = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]
    flat = outputs(ask(ensembles, "scaled", x=np.reshape(rows, (2, 4))))["y"]
    assert outputs(ask(ensembles, "squares", x=rows))["y"] == [[row] for row in flat]

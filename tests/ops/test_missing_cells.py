"""Cells that are missing: null in JSON and nothing in CSV, in every protocol and from files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as v2

from client.rpc_client import RpcClient
from client.values import parse_value
from pipeline.launch.command_line import main
from tests.support.command_line import paddlewheel
from tests.support.new_services import new_service
from tests.support.service_process import ServiceProcess
from tests.support.table_models import people_with_gaps

V1, V2 = "/v1/models/people:predict", "/v2/models/people/infer"
AGES, JOBS = [20.0, None, 61.0, None], ["clerk", "nurse", None, None]
LABELS = ["no", "yes", "no", "no"]
CSV = "age,job\n20,clerk\n,nurse\n61,\n,\n"
ROWS = [{"age": age, "job": job} for age, job in zip(AGES, JOBS, strict=True)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return people_with_gaps(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def service(model: Path) -> Iterator[ServiceProcess]:
    with new_service(model.parent / "services", model, "people") as new:
        yield new.service


@pytest.mark.parametrize(
    ("body", "media"),
    [
        (json.dumps({"instances": ROWS}), "application/json"),
        (json.dumps({"inputs": {"age": AGES, "job": JOBS}}), "application/json"),
        (CSV, "text/csv"),
    ],
    ids=["rows", "columns", "csv"],
)
def test_v1(service: ServiceProcess, body: str, media: str) -> None:
    answer = service.http(V1, body, headers={"content-type": media})
    assert answer.status == 200, answer
    labels = answer.json.get("outputs", {}).get("label")
    assert (labels or [row["label"] for row in answer.json["predictions"]]) == LABELS


def test_v2_over_http(service: ServiceProcess) -> None:
    tensors = (("age", "FP32", AGES), ("job", "BYTES", JOBS))
    inputs = [{"name": n, "datatype": kind, "shape": [4], "data": data} for n, kind, data in tensors]
    answer = service.http(V2, json.dumps({"inputs": inputs}))
    assert answer.status == 200, answer
    (label,) = (output for output in answer.json["outputs"] if output["name"] == "label")
    assert label["data"] == LABELS


def test_v2_over_grpc(service: ServiceProcess) -> None:
    tensors = {"age": np.array(AGES, np.float32), "job": np.array([job or "" for job in JOBS], object)}
    inputs = [v2.InferInput("age", [4], "FP32"), v2.InferInput("job", [4], "BYTES")]
    for tensor in inputs:
        tensor.set_data_from_numpy(tensors[tensor.name()])
    with v2.InferenceServerClient(f"127.0.0.1:{service.rpc_port}") as client:
        assert [label.decode() for label in client.infer("people", inputs).as_numpy("label")] == LABELS


@pytest.mark.parametrize(
    ("age", "job", "labels"),
    [
        (json.dumps(AGES), json.dumps(JOBS), LABELS),
        (json.dumps(AGES[::-1]), json.dumps(JOBS[::-1]), LABELS[::-1]),
        ("", "nurse", ["yes"]),
        ("null", "nurse", ["yes"]),
        ("20", "", ["no"]),
    ],
)
def test_key_value_over_http_and_grpc(service: ServiceProcess, age: str, job: str, labels: list[str]) -> None:
    assert parse_value(service.predict({"age": age, "job": job})["label"]) == labels
    with RpcClient(f"127.0.0.1:{service.rpc_port}", "people") as client:
        assert list(client.predict({"age": age, "job": job}).outputs["label"]) == labels


def test_the_schema_allows_null(service: ServiceProcess) -> None:
    schema = service.http("/openapi.json").json["paths"][V1]["post"]["requestBody"]["content"]
    instances = schema["application/json"]["schema"]["properties"]["instances"]
    properties = instances["items"]["properties"]
    assert properties["age"]["type"] == ["number", "null"]
    assert {"type": "null"} in properties["job"]["anyOf"]


def test_score_answers_csv_as_the_service(
    service: ServiceProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labelled = zip(CSV.splitlines(), ["right", *LABELS], strict=True)
    source, out = tmp_path / "in.csv", tmp_path / "out.jsonl"
    source.write_text("".join(f"{line},{right}\n" for line, right in labelled), "utf-8")
    assert main(["score", str(source), str(out), "--service", service.url]) == 0, capsys.readouterr().err
    answers = [json.loads(line)["answer"] for line in out.read_text("utf-8").splitlines()]
    assert [row["label"] for row in answers] == LABELS
    expected = service.http(V1, json.dumps({"instances": ROWS})).json["predictions"]
    assert [row["score"] for row in answers] == pytest.approx([row["score"] for row in expected], abs=1e-6)
    assert main(["evaluate", str(source), "--gold", "right", "--service", service.url]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "acc: 1.0000"


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_evaluate_runs_a_model_without_a_service(model: Path, suffix: str, tmp_path: Path) -> None:
    source = tmp_path / f"in{suffix}"
    labelled = zip(CSV.splitlines(), ["right", *LABELS], strict=True)
    lines = [f"{line},{right}" for line, right in labelled]
    if suffix == ".jsonl":
        lines = [json.dumps({**row, "right": label}) for row, label in zip(ROWS, LABELS, strict=True)]
    source.write_text("\n".join(lines), "utf-8")
    done = paddlewheel("evaluate", str(source), "--gold", "right", "--model", str(model), cwd=tmp_path)
    assert done.stdout.splitlines()[-1:] == ["acc: 1.0000"], done

"""A zero-shot classifier as it was exported for Triton: TorchScript in a repository, two instances."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import tritonclient.http as http

from pipeline.models.signature import Variable, signature_text
from pipeline.process.processes import resident_bytes
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import APPS, ServiceProcess
from tests.support.triton_repository import write_model
from tests.torch import torch_files

LARGE = 1_500_000  # words of 32 floats: 192 MB
WEIGHTS_BYTES = LARGE * torch_files.WIDTH * 4
CONFIG = """
platform: "pytorch_libtorch"
input [
  { name: "input__0" data_type: TYPE_INT32 dims: [ 1, 256 ] },
  { name: "input__1" data_type: TYPE_INT32 dims: [ 1, 256 ] }
]
output { name: "output__0" data_type: TYPE_FP32 dims: [ -1 ] }
parameters: { key: "INTRA_OP_THREAD_COUNT" value: { string_value: "1" } }
parameters: { key: "INFERENCE_MODE" value: { string_value: "true" } }
parameters: { key: "DISABLE_OPTIMIZED_EXECUTION" value: { string_value: "true" } }
"""
ROWS = """
backend: "pytorch"
max_batch_size: 8
dynamic_batching { }
input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 3 ] }
"""


@pytest.fixture(scope="module")
def original() -> torch_files.Encoder:
    return torch_files.Encoder(LARGE)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    folder = tmp_path_factory.mktemp("repository")
    large = write_model(folder, "zero_shot", f"{CONFIG}instance_group {{ count: 2 kind: KIND_CPU }}")
    torch_files.traced_on_a_gpu(large / "1" / "model.pt", LARGE)
    small = write_model(folder, "small", CONFIG)
    torch_files.traced_on_a_gpu(small / "1" / "model.pt")
    torch_files.scripted(torch_files.Row(), write_model(folder, "rows", ROWS) / "1" / "model.pt")
    rows = torch.export.Dim("rows", min=1, max=64)
    torch_files.exported(
        torch_files.Row(),
        (torch.ones(2, 4),),
        write_model(folder, "exported", None) / "1" / "model.pt2",
        dynamic_shapes={"x": {0: rows}},
    )
    torch.save({}, write_model(folder, "pickle", ROWS) / "1" / "model.pt")
    env = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    with RepositoryProcess(folder, arguments=["--strict-readiness=false"], env=env) as process:
        yield process


def zero_shot_inputs() -> list[http.InferInput]:
    inputs = []
    for name, tensor in zip(("input__0", "input__1"), torch_files.encoder_inputs(), strict=True):
        given = http.InferInput(name, list(tensor.shape), "INT32")
        given.set_data_from_numpy(tensor.numpy(), binary_data=False)
        inputs.append(given)
    return inputs


def test_the_stock_client_gets_what_pytorch_answers(
    service: RepositoryProcess, original: torch_files.Encoder
) -> None:
    with torch.no_grad():
        expected = original.eval()(*torch_files.encoder_inputs()).numpy()

    def ask(_: int) -> np.ndarray:
        with http.InferenceServerClient(f"127.0.0.1:{service.http_port}") as client:
            wanted = [http.InferRequestedOutput("output__0", binary_data=False)]
            return client.infer("zero_shot", zero_shot_inputs(), outputs=wanted).as_numpy("output__0")

    with ThreadPoolExecutor(4) as pool:
        for answer in pool.map(ask, range(12)):
            np.testing.assert_allclose(answer, expected, atol=1e-5, rtol=0)
    assert "names a GPU in" in service.log


def test_two_instances_hold_one_copy_of_the_weights(service: RepositoryProcess) -> None:
    pids = service.worker_pids()
    assert len(pids) == 4  # one for each model, not for each instance
    sizes = sorted(resident_bytes(pid) for pid in pids)  # the last is the large model's
    assert 0.9 * WEIGHTS_BYTES < sizes[-1] - sizes[0] < 1.5 * WEIGHTS_BYTES


@pytest.mark.parametrize(
    ("model", "feed", "fetch"), [("rows", "INPUT__0", "OUTPUT__0"), ("exported", "x", "output__0")]
)
def test_rows_share_batches(service: RepositoryProcess, model: str, feed: str, fetch: str) -> None:
    module = torch_files.Row()
    rows = np.random.default_rng(3).random((16, 1, 4), np.float32)

    def ask(row: np.ndarray) -> np.ndarray:
        with http.InferenceServerClient(f"127.0.0.1:{service.http_port}") as client:
            given = http.InferInput(feed, [1, 4], "FP32")
            given.set_data_from_numpy(row)
            return client.infer(model, [given]).as_numpy(fetch)

    with ThreadPoolExecutor(8) as pool:
        answers = np.concatenate(list(pool.map(ask, rows)))
    with torch.no_grad():
        expected = module(torch.from_numpy(rows[:, 0])).numpy()
    np.testing.assert_allclose(answers, expected, atol=1e-6)


def test_auto_measures_pytorch(tmp_path: Path) -> None:
    torch_files.scripted(torch_files.Row(), tmp_path / "model.pt")
    variables = [Variable(name, name, "float32", (-1, width)) for name, width in (("x", 4), ("out__0", 3))]
    (tmp_path / "serving_server_conf.prototxt").write_text(
        signature_text(variables[:1], variables[1:]), "utf-8"
    )
    conf = {"model_config": str(tmp_path), "engine": "auto", "precision": "fp32"}
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    config = {"op": {"model": {"local_service_conf": conf}}}
    with ServiceProcess(APPS / "model.py", config, env=env) as service:
        assert "chosen by its times on this machine: pytorch fp32" in service.log
        answer = service.predict({"x": "[[1, 2, 3, 4]]"})
    with torch.no_grad():
        expected = torch_files.Row()(torch.tensor([[1.0, 2, 3, 4]])).numpy()
    np.testing.assert_allclose(json.loads(answer["out__0"]), expected, atol=1e-5)


def test_another_file_is_refused_alone_with_its_cause(service: RepositoryProcess) -> None:
    index = {row["name"]: row for row in service.http("/v2/repository/index", b"").json}
    assert index["pickle"]["state"] == "UNAVAILABLE"
    assert "model.pt holds weights or a module as a pickle of torch.save" in index["pickle"]["reason"]
    assert {index[name]["state"] for name in ("zero_shot", "small", "rows", "exported")} == {"READY"}


def test_a_wrong_request_fails_alone(service: RepositoryProcess) -> None:
    body = b'{"inputs": [{"name": "INPUT__0", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}'
    assert service.http("/v2/models/rows/infer", body).status == 400
    short = b'{"inputs": [{"name": "INPUT__0", "shape": [1, 4], "datatype": "INT32", "data": [1, 2, 3, 4]}]}'
    assert service.http("/v2/models/rows/infer", short).status == 400

"""PyTorch models on a GPU; they need one. `test_torch_predictor.py` has their settings tested without."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.engines.base import Predictor
from pipeline.errors import ModelFailed
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import HttpAnswer
from tests.support.triton_repository import write_model
from tests.torch import torch_files
from tests.torch.test_torch_predictor import ROW, described, floats, loaded, variables

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

IDS = variables(("input__0", "int32", (1, 256)), ("input__1", "int32", (1, 256)))
LOGITS = variables(("output__0", "float32", (-1, -1)))
GROUP = "instance_group { count: 2 kind: KIND_GPU gpus: [ 0 ] }"
ENCODER = """
platform: "pytorch_libtorch"
input [
  { name: "input__0" data_type: TYPE_INT32 dims: [ 1, 256 ] },
  { name: "input__1" data_type: TYPE_INT32 dims: [ 1, 256 ] }
]
output { name: "output__0" data_type: TYPE_FP32 dims: [ -1 ] }
"""


class OnGpu(torch_files.Encoder):
    """The encoder with `.cuda()` inside of `forward`, as it is exported for a GPU."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        mask = attention_mask.cuda()
        positions = torch.cumsum(mask, 1) * mask + torch.zeros(1, dtype=torch.int64, device="cuda")
        embedded = self.words(input_ids.cuda()) + self.positions(positions)
        states = self.layers(embedded, src_key_padding_mask=mask == 0)
        return self.classifier(states[:, 0]).softmax(1)[0]


class Hungry(nn.Module):
    """Allocates as many MiB as its input says."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = torch.zeros([int(x[0, 0].item()), 262_144], device=x.device)
        return x + held[:1, :1]


def write_traced_on_cpu(path: Path) -> None:
    torch_files.traced(torch_files.Encoder(), torch_files.encoder_inputs(), path)


def write_traced_on_gpu(path: Path) -> None:
    inputs = tuple(tensor.cuda() for tensor in torch_files.encoder_inputs())
    torch_files.traced(OnGpu().cuda(), inputs, path)


@pytest.mark.parametrize("device_type", [0, 1], ids=["on the CPU", "on a GPU"])
@pytest.mark.parametrize("write", [write_traced_on_cpu, write_traced_on_gpu])
def test_a_traced_encoder_runs_on_either_device(
    tmp_path: Path, write: Callable[[Path], None], device_type: int
) -> None:
    write(tmp_path / "model.pt")
    described(tmp_path, IDS, LOGITS)
    ids, mask = torch_files.encoder_inputs()
    with torch.no_grad():
        expected = torch_files.Encoder().eval()(ids, mask).numpy()
    predictor = loaded(tmp_path, device_type=device_type)
    answer = predictor.run({"input__0": ids.numpy(), "input__1": mask.numpy()})["output__0"]
    np.testing.assert_allclose(answer, expected, atol=1e-5, rtol=0)


def load_rows(folder: Path, **conf: Any) -> Predictor:
    torch_files.scripted(torch_files.Row(), folder / "model.pt")
    described(folder, floats("x"), variables(("out__0", "float32", (-1, 3))))
    return loaded(folder, device_type=1, **conf)


def run_on_cpu(rows: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return torch_files.Row()(torch.from_numpy(rows)).numpy()


def test_an_exported_program_is_moved_to_the_gpu(tmp_path: Path) -> None:
    rows = torch.export.Dim("rows", min=1, max=64)
    torch_files.exported(
        torch_files.Row(), (torch.ones(2, 4),), tmp_path / "model.pt2", dynamic_shapes={"x": {0: rows}}
    )
    answer = loaded(tmp_path, device_type=1).run({"x": ROW})["output__0"]
    np.testing.assert_allclose(answer, run_on_cpu(ROW), atol=1e-6)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_lower_precision_computes_in_it(tmp_path: Path, precision: str) -> None:
    lower = load_rows(tmp_path, precision=precision).run({"x": ROW})["out__0"]
    assert lower.dtype == np.float32 and not np.array_equal(lower, run_on_cpu(ROW))
    np.testing.assert_allclose(lower, run_on_cpu(ROW), atol=0.05)


def test_no_kernel_is_compiled_for_a_size_of_batches(tmp_path: Path) -> None:
    predictor = load_rows(tmp_path)
    for rows in range(1, 30):
        predictor.run({"x": np.repeat(ROW, rows, 0)})
    assert torch.jit.set_fusion_strategy([("STATIC", 0), ("DYNAMIC", 0)]) == [("STATIC", 0), ("DYNAMIC", 0)]


def test_threads_share_the_model_each_on_its_own_stream(tmp_path: Path) -> None:
    predictor = load_rows(tmp_path)
    rows = np.random.default_rng(3).random((400, 16, 4), np.float32)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda each: predictor.run({"x": each})["out__0"], rows))
    for each, answer in zip(rows, answers, strict=True):
        np.testing.assert_allclose(answer, run_on_cpu(each), atol=1e-5)


def test_a_run_without_enough_memory_fails_alone(tmp_path: Path) -> None:
    torch_files.scripted(Hungry(), tmp_path / "model.pt")
    described(tmp_path, floats("x"), floats("out__0"))
    predictor = loaded(tmp_path, device_type=1)
    huge = np.array([[1_000_000, 0, 0, 0]], np.float32)
    for _ in range(3):
        with pytest.raises(ModelFailed, match="out of memory"):
            predictor.run({"x": huge})
        np.testing.assert_array_equal(predictor.run({"x": ROW})["out__0"], ROW)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    folder = tmp_path_factory.mktemp("repository")
    write_traced_on_gpu(write_model(folder, "encoder", ENCODER + GROUP) / "1" / "model.pt")
    elsewhere = ENCODER + "instance_group { kind: KIND_GPU gpus: [ 99 ] }"
    write_traced_on_cpu(write_model(folder, "elsewhere", elsewhere) / "1" / "model.pt")
    env = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    with RepositoryProcess(folder, arguments=["--strict-readiness=false"], env=env) as process:
        yield process


def infer(service: RepositoryProcess, ids: np.ndarray, mask: np.ndarray) -> HttpAnswer:
    inputs = [
        {"name": name, "shape": [1, 256], "datatype": "INT32", "data": data.ravel().tolist()}
        for name, data in (("input__0", ids), ("input__1", mask))
    ]
    return service.http("/v2/models/encoder/infer", json.dumps({"inputs": inputs}).encode())


def test_an_id_beyond_the_table_costs_its_own_request_alone(service: RepositoryProcess) -> None:
    """On a GPU it is an assertion in a kernel, which ends the CUDA context of the process."""
    ids, mask = (tensor.numpy() for tensor in torch_files.encoder_inputs())
    beyond = ids.copy()
    beyond[0, 3] = torch_files.VOCABULARY + 5
    with torch.no_grad():
        expected = torch_files.Encoder().eval()(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()
    with ThreadPoolExecutor(6) as pool:
        others = [pool.submit(infer, service, ids, mask) for _ in range(20)]
        poison = pool.submit(infer, service, beyond, mask)
        others += [pool.submit(infer, service, ids, mask) for _ in range(40)]
    assert poison.result().status == 500
    for other in others:
        answer = other.result()
        assert answer.status == 200, answer.body
        np.testing.assert_allclose(answer.json["outputs"][0]["data"], expected.ravel(), atol=1e-5)
    assert "the GPU is lost to this worker" in service.log


def test_a_gpu_that_is_not_there_is_refused_alone(service: RepositoryProcess) -> None:
    index = {row["name"]: row for row in service.http("/v2/repository/index", b"").json}
    assert index["elsewhere"]["state"] == "UNAVAILABLE" and "99" in index["elsewhere"]["reason"]
    assert index["encoder"]["state"] == "READY"


def test_the_driver_s_figures_are_in_the_metrics(service: RepositoryProcess) -> None:
    assert service.metric("nv_gpu_memory_total_bytes") > service.metric("nv_gpu_memory_used_bytes") > 1e8
    assert service.metric("nv_energy_consumption") >= 0

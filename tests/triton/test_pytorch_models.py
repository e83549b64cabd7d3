"""PyTorch models of a repository where PyTorch is not installed; tests/torch runs them."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from client.protos.kserve_v2_pb2 import ModelConfig
from pipeline.triton.config_file import get_backend, get_engine_options, read_config
from pipeline.triton.model_folder import detect_backend, read_program_facts
from tests.support.repository_process import RepositoryProcess
from tests.support.triton_repository import write_model

TENSORS = """
input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 3 ] }
"""


def written(folder: Path, text: str) -> ModelConfig:
    write_model(folder, "rows", text + TENSORS)
    return read_config(folder / "rows")


def write_program(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/code/__torch__.py", "def forward(self, x: Tensor) -> Tensor:\n  return x\n")
        archive.writestr("model/constants.pkl", b"")


@pytest.mark.parametrize("text", ['platform: "pytorch_libtorch"', 'backend: "pytorch"'])
def test_platform_and_backend_name_the_engine(tmp_path: Path, text: str) -> None:
    assert get_backend(written(tmp_path, text)) == "pytorch"


@pytest.mark.parametrize("name", ["model.pt", "model.pt2"])
def test_the_file_names_the_engine(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert detect_backend(tmp_path) == "pytorch"


@pytest.mark.parametrize(
    ("name", "value", "options"),
    [
        ("INTRA_OP_THREAD_COUNT", "3", {"thread_num": 3}),
        ("INTER_OP_THREAD_COUNT", "2", {"inter_op_thread_num": 2}),
        ("DISABLE_OPTIMIZED_EXECUTION", "true", {"ir_optim": False}),
        ("DISABLE_OPTIMIZED_EXECUTION", "false", {}),
        ("INFERENCE_MODE", "false", {"inference_mode": False}),
        ("INFERENCE_MODE", "true", {}),
    ],
)
def test_parameters_are_keys_of_the_engine(
    tmp_path: Path, name: str, value: str, options: dict[str, Any]
) -> None:
    bare = get_engine_options(written(tmp_path, 'backend: "pytorch"'), "pytorch", 1)
    given = f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'
    config = written(tmp_path / "given", f'backend: "pytorch" {given}')
    assert get_engine_options(config, "pytorch", 1) == {**bare, **options}


def test_without_pytorch_the_model_alone_is_refused_with_the_command_that_installs_it(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "rows", f'platform: "pytorch_libtorch" {TENSORS}')
    write_program(folder / "1" / "model.pt")
    with RepositoryProcess(tmp_path, arguments=["--strict-readiness=false"]) as service:
        (row,) = service.http("/v2/repository/index", b"").json
    assert row["state"] == "UNAVAILABLE"
    assert "needs PyTorch, which is not installed here: pip install 'paddlewheel[torch]'" in row["reason"]


def test_a_model_that_two_repositories_link_to_stays_when_one_of_them_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_program(tmp_path / "shared.pt")
    folders = []
    for name in ("first", "second"):
        config = written(tmp_path / name, 'backend: "pytorch"')
        program = tmp_path / name / "rows" / "1" / "model.pt"
        program.symlink_to(tmp_path / "shared.pt")
        folders.append(read_program_facts(program, "pytorch", config).folder)
    shutil.rmtree(tmp_path / "first")
    assert (folders[1] / "model.pt").is_file()

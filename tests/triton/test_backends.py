"""Models of OpenVINO and Paddle in a repository, with no more beside them than Triton asks for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as rpc

from tests.support import models
from tests.support.onnx_models import onnx_file
from tests.support.repository_process import RepositoryProcess
from tests.support.triton_repository import write_model

_AS_IR = """
import sys
sys.modules["openvino_telemetry"] = None
import openvino
openvino.save_model(openvino.convert_model(sys.argv[1]), sys.argv[2], compress_to_fp16=False)
"""
BATCHED = "max_batch_size: 8\ndynamic_batching { }\n"


ACCELERATED = """
optimization { execution_accelerators { cpu_execution_accelerator [
  { name: "openvino" parameters { key: "cpu_threads" value: "1" } } ] } }
"""
IMAGES = """
platform: "onnxruntime_onnx"
max_batch_size: 0
input { name: "image" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 32, 32 ]
  reshape { shape: [ 1, 3, 32, 32 ] } }
output { name: "logits" data_type: TYPE_FP32 dims: 10 reshape { shape: [ 1, 10 ] }
  label_filename: "labels.txt" }
"""


def write_repository(folder: Path, built: Path) -> Path:
    for name, told in (("densenet", IMAGES), ("alone", None)):  # of one image a run
        images = write_model(folder, name, told)
        shutil.copyfile(onnx_file("photos_of_one"), images / "1" / "model.onnx")
    labels = write_model(folder, "flowers", None)  # as scikit-learn's are: a label a row, without an axis
    shutil.copyfile(onnx_file("flowers"), labels / "1" / "model.onnx")
    marked = '\ufeffbackend: "onnxruntime"\r\n'  # as editors of Windows write it
    apart = write_model(folder, "apart", marked) / "1" / "model.onnx"  # a folder, with weights beside it, say
    apart.mkdir()
    shutil.copyfile(onnx_file("scaled"), apart / "model.onnx")
    (folder / "densenet" / "labels.txt").write_text("\n".join(f"class {n}" for n in range(10)), "utf-8")
    write_model(folder, "ir", f'backend: "openvino"\n{BATCHED}')
    program = folder / "ir" / "1" / "model.xml"
    subprocess.run([sys.executable, "-c", _AS_IR, str(onnx_file("classifier")), str(program)], check=True)
    write_model(folder, "wrong", 'backend: "openvino"\ninput { name: "x" data_type: TYPE_FP32 dims: 3 }\n')
    for file in program.parent.iterdir():
        shutil.copyfile(file, folder / "wrong" / "1" / file.name)
    _copy_program(models.classifier(built), write_model(folder, "pir", BATCHED) / "1")
    unpadded = 'parameters { key: "paddlewheel.padding" value { string_value: "off" } }'  # spares a trial
    config = f'backend: "fastdeploy"\n{BATCHED}{unpadded}{ACCELERATED}'
    _copy_program(models.classifier_pdmodel(built), write_model(folder, "old", config) / "1")
    return folder


def _copy_program(model: Path, target: Path) -> None:
    """The program and its weights, without the prototxt."""
    for file in (model / "serving_server").iterdir():
        if file.suffix in (".json", ".pdmodel", ".pdiparams"):
            shutil.copyfile(file, target / f"model{file.suffix}")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[RepositoryProcess]:
    env = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    folder = write_repository(tmp_path_factory.mktemp("backends"), model_folder)
    with RepositoryProcess(folder, arguments=["--strict-readiness=false"], env=env) as process:
        yield process


@pytest.mark.parametrize(
    ("model", "feeds"),
    [
        ("ir", ("input_ids", "token_type_ids", "attention_mask")),
        ("pir", ("input_ids", "token_type_ids", "attention_mask")),
        ("old", ("input_ids", "attention_mask")),
    ],
)  # fmt: skip
def test_a_model_without_a_word_on_its_tensors_is_asked(
    service: RepositoryProcess, model: str, feeds: tuple[str, ...]
) -> None:
    told = service.http(f"/v2/models/{model}").json
    assert {one["name"]: one["shape"] for one in told["inputs"]} == {feed: [-1, -1] for feed in feeds}
    (output,) = told["outputs"]
    inputs = []
    for feed in feeds:
        given = rpc.InferInput(feed, [2, 5], "INT64")
        given.set_data_from_numpy(np.ones((2, 5), np.int64))
        inputs.append(given)
    with rpc.InferenceServerClient(service.rpc_address) as client:
        logits = client.infer(model, inputs).as_numpy(output["name"])
    assert logits.shape == (2, 3)
    np.testing.assert_allclose(logits[0], logits[1], rtol=1e-5)
    service.wait_for_log("Models of the repository:")  # it stands behind what was proven
    proven = f"Model {model}, rows of unequal length: padded rows answer as alone" in service.log
    assert proven == (model != "old")
    config = service.http(f"/v2/models/{model}/config").json
    assert config["backend"] == {"ir": "openvino"}.get(model, "paddle")


def test_what_a_configuration_says_otherwise_than_the_file_is_told(service: RepositoryProcess) -> None:
    rows = {one["name"]: one for one in service.http("/v2/repository/index", b"").json}
    assert rows["wrong"]["state"] == "UNAVAILABLE"
    reason = rows["wrong"]["reason"]
    assert "input 'x' is not in the model, which has" in reason
    assert "input 'input_ids' of the model is not in the configuration" in reason


def test_a_model_of_a_fixed_batch_takes_images_as_its_configuration_has_them(
    service: RepositoryProcess,
) -> None:
    image = np.random.default_rng(3).random((3, 32, 32), np.float32)
    with rpc.InferenceServerClient(service.rpc_address) as client:
        assert client.get_model_metadata("alone").inputs[0].shape == [1, 3, 32, 32]
        whole = rpc.InferInput("image", [1, 3, 32, 32], "FP32")
        whole.set_data_from_numpy(image[None])
        (scores,) = client.infer("alone", [whole]).as_numpy("logits")
        given = rpc.InferInput("image", [3, 32, 32], "FP32")
        given.set_data_from_numpy(image)
        wanted = [rpc.InferRequestedOutput("logits", class_count=2)]
        told = client.infer("densenet", [given], outputs=wanted).as_numpy("logits")
        np.testing.assert_allclose(client.infer("densenet", [given]).as_numpy("logits"), scores, rtol=1e-6)
    best = np.argsort(-scores)[:2]
    assert [one.decode().split(":")[1:] for one in told] == [[str(n), f"class {n}"] for n in best]


def test_a_program_may_be_a_folder_and_a_configuration_begin_with_a_mark(service: RepositoryProcess) -> None:
    x = rpc.InferInput("x", [2, 4], "FP32")
    x.set_data_from_numpy(np.ones((2, 4), np.float32))
    with rpc.InferenceServerClient(service.rpc_address) as client:
        assert client.infer("apart", [x]).as_numpy("y").shape == (2, 4)


def test_numbers_without_an_axis_are_tensors_of_one_number(service: RepositoryProcess) -> None:
    x = rpc.InferInput("x", [3, 4], "FP32")
    x.set_data_from_numpy(np.zeros((3, 4), np.float32))
    with rpc.InferenceServerClient(service.rpc_address) as client:
        outputs = client.get_model_config("flowers", as_json=True)["config"]["output"]
        assert [(one["dims"], one.get("reshape")) for one in outputs] == [(["1"], {}), (["3"], None)]
        answer = client.infer("flowers", [x])
    assert (answer.as_numpy("label").shape, answer.as_numpy("probabilities").shape) == ((3, 1), (3, 3))

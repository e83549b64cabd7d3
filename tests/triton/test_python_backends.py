"""Backends that are written in Python: a model.py runs the models with `backend: "NAME"`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.repository_process import RepositoryProcess
from tests.support.triton_repository import write_model

CONFIG = """
backend: "scaling"
input { name: "X" data_type: TYPE_FP32 dims: 2 }
output { name: "Y" data_type: TYPE_FP32 dims: 2 }
"""
BACKEND = """
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        with open(os.path.join(pb_utils.get_model_dir(), "factor.txt")) as file:
            self.factor = float(file.read())

    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", (x * self.factor).astype(np.float32))])
            for x in arrays
        ]
"""


def test_a_backend_is_found_in_the_folder_of_the_model_and_in_the_backend_directory(tmp_path: Path) -> None:
    backend = tmp_path / "backends" / "scaling"
    backend.mkdir(parents=True)
    (backend / "model.py").write_text(BACKEND, "utf-8")
    for name, factor in (("doubled", 2), ("tripled", 3)):
        folder = write_model(tmp_path / "models", name, CONFIG)
        (folder / "1" / "factor.txt").write_text(str(factor), "utf-8")
    # A backend in the model's own folder, whose outputs are ten times those of the directory.
    folder = write_model(tmp_path / "models", "beside", CONFIG)
    (folder / "1" / "factor.txt").write_text("1", "utf-8")
    (folder / "model.py").write_text(BACKEND.replace("x * self.factor", "x * self.factor * 10"), "utf-8")
    arguments = [f"--backend-directory={tmp_path / 'backends'}"]
    body = json.dumps({"inputs": [{"name": "X", "shape": [2], "datatype": "FP32", "data": [1, 2]}]})
    with RepositoryProcess(tmp_path / "models", arguments=arguments) as service:
        assert service.http("/v2/models/doubled/infer", body).json["outputs"][0]["data"] == [2, 4]
        assert service.http("/v2/models/tripled/infer", body).json["outputs"][0]["data"] == [3, 6]
        assert service.http("/v2/models/beside/infer", body).json["outputs"][0]["data"] == [10, 20]
        config = service.http("/v2/models/doubled/config").json
        assert (config["backend"], config["runtime"]) == ("scaling", "model.py")

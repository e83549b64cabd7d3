"""Model repositories for tests: the one that Triton's answers were recorded with, and others."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

_WRITER = Path(__file__).parents[1] / "fixtures/triton_repository.py"
_UTILS = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n"
_TENSORS = """
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] },
        { name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] },
         { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 16 ] } ]
"""
_ADD_SUB = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            a, b = (pb_utils.get_input_tensor_by_name(request, n).as_numpy() for n in ("INPUT0", "INPUT1"))
            tensors = [pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)]
            answers.append(pb_utils.InferenceResponse(tensors))
        return answers
"""


def write_recorded(folder: Path) -> Path:
    """The recorded repository, with `simple`, which is one of Triton's own examples."""
    subprocess.run([sys.executable, str(_WRITER)], cwd=folder, check=True)
    write_model(folder / "repo", "simple", f'backend: "python"{_TENSORS}', _ADD_SUB)
    return folder / "repo"


def write_model(
    repository: Path, name: str, config: str | None, code: str | None = None, *, version: str = "1"
) -> Path:
    """A model's folder. config: of config.pbtxt; None: without. code: of model.py, without imports."""
    folder = repository / name
    (folder / version).mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / "config.pbtxt").write_text(config, "utf-8")
    if code is not None:
        (folder / version / "model.py").write_text(_UTILS + textwrap.dedent(code), "utf-8")
    return folder

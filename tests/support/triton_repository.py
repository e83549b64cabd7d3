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

# A Python model whose output Y is twice its input X.
DOUBLES = """
class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * 2)]) for x in arrays]
"""
_REPEAT_CONFIG = """
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] },
        { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] },
        { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] },
         { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
_REPEAT = """
import threading


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            inputs = [tensor.as_numpy() for tensor in request.inputs()]
            threading.Thread(target=self.answer, args=(request.get_response_sender(), inputs[0])).start()

    def answer(self, sender, numbers):
        for index, number in enumerate(numbers):
            tensors = [
                pb_utils.Tensor("IDX", np.array([index], np.uint32)),
                pb_utils.Tensor("OUT", np.array([number], np.int32)),
            ]
            sender.send(pb_utils.InferenceResponse(tensors))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def write_recorded(folder: Path) -> Path:
    """The recorded repository, with `simple` and `repeat_int32`, which are Triton's own examples."""
    subprocess.run([sys.executable, str(_WRITER)], cwd=folder, check=True)
    write_model(folder / "repo", "simple", f'backend: "python"{_TENSORS}', _ADD_SUB)
    write_model(folder / "repo", "repeat_int32", _REPEAT_CONFIG, _REPEAT)
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

"""RepositoryOp: the Op that runs one version of a model of a repository, in its worker."""

from __future__ import annotations

from pathlib import Path

from pipeline.api.op import Op
from pipeline.api.served_models import ServedModel


class RepositoryOp(Op):
    """Runs a Python model or an identity beside its requests; an engine's model by its predictor."""

    def __init__(self, name: str, model: ServedModel, port: int) -> None:
        """port: of the server's gRPC, by which a Python model asks others."""
        super().__init__(name=name)
        self._served = model
        self._port = port

    def init_op(self) -> None:
        served = self._served
        assert served.config is not None
        backend = served.config["backend"]
        if backend == "identity":
            from pipeline.triton.identity import Identity

            self.request_runner = Identity(served.config)
        elif backend == "python":
            from pipeline.triton.python_backend.other_models import OtherModels
            from pipeline.triton.python_backend.python_model import PythonModel

            folder, instance = Path(served.folder), self.concurrency_idx or 0
            others = OtherModels(self._port)
            self.request_runner = PythonModel(served.config, folder, served.version, instance, others)

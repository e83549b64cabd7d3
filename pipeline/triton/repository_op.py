"""RepositoryOp: the Op that runs one version of a model of a repository, in its worker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.api.op import Op, OpRequest
from pipeline.api.served_models import ServedModel
from pipeline.engines.reshaped import Reshape, Reshapes
from pipeline.errors import ConfigError, ServingError, get_error_text
from pipeline.triton.python_backend.other_models import OtherModels
from pipeline.triton.warmup import load_samples


class RepositoryOp(Op):
    """Runs a Python model or an identity beside its requests; an engine's model by its predictor."""

    def __init__(
        self, name: str, model: ServedModel, others: OtherModels, *, install_requirements: bool = False
    ) -> None:
        """others: calls other models of the server for a Python model. install_requirements: see App."""
        super().__init__(name=name)
        self._install_requirements = install_requirements
        self._served = model
        self._others = others
        assert model.config is not None
        if model.config["backend"] not in ("python", "identity"):
            self.reshapes = _get_reshapes(model.config)

    def init_op(self) -> None:
        served = self._served
        assert served.config is not None
        backend = served.config["backend"]
        if backend == "identity":
            from pipeline.triton.identity import Identity

            self.request_runner = Identity(served.config)
        elif backend == "python":
            from pipeline.triton.python_backend.python_model import PythonModel

            folder, instance = Path(served.folder), self.concurrency_idx or 0
            self.request_runner = PythonModel(
                served.config,
                folder,
                served.version,
                instance,
                self._others,
                install_requirements=self._install_requirements,
            )
        self._warm_up(served.config, Path(served.folder))

    def _warm_up(self, config: Mapping[str, Any], folder: Path) -> None:
        """Run the samples of `model_warmup`. Raises ConfigError for one that fails."""
        for sample in load_samples(config, folder):
            for _ in range(sample.times):
                try:
                    self._run(sample.feed)
                except Exception as exc:
                    raise ConfigError(
                        f"model_warmup: sample '{sample.name}' fails: {get_error_text(exc)}"
                    ) from exc

    def _run(self, feed: dict[str, Any]) -> None:
        if self.request_runner is None:
            self.predictor.run(feed)
            return
        (answer,) = self.request_runner.run([OpRequest({}, 0, 0)], [feed])
        if isinstance(answer, ServingError):
            raise answer


def _get_reshapes(config: Mapping[str, Any]) -> Reshapes | None:
    """What `reshape` says of the tensors; None where it says nothing."""
    inputs, outputs = (
        {
            one["name"]: Reshape(tuple(one["dims"]), tuple(one["reshape"]["shape"]))
            for one in config[side]
            if "reshape" in one
        }
        for side in ("input", "output")
    )
    return Reshapes(inputs, outputs, config["max_batch_size"] > 0) if inputs or outputs else None

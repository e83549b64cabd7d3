"""Whether the models of an ensemble agree on the tensors that pass between them: names, data types, dims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from client.protos.kserve_v2_pb2 import ModelConfig
from pipeline.api.served_models import ServedModel
from pipeline.errors import ConfigError
from pipeline.models.tensor_spec import TensorSpec
from pipeline.triton.model_folder import build_specs


class _Told(NamedTuple):
    """A tensor as one model declares it. dims: without its rows; shape: with them."""

    model: str
    datatype: str
    dims: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def by(cls, model: str, spec: TensorSpec, *, batched: bool) -> _Told:
        shape = tuple(spec.shape)
        return cls(model, spec.datatype, shape[1:] if batched else shape, shape)

    def agrees_on_shape(self, other: _Told) -> bool:
        """Dims of any length are seen at the request. To a model without rows they may be a dim."""
        return _fit(self.dims, other.dims) or _fit(self.shape, other.shape)


class EnsembleTensors:
    """The tensors of one ensemble, by their names there: each as whoever named it first declares it."""

    def __init__(self, config: ModelConfig) -> None:
        self._ensemble = config.name
        batched = config.max_batch_size > 0
        self._known = {
            spec.name: _Told.by(config.name, spec, batched=batched)
            for tensors in (config.input, config.output)
            for spec in build_specs(tensors, config.max_batch_size)
        }

    def take(self, model: ServedModel, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
        """Take what a step's model declares. inputs, outputs: the ensemble's names of its tensors.

        Raises ConfigError for what does not agree with the ensemble or with another model.
        """
        signature = model.signature
        assert signature is not None  # every model of a repository declares its tensors
        self._check_names(model.name, "input", inputs, signature.inputs)
        self._check_names(model.name, "output", outputs, signature.outputs)
        for spec in signature.inputs:
            if spec.name not in inputs and not spec.optional:
                raise ConfigError(
                    f"in ensemble {self._ensemble}, input {spec.name} in model {model.name} is not mapped to "
                    "any ensemble tensors"
                )
        batched = signature.max_batch_size > 0
        for names, specs in ((inputs, signature.inputs), (outputs, signature.outputs)):
            for spec in specs:
                if spec.name in names:
                    self._check(names[spec.name], _Told.by(model.name, spec, batched=batched))

    def _check_names(
        self, model: str, kind: str, names: Mapping[str, str], specs: Iterable[TensorSpec]
    ) -> None:
        known = {spec.name for spec in specs}
        for name, tensor in names.items():
            if name not in known:
                raise ConfigError(
                    f"in ensemble {self._ensemble}, ensemble tensor {tensor} is mapping to non-existing "
                    f"{kind} {name} in model {model}"
                )

    def _check(self, name: str, told: _Told) -> None:
        known = self._known.setdefault(name, told)
        about = f"in ensemble {self._ensemble}, ensemble tensor {name}: inconsistent"
        if known.datatype != told.datatype:
            raise ConfigError(
                f"{about} data type: {known.datatype} is inferred from model {known.model} while "
                f"{told.datatype} is inferred from model {told.model}"
            )
        if not known.agrees_on_shape(told):
            raise ConfigError(
                f"{about} shape: {list(known.shape)} is inferred from model {known.model} while "
                f"{list(told.shape)} is inferred from model {told.model}"
            )


def _fit(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(shape) == len(other) and all(
        -1 in (one, another) or one == another for one, another in zip(shape, other, strict=True)
    )

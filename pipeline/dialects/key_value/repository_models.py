"""FRONT PROCESS: key/value requests to the models of a Triton model repository.

A request names the model. Its values become the tensors that the model declares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from pipeline.api.app import ServedModel
from pipeline.api.examples import build_message
from pipeline.config.config_file import Limits
from pipeline.dialects.key_value.unread import DeclaredTexts, UnreadTensor, UnreadText
from pipeline.errors import BadPackage, TooLarge, UnknownService
from pipeline.front.dag_run import Request
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.models.tensor_spec import BY_DATATYPE, Signature, TensorSpec
from pipeline.wire.paddle_tensors import STRING

_EXAMPLE_TEXT = "text"


class RepositoryModels:
    """Finds the model of a repository that a key/value request names, and converts the request's values."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def address(self, request: Request, model: ServedModel) -> None:
        """Set the model of a request, and replace its inputs by the tensors that the model declares.

        Raises BadPackage for values that the model does not accept, and TooLarge for too many rows.
        """
        assert model.signature is not None  # each model of a repository has a signature
        limits = self._scheduler.app.config.limits
        request.inputs, request.rows = match_inputs(model.name, model.signature, request.inputs, limits)
        if request.rows > limits.rows:
            raise TooLarge(f"{request.rows} rows were sent; limits.rows is {limits.rows}")
        request.service, request.model, request.model_version = model.name, model.key, model.version
        request.wish = True  # the response has BYTES as texts

    def find_model(self, name: str) -> ServedModel:
        """Return the newest loaded version of the model with this name; for an empty name, the only model.

        Raises UnknownService if there is no such model.
        """
        models_by_name = {
            model.name: model for model in self._scheduler.app.models if self._is_offered(model)
        }
        if not name and len(models_by_name) == 1:
            return next(iter(models_by_name.values()))
        if name not in models_by_name:
            names = ", ".join(sorted(models_by_name)) or "none"
            raise UnknownService(f"Service name error: there is no service {name!r}; the models are {names}")
        return models_by_name[name]

    def _is_offered(self, model: ServedModel) -> bool:
        return model.signature is not None and not self._scheduler.has_unloaded(model.key)

    def usage(self) -> str:
        """Return the path and body of a valid request as text, for error messages."""
        for model in self._scheduler.app.models:
            if example := get_text_example(model):
                return f"POST /{model.name}/prediction with a body like {build_message(example)}"
        return "POST /<model>/prediction"


def get_text_example(model: ServedModel) -> Mapping[str, str]:
    """Return an example text for each required input of a model in a repository.

    Empty if a required input is not a single text.
    """
    if model.config is None or model.signature is None:
        return {}
    needed = [spec for spec in model.signature.inputs if not spec.optional]
    if not needed or any(spec.datatype != "BYTES" or _single_element_shape(spec) is None for spec in needed):
        return {}
    return {spec.name: _EXAMPLE_TEXT for spec in needed}


def match_inputs(
    model: str, signature: Signature, inputs: Mapping[str, Any], limits: Limits
) -> tuple[dict[str, Any], int]:
    """Convert the values of a key/value request to the tensors that a model declares.

    Returns the tensors by name, and the number of rows, which is 1 for a model that does not batch. If the
    model has one input and the request one value, the key of the value does not matter. Raises BadPackage for
    unknown, missing and invalid values.
    """
    specs = {spec.name: spec for spec in signature.inputs}
    if len(specs) == len(inputs) == 1:
        inputs = dict(zip(specs, inputs.values(), strict=True))
    unknown = [name for name in inputs if name not in specs]
    missing = [spec.name for spec in signature.inputs if spec.name not in inputs and not spec.optional]
    if unknown or missing:
        wrong = f"takes no {unknown[0]!r}" if unknown else f"needs {missing[0]!r}"
        signature_text = ", ".join(
            f"{spec.name} {spec.datatype} {list(spec.shape)}" for spec in signature.inputs
        )
        raise BadPackage(f"model {model!r} {wrong}; its inputs are {signature_text}")
    tensors = {name: _to_tensor(model, specs[name], value, limits) for name, value in inputs.items()}
    if not signature.max_batch_size:
        return tensors, 1
    rows = {name: tensor.shape[0] for name, tensor in tensors.items()}
    if len(set(rows.values())) > 1:
        raise BadPackage(f"the inputs of model {model!r} have unequal rows: {rows}")
    count = next(iter(rows.values()))
    if count > signature.max_batch_size:
        raise BadPackage(f"{count} rows are given; model {model!r} takes {signature.max_batch_size} at most")
    return tensors, count


def _to_tensor(model: str, spec: TensorSpec, value: Any, limits: Limits) -> Any:
    expected = f"input {spec.name!r} of model {model!r} is {spec.datatype} {list(spec.shape)}"
    if isinstance(value, UnreadTensor):
        return _unread_tensor(spec, value, expected, limits)
    if isinstance(value, UnreadText):
        value.shape = list(_shape_of_text(spec, expected))
        return value
    if isinstance(value, str):
        return _to_texts([value], _shape_of_text(spec, expected))
    array = np.asarray(value)
    dtype = "BYTES" if array.dtype.kind in "SU" else array.dtype.name
    _check_type(spec, dtype, array.shape, expected)
    if dtype != "BYTES":
        return array
    texts = [
        text if isinstance(text, str) else text.decode("utf-8", "replace") for text in array.ravel().tolist()
    ]
    return _to_texts(texts, array.shape)


def _unread_tensor(spec: TensorSpec, value: UnreadTensor, expected: str, limits: Limits) -> UnreadTensor:
    """Check the type and shape of a tensor that the worker will decode, and set its shape. Raises BadPackage.

    expected: text that describes the declared input, for error messages.
    """
    dtype, shape = value.find_type(limits)
    if any(length < 0 for length in shape):
        raise BadPackage(f"{expected}; the shape {shape} was given: send all lengths of a large tensor")
    if value.elem_type == STRING and math.prod(shape) == 1:  # str_data is a single joined text
        shape = list(_shape_of_text(spec, expected))
    _check_type(spec, dtype, shape, expected)
    value.shape, value.as_bytes = shape, dtype == "BYTES"
    return value


def _check_type(spec: TensorSpec, dtype: str, shape: Sequence[int], expected: str) -> None:
    """Raise BadPackage for a dtype or a shape that the model does not accept.

    expected: text that describes the declared input, for the error message.
    """
    if dtype != ("BYTES" if spec.datatype == "BYTES" else BY_DATATYPE[spec.datatype].numpy.name):
        raise BadPackage(f"{expected}; {dtype} was given")
    if len(shape) != len(spec.shape) or any(
        declared_length not in (-1, length) for declared_length, length in zip(spec.shape, shape, strict=True)
    ):
        raise BadPackage(f"{expected}; the shape {list(shape)} was given")


def _shape_of_text(spec: TensorSpec, expected: str) -> tuple[int, ...]:
    """Return the shape in which a single text matches the declared input, such as (1, 1).

    Raises BadPackage for an input that is no text, or always has more elements.
    """
    shape = _single_element_shape(spec)
    if spec.datatype != "BYTES" or shape is None:
        raise BadPackage(f"{expected}: send it under 'tensors', not as a text")
    return shape


def _to_texts(texts: Sequence[str], shape: Sequence[int]) -> DeclaredTexts:
    # JSON may contain half of a surrogate pair, which msgspec can't encode.
    valid_texts = [text.encode("utf-8", "replace").decode() for text in texts]
    return DeclaredTexts(msgspec.json.encode(valid_texts), list(shape))


def _single_element_shape(spec: TensorSpec) -> tuple[int, ...] | None:
    """Return the shape of a declared tensor with one element; None if the tensor always has more elements."""
    return (1,) * len(spec.shape) if all(length in (-1, 1) for length in spec.shape) else None

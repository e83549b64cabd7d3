"""Names, shapes and batch axes of tensors, as clients see them, and the table of element types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.errors import ConfigError


class Dtype(NamedTuple):
    """An element type of tensors, with its name or number in each format."""

    name: str  # in `Variable.dtype`: NumPy's name, or "bfloat16" or "string"
    datatype: str  # KServe v2's name
    numpy: np.dtype[Any]  # of its arrays: bfloat16 as uint16 bits, string as object
    onnx: int  # number in an ONNX file (TensorProto.DataType)
    program: int | None  # number in a .pdmodel (VarType.Type); None: such variables can't be served
    paddle: int | None  # number in a prototxt and in Paddle Serving's Tensor; None: none there


# Texts in Paddle Serving's Tensor have the additional numbers 12 and 13.
DTYPES = (
    Dtype("bool", "BOOL", np.dtype(np.bool_), 9, 0, 9),
    Dtype("uint8", "UINT8", np.dtype(np.uint8), 2, 20, 7),
    Dtype("uint16", "UINT16", np.dtype(np.uint16), 4, None, None),
    Dtype("uint32", "UINT32", np.dtype(np.uint32), 12, None, None),
    Dtype("uint64", "UINT64", np.dtype(np.uint64), 13, None, None),
    Dtype("int8", "INT8", np.dtype(np.int8), 3, 21, 8),
    Dtype("int16", "INT16", np.dtype(np.int16), 5, 1, 4),
    Dtype("int32", "INT32", np.dtype(np.int32), 6, 2, 2),
    Dtype("int64", "INT64", np.dtype(np.int64), 7, 3, 0),
    Dtype("float16", "FP16", np.dtype(np.float16), 10, 4, 5),
    Dtype("bfloat16", "BF16", np.dtype(np.uint16), 16, 22, 6),
    Dtype("float32", "FP32", np.dtype(np.float32), 1, 5, 1),
    Dtype("float64", "FP64", np.dtype(np.float64), 11, 6, 3),
    Dtype("string", "BYTES", np.dtype(np.object_), 8, None, 20),
)
BY_NAME = {dtype.name: dtype for dtype in DTYPES}
BY_DATATYPE = {dtype.datatype: dtype for dtype in DTYPES}
BY_ONNX = {dtype.onnx: dtype for dtype in DTYPES}
BY_PROGRAM = {dtype.program: dtype for dtype in DTYPES if dtype.program is not None}
BY_PADDLE = dict(sorted((dtype.paddle, dtype) for dtype in DTYPES if dtype.paddle is not None))

RAW_ALONE = ("FP16", "BF16")  # datatypes that KServe v2 only sends as raw bytes


_DECLARED = re.compile(r"\s*(\w+)\s*\[([-\d\s,]*)\]\s*(or\s+null\s*)?")


class TensorSpec(NamedTuple):
    """An input or output tensor of a model or an Op (a step of the service), as clients see it.

    The class `Variable` has the facts that only an engine needs.
    """

    name: str
    datatype: str  # as KServe v2 names it
    shape: tuple[int, ...]  # -1 for any length
    labels: tuple[str, ...] = ()  # of its classes, by their number
    optional: bool = False  # an input that a request may leave out
    nullable: bool = False  # an input whose elements may be missing: null in JSON

    def as_dict(self) -> dict[str, Any]:
        """Return the tensor as a dict of KServe v2 metadata."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


class Signature(NamedTuple):
    """The input and output tensors of a model or an Op, as clients see them."""

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    max_batch_size: int = 0  # the greatest number of rows; 0: tensors have no axis of rows in front

    @property
    def open(self) -> bool:
        """Whether no tensor is declared, so that a request may have any tensors."""
        return not self.inputs

    @property
    def has_rows(self) -> bool:
        """Whether the first axis of every tensor is dynamic.

        Rows can then be sent as instances of KServe v1.
        """
        return not self.open and all(spec.shape[:1] == (-1,) for spec in (*self.inputs, *self.outputs))


def declared_specs(
    where: str, tensors: Mapping[str, str], batched: bool, labels: Mapping[str, Sequence[str]] | None = None
) -> tuple[TensorSpec, ...]:
    """Return the tensors in declarations such as `{"text": "BYTES [-1]", "age": "FP32 [-1] or null"}`.

    where: place for error messages. batched: shapes begin with the batch axis, -1. labels: class names of
    tensors. Raises ConfigError with all mistakes.
    """
    flaws, specs = [], []
    for name, text in tensors.items():
        match = _DECLARED.fullmatch(text) if isinstance(text, str) else None
        if match is None or match[1] not in BY_DATATYPE:
            flaws.append(
                f"{where}: {name!r} is declared as {text!r}; write datatype and shape, as in "
                f"'FP32 [-1, 16]' or 'FP32 [-1] or null'; datatypes are {', '.join(BY_DATATYPE)}"
            )
            continue
        shape = tuple(int(length) for length in match[2].split(",") if length.strip())
        if any(length < -1 for length in shape) or (batched and shape[:1] != (-1,)):
            first = " and -1 first, for max_batch_size is set" if batched else ""
            flaws.append(
                f"{where}: the shape of {name!r} is {list(shape)}; it has lengths, -1 for any{first}"
            )
            continue
        classes = tuple((labels or {}).get(name, ()))
        specs.append(TensorSpec(name, match[1], shape, classes, nullable=match[3] is not None))
    if flaws:
        raise ConfigError("\n".join(flaws))
    return tuple(specs)


class ModelCard(NamedTuple):
    """Engine, task and class labels of a model, sent by its worker for /openapi.json and /docs."""

    engine: str  # with the precision, where that is another than fp32
    task: str = ""  # as the conversion notes it; empty: unknown
    labels: tuple[str, ...] = ()  # of the classes

    def as_dict(self) -> dict[str, Any]:
        """Return the known facts as a dict for JSON, without unknown ones."""
        return {name: value for name, value in self._asdict().items() if value}


class BatchAxis(NamedTuple):
    """The tensor shape that a receiver expects, if only one of sender and receiver has a batch axis."""

    dims: tuple[int, ...]  # without the batch axis, -1 for any length
    batched: bool  # whether the receiver has a batch axis

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a shape equals the shape that the receiver declares, including its batch axis."""
        return _match(self.dims, shape[1:] if self.batched and shape else shape)

    def adapt(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in which the receiver takes a tensor of this shape.

        If the receiver has a batch axis, a tensor of the receiver's dims becomes a batch of 1. If not, a
        batch of 1 loses its batch axis. Other shapes are unchanged, because one of their dims may be the
        batch axis.
        """
        matches = _match(self.dims, shape)
        if self.batched and matches:
            return (1, *shape)
        if not self.batched and not matches and shape[:1] == (1,):
            return shape[1:]
        return shape


BatchAxes = tuple[BatchAxis, ...]
"""The receivers that a tensor passes through: models, and ensembles around models."""


def adapt_array(array: Any, axes: Sequence[BatchAxis]) -> Any:
    """Reshape an array for the last of several receivers: batch axes are added and removed in turn."""
    shape = tuple(array.shape)
    for axis in axes:
        shape = axis.adapt(shape)
    return array.reshape(shape)


def _match(dims: Sequence[int], shape: Sequence[int]) -> bool:
    return len(dims) == len(shape) and all(
        dim in (-1, length) for dim, length in zip(dims, shape, strict=True)
    )

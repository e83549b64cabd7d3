"""The text form of a model's inputs, `input_ids:int64[-1,-1];mask:int64[-1,-1]`, and its parser."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipeline.errors import ConversionError

# Some of those in pipeline/models/tensor_spec.py, in the order in which a refusal names them.
DTYPES = ("int64", "int32", "int16", "int8", "uint8", "bool", "float64", "float32", "float16", "bfloat16")
EXAMPLE = "input_ids:int64[-1,-1];attention_mask:int64[-1,-1]"

_PART = re.compile(r"(?P<name>[^:\[\]]*):(?P<dtype>[^:\[\]]*)\[(?P<shape>[^\[\]]*)\]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


@dataclass(frozen=True)
class ProgramTensor:
    """An input or output of a program that is no serving model yet.

    A serving model has a `Variable` in its place, with an alias and more facts.
    """

    name: str
    dtype: str  # as in pipeline/models/tensor_spec.py
    shape: tuple[int, ...]  # -1 is an axis that varies

    def __str__(self) -> str:
        return f"{self.name}:{self.dtype}[{','.join(map(str, self.shape))}]"


def parse_input_spec(text: str) -> tuple[ProgramTensor, ...]:
    """Parse `name:dtype[dim,dim];...`; raises ConversionError that quotes the part at fault."""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if not parts:
        raise ConversionError(f"--input-spec is empty; write it like '{EXAMPLE}'.")
    specs = tuple(_parse_part(part) for part in parts)
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise ConversionError(f"--input-spec names {name!r} twice; each input has its own name.")
    return specs


def _parse_part(part: str) -> ProgramTensor:
    match = _PART.fullmatch(part)
    if match is None:
        raise ConversionError(f"--input-spec: {part!r} is not name:dtype[dims]; write it like '{EXAMPLE}'.")
    name, dtype = match["name"].strip(), match["dtype"].strip()
    if not _NAME.fullmatch(name):
        raise ConversionError(f"--input-spec: {name!r} in {part!r} is not a name of letters, digits and _.")
    if dtype not in DTYPES:
        raise ConversionError(f"--input-spec: dtype {dtype!r} in {part!r} is not one of {', '.join(DTYPES)}.")
    return ProgramTensor(name, dtype, _parse_shape(match["shape"], part))


def _parse_shape(text: str, part: str) -> tuple[int, ...]:
    dims = []
    for dim in text.split(",") if text.strip() else ():
        if not re.fullmatch(r"-1|[1-9][0-9]{0,8}", dim.strip()):
            raise ConversionError(
                f"--input-spec: {dim.strip()!r} in {part!r} is not a dimension; use -1 where it varies."
            )
        dims.append(int(dim))
    return tuple(dims)

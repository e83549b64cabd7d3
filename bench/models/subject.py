"""A model to try, and the files that its maker leaves behind. Imports no framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

GIVEN, EXPECTED = "given.npz", "expected.npz"
ROWS, LENGTH = 2, 7  # of the request: number of rows, and length of all other dynamic axes
SOURCE = "source"  # subfolder of the maker's folder, to which it writes the model


@dataclass(frozen=True)
class Subject:
    """A model, with the options that convert and serve it.

    make: "module:function", called in the conversion environment as `function(steps, folder, **arguments)`.
    It writes the model, keeps a request and the framework's own answer by `keep`, and returns the source as
    `convert all` takes it. options: of `convert all`. new: of `paddlewheel new`. refused: a part of the
    expected error message, if the model can't be served.
    """

    name: str
    family: str
    make: str
    needs: tuple[str, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    refused: str = ""


def keep(folder: str, inputs: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Write a request and its expected answer to the folder, as arrays by the names of inputs and outputs."""
    for file, arrays in ((GIVEN, inputs), (EXPECTED, expected)):
        named: dict[str, Any] = {name: np.asarray(array) for name, array in arrays.items()}
        np.savez(Path(folder, file), **named)


def made_up(spec: str, ids: int = 50) -> dict[str, Array]:
    """Return random arrays for an input spec: numbers around 0, or ids below `ids`. A mask has only ones."""
    from convert.programs.program_feeds import parse_input_spec
    from pipeline.models.signature import sized

    random, arrays = np.random.default_rng(4), {}
    for tensor in parse_input_spec(spec):
        shape = sized(tensor.shape, ROWS, LENGTH)
        if "mask" in tensor.name:
            arrays[tensor.name] = np.ones(shape, tensor.dtype)
        elif tensor.dtype.startswith("int"):
            arrays[tensor.name] = random.integers(3, ids, shape, tensor.dtype)
        else:
            arrays[tensor.name] = random.standard_normal(shape).astype(tensor.dtype)
    return arrays

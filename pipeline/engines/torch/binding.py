"""Maps the tensor names of a model's description to the arguments and results of `forward`.

The rules are those of Triton's PyTorch backend: names of arguments, else names that end with "__" and a
position, else the order of the description.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.errors import ConfigError

TENSOR, TENSORS, TENSOR_MAP, TEXTS = "Tensor", "List[Tensor]", "Dict[str, Tensor]", "List[str]"

_NUMBERED = re.compile(r".+__(\d{1,4})")


class Argument(NamedTuple):
    """An argument of the function `forward` of a PyTorch model."""

    name: str
    kind: str  # TENSOR, TENSORS, TENSOR_MAP, TEXTS, or another type of TorchScript
    required: bool = True  # False: it has a default value


class InputBinding(NamedTuple):
    """Assigns input tensors to the arguments of a PyTorch model's `forward`."""

    names: tuple[str | None, ...]  # the input of each argument; None: the argument keeps its default
    gathered: str = ""  # TENSORS or TENSOR_MAP: all inputs together are the only argument

    def build_arguments(self, values: Mapping[str, Any]) -> tuple[list[Any], dict[int, Any]]:
        """Return the leading positional arguments, and later arguments by position.

        values: tensors by input name. The second result, a dict by position, holds the arguments after the
        first argument that keeps its default.
        """
        if self.gathered == TENSOR_MAP:
            return [{name: values[name] for name in self.names if name is not None}], {}
        if self.gathered == TENSORS:
            return [[values[name] for name in self.names if name is not None]], {}
        split = self.names.index(None) if None in self.names else len(self.names)
        later = {at: values[name] for at, name in enumerate(self.names[split:], split) if name is not None}
        return [values[name] for name in self.names[:split] if name is not None], later


def bind_inputs(names: Sequence[str], arguments: Sequence[Argument], where: str) -> InputBinding:
    """Decide which input is passed as which argument of a PyTorch model's `forward`.

    where: the model file, for error messages. Raises ConfigError for inputs that do not fit.
    """
    if len(arguments) == 1 and arguments[0].kind in (TENSORS, TENSOR_MAP):
        ordered = [name for _, name in sorted(zip(get_positions(names), names, strict=True))]
        return InputBinding(tuple(ordered), arguments[0].kind)
    argument_names = [argument.name for argument in arguments]
    positions = (
        [argument_names.index(name) for name in names]
        if set(names) <= set(argument_names)
        else get_positions(names)
    )
    signature = f"forward({', '.join(f'{a.name}: {a.kind}' for a in arguments)})"
    by_position = dict(zip(positions, names, strict=True))
    if len(by_position) < len(names):
        raise ConfigError(f"{where}: two of the inputs {', '.join(names)} have one position; {signature}")
    for position, name in by_position.items():
        if position >= len(arguments):
            raise ConfigError(
                f"{where}: input {name!r} is number {position}, and the model has {signature}: remove it, "
                "or name the inputs after the arguments"
            )
        if arguments[position].kind not in (TENSOR, TEXTS):
            raise ConfigError(
                f"{where}: input {name!r} goes to an argument of type {arguments[position].kind}; a tensor "
                f"can be {TENSOR} or {TEXTS}, in {signature}"
            )
    for position, argument in enumerate(arguments):
        if argument.required and position not in by_position:
            raise ConfigError(
                f"{where}: no input is argument {argument.name!r} of {signature}: declare an input "
                f"'{argument.name}' or 'input__{position}'"
            )
    return InputBinding(tuple(by_position.get(position) for position in range(len(arguments))))


def get_positions(names: Sequence[str]) -> list[int]:
    """Return the positions at the end of names such as input__0, or else the order of the names."""
    matches = [_NUMBERED.fullmatch(name) for name in names]
    numbers = [int(match[1]) for match in matches if match]
    return numbers if len(numbers) == len(names) else list(range(len(names)))


def select_outputs(result: Any, names: Sequence[str], where: str) -> list[Any]:
    """Return the values that `forward` has returned for these outputs.

    names: all outputs of the model's description. Raises ConfigError for results that do not fit.
    """
    if isinstance(result, Mapping) and set(names) <= result.keys():
        return [result[name] for name in names]
    if isinstance(result, Mapping):
        values = list(result.values())
    elif isinstance(result, tuple | list) and not _is_texts(result):
        values = list(result)
    else:
        values = [result]
    positions = get_positions(names)
    if max(positions) >= len(values):
        returned = f"keys {', '.join(map(str, result))}" if isinstance(result, Mapping) else f"{len(values)}"
        raise ConfigError(
            f"{where}: output {names[positions.index(max(positions))]!r} is number {max(positions)}, and "
            f"forward returned {returned}: correct the outputs of the description"
        )
    return [values[position] for position in positions]


def _is_texts(result: Sequence[Any]) -> bool:
    return isinstance(result, list) and bool(result) and isinstance(result[0], str)

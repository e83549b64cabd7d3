"""Shape ranges of a TensorRT engine: smallest, most likely and largest shape of each tensor."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from client.protos.model_files_pb2 import ShapeRangeInfos
from pipeline.errors import ConfigError
from pipeline.models.protobuf_text import format_message, read_message

MAX_FILE_BYTES = 16 << 20  # some 200 KB for a model of 24 layers
_FIELD_NAMES = ("min_shape", "max_shape", "opt_shape", "min_value", "max_value", "opt_value")
# Name of a PIR program's inner tensor: address and time of the predictor, then the position in the program.
_PLACE = re.compile(r"(?:0x[0-9a-f]+_)?(inner_var_\d+)")


@dataclass(frozen=True)
class TensorRange:
    """Smallest, largest and most likely shape of one tensor."""

    min: tuple[int, ...] = ()
    max: tuple[int, ...] = ()
    opt: tuple[int, ...] = ()
    # Elements of a small int32 tensor that holds a shape for another operator.
    min_values: tuple[int, ...] = ()
    max_values: tuple[int, ...] = ()
    opt_values: tuple[int, ...] = ()

    @property
    def varies(self) -> bool:
        """Whether the tensor's shape differs between runs, or, for a tensor that holds a shape, its value."""
        return self.min != self.max or self.min_values != self.max_values


Ranges = dict[str, TensorRange]


def read_ranges(path: Path) -> Ranges:
    """Read a file of collected shapes. Returns ranges by tensor.

    Raises ConfigError with the line and the field.
    """
    try:
        infos = read_message(path, ShapeRangeInfos, MAX_FILE_BYTES).shape_range_info
    except FileNotFoundError:
        raise ConfigError(
            f"there is no file {path}: make it with `paddlewheel convert shapes MODEL {path}`"
        ) from None
    except ConfigError as exc:
        raise ConfigError(f"{exc.message}: collect the shapes again") from exc
    if not infos:
        raise ConfigError(f"{path} is empty: collect the shapes again")
    if not all(info.name for info in infos):
        raise ConfigError(f"{path} has shapes without a tensor's name: collect the shapes again")
    return {info.name: TensorRange(*(tuple(getattr(info, name)) for name in _FIELD_NAMES)) for info in infos}


def format_ranges(ranges: Ranges, comments: Iterable[str] = ()) -> str:
    """Return shape ranges as the text of a file for `read_ranges` and Paddle, below lines of comments."""
    infos = ShapeRangeInfos()
    for name, tensor_range in ranges.items():
        fields = zip(_FIELD_NAMES, dataclasses.astuple(tensor_range), strict=True)
        infos.shape_range_info.add(name=name, **dict(fields))
    return "".join(f"# {comment}\n" for comment in comments) + format_message(infos)


def place_in_program(name: str) -> str:
    """Return the stable part of a Paddle 3 (PIR) tensor name: the name without the predictor's prefix."""
    match = _PLACE.fullmatch(name)
    return match[1] if match else name


def is_place(name: str) -> bool:
    """Whether a name belongs to an inner tensor of a Paddle 3 model (PIR).

    These names have a prefix that changes with each predictor.
    """
    return _PLACE.fullmatch(name) is not None


Shapes = Mapping[str, tuple[int, ...]]

_FIELDS = {"min": "min_input_shape", "opt": "opt_input_shape", "max": "max_input_shape"}
MAX_RANK = 16


class ShapeRange(Protocol):
    """The shape range of a tensor in `tensorrt.shapes` of config.yml."""

    @property
    def min(self) -> Iterable[int]: ...
    @property
    def opt(self) -> Iterable[int]: ...
    @property
    def max(self) -> Iterable[int]: ...


@dataclass(frozen=True)
class DynamicShapes:
    """Smallest, most likely and largest shape of each tensor of a model, for TensorRT's optimization profile.

    min <= opt <= max for every tensor. Inner tensors of the model may be included.
    """

    min: Shapes
    opt: Shapes
    max: Shapes
    file: Path | None = None  # source of the shapes, for Paddle, which reads more than shapes from it
    further: tuple[DynamicShapes, ...] = ()  # shapes of further length classes, an engine each

    @classmethod
    def from_info(cls, info: object, source: str = "dynamic_shape_info") -> DynamicShapes:
        """Build the shape ranges from `set_dynamic_shape_info`'s value: three dicts from tensor to shape.

        Raises ConfigError with all mistakes, one per line, each with `source` and its field.
        """
        if not isinstance(info, Mapping) or info.keys() != set(_FIELDS.values()):
            type_error = "" if isinstance(info, Mapping) else f" is {type(info).__name__}; it"
            raise ConfigError(
                f"{source}{type_error} must have exactly the keys {', '.join(_FIELDS.values())}"
            )
        flaws: list[str] = []
        parsed = {field: _parse_shapes(info[field], f"{source}.{field}", flaws) for field in _FIELDS.values()}
        if not flaws:
            flaws = _check_order(parsed, source)
        if flaws:
            raise ConfigError("\n".join(flaws))
        low, opt, high = (parsed[field] for field in _FIELDS.values())
        return cls(low, opt, high)

    @classmethod
    def from_ranges(cls, ranges: Mapping[str, ShapeRange]) -> DynamicShapes:
        """Build the shape ranges from `tensorrt.shapes` in config.yml. Raises ConfigError."""
        info = {
            field: {name: list(getattr(shape_range, bound)) for name, shape_range in ranges.items()}
            for bound, field in _FIELDS.items()
        }
        return cls.from_info(info, "tensorrt.shapes")

    @classmethod
    def from_file(cls, path: Path) -> DynamicShapes:
        """Read shape ranges from a file of `paddlewheel convert shapes` or of Paddle. Raises ConfigError."""
        source = "tensorrt.shapes"
        try:
            ranges = read_ranges(path)
        except ConfigError as exc:
            raise ConfigError(f"{source}: {exc.message}") from exc
        info = {
            field: {name: getattr(tensor_range, bound) for name, tensor_range in ranges.items()}
            for bound, field in _FIELDS.items()
        }
        return dataclasses.replace(cls.from_info(info, f"{source}: {path}"), file=path)

    @classmethod
    def from_files(cls, paths: Sequence[Path]) -> DynamicShapes:
        """Read shape ranges from one or more files, one file per length class. Raises ConfigError."""
        first, *further = map(cls.from_file, paths)
        return dataclasses.replace(first, further=tuple(further))

    @property
    def profiles(self) -> tuple[DynamicShapes, ...]:
        """Shape ranges of each length class, this object's first. Each class gets its own TensorRT engine."""
        return (dataclasses.replace(self, further=()), *self.further)

    @property
    def longest(self) -> Shapes:
        """Greatest length on each axis of each tensor, over all length classes."""
        longest: dict[str, tuple[int, ...]] = {}
        for profile in self.profiles:
            for name, shape in profile.max.items():
                longest[name] = tuple(map(max, longest.get(name, shape), shape))
        return longest

    def max_rows(self, feed_names: Iterable[str]) -> int | None:
        """Return the maximum rows that all these model inputs allow; None if no input has a range."""
        names = list(feed_names)
        rows = [profile.max[name][0] for profile in self.profiles for name in names if profile.max.get(name)]
        return min(rows, default=None)

    def contain(self, shapes: Shapes) -> bool:
        """Whether each tensor's shape is within its range. Tensors without a range may have any shape."""
        described = shapes.keys() & self.max.keys()
        return all(
            low <= length <= high
            for name in described
            for low, length, high in zip(self.min[name], shapes[name], self.max[name], strict=True)
        )

    def renamed(self, names: Mapping[str, str]) -> DynamicShapes:
        """Return the shape ranges with renamed tensors. names: maps each old name to its new name."""
        low, opt, high = (
            {names.get(name, name): shape for name, shape in s.items()}
            for s in (self.min, self.opt, self.max)
        )
        return DynamicShapes(
            low, opt, high, self.file, tuple(shapes.renamed(names) for shapes in self.further)
        )


def _parse_shapes(value: object, where: str, flaws: list[str]) -> dict[str, tuple[int, ...]]:
    if not isinstance(value, Mapping):
        flaws.append(f"{where} is {type(value).__name__}, expected a dict from tensor name to shape")
        return {}
    shapes = {}
    for name, shape in value.items():
        dims = tuple(shape) if isinstance(shape, list | tuple) else None
        if (
            not isinstance(name, str)
            or dims is None
            or len(dims) > MAX_RANK
            or not all(map(_is_length, dims))
        ):
            flaws.append(
                f"{where}[{name!r}] is {shape!r}, expected a list of at most {MAX_RANK} lengths >= 1"
            )
        else:
            shapes[name] = dims
    return shapes


def _is_length(dim: object) -> bool:
    return isinstance(dim, int) and not isinstance(dim, bool) and dim >= 1


def _check_order(shapes: Mapping[str, Shapes], source: str) -> list[str]:
    flaws = []
    names = {name: None for field in shapes.values() for name in field}
    for name in names:
        missing = [field for field, tensors in shapes.items() if name not in tensors]
        if missing:
            flaws.append(f"{source}: tensor {name!r} is missing in {' and '.join(missing)}")
            continue
        low, opt, high = (shapes[field][name] for field in _FIELDS.values())
        if not len(low) == len(opt) == len(high):
            flaws.append(f"{source}: tensor {name!r} differs in rank: {low}, {opt}, {high}")
        elif not all(a <= b <= c for a, b, c in zip(low, opt, high, strict=True)):
            flaws.append(f"{source}: tensor {name!r} breaks min {low} <= opt {opt} <= max {high}")
    return flaws

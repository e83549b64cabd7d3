"""The shapes a TensorRT engine is built for: smallest, most likely and largest, per tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipeline.engines.shape_file import read_ranges
from pipeline.errors import ConfigError

Shapes = Mapping[str, tuple[int, ...]]

_FIELDS = {"min": "min_input_shape", "opt": "opt_input_shape", "max": "max_input_shape"}
MAX_RANK = 16


class ShapeRange(Protocol):
    """One tensor of `tensorrt.shapes` in config.yml."""

    @property
    def min(self) -> Iterable[int]: ...
    @property
    def opt(self) -> Iterable[int]: ...
    @property
    def max(self) -> Iterable[int]: ...


@dataclass(frozen=True)
class DynamicShapes:
    """The range of shapes that an engine is built for: min <= opt <= max for every tensor, by its name.

    Tensors inside the model may be among them.
    """

    min: Shapes
    opt: Shapes
    max: Shapes
    file: Path | None = None  # where they were read from, for Paddle reads more there than shapes
    others: tuple[DynamicShapes, ...] = ()  # those of further length classes, for an engine each

    @classmethod
    def from_info(cls, info: object, source: str = "dynamic_shape_info") -> DynamicShapes:
        """The shapes that `set_dynamic_shape_info` has told: three dicts from tensor to shape.

        Raises ConfigError with all flaws, one a line, each with its field; `source` begins each.
        """
        if not isinstance(info, Mapping) or info.keys() != set(_FIELDS.values()):
            given = "" if isinstance(info, Mapping) else f" is {type(info).__name__}; it"
            raise ConfigError(f"{source}{given} must have exactly the keys {', '.join(_FIELDS.values())}")
        flaws: list[str] = []
        parsed = {field: _shapes(info[field], f"{source}.{field}", flaws) for field in _FIELDS.values()}
        if not flaws:
            flaws = _disorder(parsed, source)
        if flaws:
            raise ConfigError("\n".join(flaws))
        low, opt, high = (parsed[field] for field in _FIELDS.values())
        return cls(low, opt, high)

    @classmethod
    def from_ranges(cls, ranges: Mapping[str, ShapeRange]) -> DynamicShapes:
        """The shapes that `tensorrt.shapes` in config.yml tells by tensor. Raises ConfigError."""
        info = {
            field: {name: list(getattr(shape_range, bound)) for name, shape_range in ranges.items()}
            for bound, field in _FIELDS.items()
        }
        return cls.from_info(info, "tensorrt.shapes")

    @classmethod
    def from_file(cls, path: Path) -> DynamicShapes:
        """The shapes in a file of `paddlewheel convert shapes` or of Paddle itself. Raises ConfigError."""
        source = "tensorrt.shapes"
        try:
            ranges = read_ranges(path)
        except ConfigError as exc:
            raise ConfigError(f"{source}: {exc.message}") from exc
        info = {
            field: {name: getattr(found, bound) for name, found in ranges.items()}
            for bound, field in _FIELDS.items()
        }
        return dataclasses.replace(cls.from_info(info, f"{source}: {path}"), file=path)

    @classmethod
    def from_files(cls, paths: Sequence[Path]) -> DynamicShapes:
        """The shapes in a file for each length class, of which there is at least one. Raises ConfigError."""
        first, *others = map(cls.from_file, paths)
        return dataclasses.replace(first, others=tuple(others))

    @property
    def profiles(self) -> tuple[DynamicShapes, ...]:
        """The shapes of each length class by itself, these first."""
        return (dataclasses.replace(self, others=()), *self.others)

    @property
    def longest(self) -> Shapes:
        """The largest length on each axis of each tensor, over all length classes."""
        found: dict[str, tuple[int, ...]] = {}
        for of in self.profiles:
            for name, shape in of.max.items():
                found[name] = tuple(map(max, found.get(name, shape), shape))
        return found

    def max_rows(self, feed_names: Iterable[str]) -> int | None:
        """The smallest axis-0 maximum of the model's feeds; None when none of them is described."""
        names = list(feed_names)
        rows = [of.max[name][0] for of in self.profiles for name in names if of.max.get(name)]
        return min(rows, default=None)

    def hold(self, shapes: Shapes) -> bool:
        """Whether the shape of each tensor is within its range; one that is not described may have any."""
        described = shapes.keys() & self.max.keys()
        return all(
            low <= length <= high
            for name in described
            for low, length, high in zip(self.min[name], shapes[name], self.max[name], strict=True)
        )

    def renamed(self, names: Mapping[str, str]) -> DynamicShapes:
        """The same shapes under other names, as where a feed is described by its alias."""
        low, opt, high = (
            {names.get(name, name): shape for name, shape in s.items()}
            for s in (self.min, self.opt, self.max)
        )
        return DynamicShapes(low, opt, high, self.file, tuple(other.renamed(names) for other in self.others))


def _shapes(value: object, where: str, flaws: list[str]) -> dict[str, tuple[int, ...]]:
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


def _disorder(shapes: Mapping[str, Shapes], source: str) -> list[str]:
    flaws = []
    names = {name: None for field in shapes.values() for name in field}
    for name in names:
        missing = [field for field, of in shapes.items() if name not in of]
        if missing:
            flaws.append(f"{source}: tensor {name!r} is missing in {' and '.join(missing)}")
            continue
        low, opt, high = (shapes[field][name] for field in _FIELDS.values())
        if not len(low) == len(opt) == len(high):
            flaws.append(f"{source}: tensor {name!r} differs in rank: {low}, {opt}, {high}")
        elif not all(a <= b <= c for a, b, c in zip(low, opt, high, strict=True)):
            flaws.append(f"{source}: tensor {name!r} breaks min {low} <= opt {opt} <= max {high}")
    return flaws

"""The shapes a TensorRT engine is built for: smallest, most likely and largest, per tensor."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pipeline.errors import ConfigError
from pipeline.text_lines import read_lines

MAX_FILE_BYTES = 16 << 20  # some 200 KB for a model of 24 layers
_BLOCK = "shape_range_info"
_BOUNDS = ("min", "max", "opt")
_FIELD = re.compile(rf'(?:name: "([^"\\]+)"|((?:{"|".join(_BOUNDS)})_(?:shape|value)): (-?\d{{1,10}}))')
# A PIR program's inner tensor: address and time of the predictor, then its place in the program.
_PLACE = re.compile(r"(?:0x[0-9a-f]+_)?(inner_var_\d+)")


@dataclass(frozen=True)
class TensorRange:
    """One tensor's smallest, largest and most likely shape.

    The values are what small int32 tensors held: those that hold a shape which another operator reads.
    """

    min: tuple[int, ...] = ()
    max: tuple[int, ...] = ()
    opt: tuple[int, ...] = ()
    min_values: tuple[int, ...] = ()
    max_values: tuple[int, ...] = ()
    opt_values: tuple[int, ...] = ()

    @property
    def varies(self) -> bool:
        """Whether shape or held shape differed between runs; weights and constants never do."""
        return self.min != self.max or self.min_values != self.max_values


Ranges = dict[str, TensorRange]


@dataclass
class _Entry:
    name: str = ""
    numbers: dict[str, list[int]] = field(default_factory=dict)

    def range(self) -> TensorRange:
        numbers = {key: tuple(numbers) for key, numbers in self.numbers.items()}
        shapes = {bound: numbers.get(f"{bound}_shape", ()) for bound in _BOUNDS}
        values = {f"{bound}_values": numbers.get(f"{bound}_value", ()) for bound in _BOUNDS}
        return TensorRange(**shapes, **values)


def read_ranges(path: Path) -> Ranges:
    """The ranges by tensor. Raises ConfigError that quotes the line at fault."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} is over {MAX_FILE_BYTES} bytes and so no file of collected shapes")
        lines = read_lines(path)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no file {path}: make it with `paddlewheel convert shapes MODEL {path}`"
        ) from None
    except OSError as exc:
        raise ConfigError(f"{path} can't be read ({exc.strerror}): name a file of collected shapes") from exc
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text and so no file of collected shapes") from None
    return _parsed(lines, path)


def _parsed(lines: Iterable[str], path: Path) -> Ranges:
    ranges: Ranges = {}
    entry: _Entry | None = None
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        match = _FIELD.fullmatch(line)
        if entry is None and line == f"{_BLOCK} {{":
            entry = _Entry()
        elif entry is not None and entry.name and line == "}":
            ranges[entry.name] = entry.range()
            entry = None
        elif entry is not None and match is not None:
            if match[1]:
                entry.name = match[1]
            else:
                entry.numbers.setdefault(match[2], []).append(int(match[3]))
        else:
            raise ConfigError(f"{path}, line {number}: {line[:60]!r} is not of a file of collected shapes")
    if entry is not None or not ranges:
        raise ConfigError(f"{path} is {'cut off' if entry else 'empty'}: collect the shapes again")
    return ranges


def ranges_text(ranges: Ranges, comments: Iterable[str] = ()) -> str:
    """What `read_ranges` and Paddle read, below lines of comment."""
    lines = [f"# {comment}" for comment in comments]
    for name, of_tensor in ranges.items():
        lines += [f"{_BLOCK} {{", f'  name: "{name}"']
        for kind in ("shape", "value"):
            for bound in _BOUNDS:
                numbers = getattr(of_tensor, bound if kind == "shape" else f"{bound}_values")
                lines += [f"  {bound}_{kind}: {number}" for number in numbers]
        lines.append("}")
    return "\n".join(lines) + "\n"


def place_in_program(name: str) -> str:
    """A tensor's name without what changes from predictor to predictor; only a PIR program's has that."""
    match = _PLACE.fullmatch(name)
    return match[1] if match else name


def is_place(name: str) -> bool:
    """Whether `place_in_program` made this of a name."""
    return _PLACE.fullmatch(name) is not None


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

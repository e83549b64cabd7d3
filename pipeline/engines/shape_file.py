"""The file of shape ranges that Paddle collects and TensorRT's engine reads: its protobuf as text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

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

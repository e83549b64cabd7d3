"""Shape ranges as a person reads them: a table, and the hook of an Op that gives them to TensorRT."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rich.table import Table

from pipeline.engines.dynamic_shape import TensorRange, is_place

BOUNDS = ("min", "opt", "max")


def ranges_table(ranges: Mapping[str, TensorRange]) -> Table:
    """A row for each tensor; `-> 1 16` tells which shape a tensor of numbers held."""
    table = Table(title=f"Shapes of {len(ranges)} tensors", title_justify="left")
    table.add_column("tensor", overflow="fold")
    for bound in BOUNDS:
        table.add_column(bound, justify="right", overflow="fold")
    for name, found in ranges.items():
        table.add_row(name, *(_cell(found, bound) for bound in BOUNDS))
    return table


def _cell(found: TensorRange, bound: str) -> str:
    shape = " x ".join(map(str, getattr(found, bound))) or "scalar"
    values = getattr(found, f"{bound}_values")
    return f"{shape} -> {' '.join(map(str, values))}" if values else shape


def shape_info_code(ranges: Mapping[str, TensorRange], feeds: Collection[str]) -> str:
    """`set_dynamic_shape_info` of an Op.

    Left out are inner tensors that hold shapes, for it can't tell what they hold, empty ones, which an Op's
    shapes can't be, and places in a .json program, which are no names.
    """
    kept = {
        name: found
        for name, found in ranges.items()
        if (name in feeds or not found.min_values) and 0 not in found.min and not is_place(name)
    }
    lines = ["def set_dynamic_shape_info(self):", "    self.dynamic_shape_info = {"]
    for bound in BOUNDS:
        lines.append(f'        "{bound}_input_shape": {{')
        lines += [f'            "{name}": {list(getattr(r, bound))},' for name, r in kept.items()]
        lines.append("        },")
    return "\n".join([*lines, "    }"])

"""Shape ranges as a table, and as the hook of an Op for TensorRT."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rich.table import Table

from pipeline.engines.dynamic_shape import TensorRange, is_place

BOUNDS = ("min", "opt", "max")


def ranges_table(ranges: Mapping[str, TensorRange]) -> Table:
    """Return a table with a row for each tensor; `-> 1 16` is the content of a shape tensor."""
    table = Table(title=f"Shapes of {len(ranges)} tensors", title_justify="left")
    table.add_column("tensor", overflow="fold")
    for bound in BOUNDS:
        table.add_column(bound, justify="right", overflow="fold")
    for name, tensor_range in ranges.items():
        table.add_row(name, *(_cell(tensor_range, bound) for bound in BOUNDS))
    return table


def _cell(tensor_range: TensorRange, bound: str) -> str:
    shape = " x ".join(map(str, getattr(tensor_range, bound))) or "scalar"
    values = getattr(tensor_range, f"{bound}_values")
    return f"{shape} -> {' '.join(map(str, values))}" if values else shape


def shape_info_code(ranges: Mapping[str, TensorRange], feeds: Collection[str]) -> str:
    """Return the code of `set_dynamic_shape_info` of an Op.

    The hook has no place for the content of inner shape tensors, for empty tensors, and for positions in a
    .json program, which are no names. They are omitted.
    """
    listed = {
        name: tensor_range
        for name, tensor_range in ranges.items()
        if (name in feeds or not tensor_range.min_values) and 0 not in tensor_range.min and not is_place(name)
    }
    lines = ["def set_dynamic_shape_info(self):", "    self.dynamic_shape_info = {"]
    for bound in BOUNDS:
        lines.append(f'        "{bound}_input_shape": {{')
        lines += [f'            "{name}": {list(getattr(r, bound))},' for name, r in listed.items()]
        lines.append("        },")
    return "\n".join([*lines, "    }"])

"""The table of Triton's flags in docs/triton.md, from the declaration: python -m tests.support.flag_table."""

from __future__ import annotations

import argparse
import sys

from pipeline.launch.serve_options import add_flags


def rows() -> list[tuple[str, str, str]]:
    """Names, value and effect of each flag, in the order of --help."""
    parser = argparse.ArgumentParser(add_help=False)
    add_flags(parser)
    return [
        (
            ", ".join(f"`{name}`" for name in action.option_strings),
            f"`{action.metavar}`".replace("|", "\\|"),
            str(action.help),
        )
        for action in parser._actions
    ]


if __name__ == "__main__":
    sys.stdout.writelines(f"| {' | '.join(row)} |\n" for row in rows())

"""Entry points of the commands `paddlewheel`, also started as `python -m pipeline`, and `tritonserver`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pipeline.process.run_module import isolate_command


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand of `paddlewheel`, and return its exit code.

    Nothing is imported from the working folder. `argv` does not include the program's name; None stands for
    the process's own arguments.
    """
    isolate_command()
    from pipeline.launch.command_line import main as run

    return run(argv)


def tritonserver(argv: Sequence[str] | None = None) -> int:
    """Run `tritonserver`, and return its exit code.

    `argv` does not include the program's name; None stands for the process's own arguments.
    """
    isolate_command()
    from pipeline.launch.tritonserver import main as run

    return run(argv)


if __name__ == "__main__":
    sys.exit(main())

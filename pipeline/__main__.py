"""The command `paddlewheel`, also started as `python -m pipeline`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pipeline.process.run_module import isolate_command


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; nothing is imported from the working folder. Return the exit code."""
    isolate_command()
    from pipeline.launch.command_line import main as run

    return run(argv)


if __name__ == "__main__":
    sys.exit(main())

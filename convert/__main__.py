"""`paddlewheel convert`, the same as `paddlewheel convert`."""

from __future__ import annotations

import sys

from pipeline.process.run_module import isolate_command


def main() -> int:
    """Run a command; nothing is imported from the working folder. Return the exit code."""
    isolate_command()
    from convert.cli import run_as_command

    return run_as_command()


if __name__ == "__main__":
    sys.exit(main())

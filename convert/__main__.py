"""Runs `paddlewheel convert` as `python -m convert`."""

from __future__ import annotations

import sys

from pipeline.process.run_module import isolate_command


def main() -> int:
    """Run `paddlewheel convert` with the process's arguments, and return the exit code.

    No module is imported from the working folder.
    """
    isolate_command()
    from convert.cli import run_as_command

    return run_as_command()


if __name__ == "__main__":
    sys.exit(main())

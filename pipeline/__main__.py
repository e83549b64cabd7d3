"""`python -m pipeline`, the same as the command `paddlewheel`."""

from __future__ import annotations

import sys

from pipeline.launch.command_line import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())

"""`python -m convert`."""

from __future__ import annotations

import sys

from convert.cli import run_as_command

if __name__ == "__main__":
    sys.exit(run_as_command())

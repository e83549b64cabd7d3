"""`python -m convert`."""

from __future__ import annotations

import sys

from convert.cli import main

if __name__ == "__main__":
    sys.exit(main())

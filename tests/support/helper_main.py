"""`python -m tests.support.helper_main WAY`: a helper process that behaves badly, for its tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def main(way: str) -> None:
    if way == "floods":
        while True:
            os.write(1, b"x" * 65536)
    if way == "leaves a child":  # which holds the pipes open, and tells its number
        child = subprocess.Popen(["sleep", "600"])
        sys.stdout.write(f"{child.pid}\n")
    elif way == "hangs":
        child = subprocess.Popen(["sleep", "600"])
        Path(sys.argv[2]).write_text(str(child.pid), "utf-8")
        child.wait()
    else:
        sys.stdout.write(sys.stdin.read().upper())
        sys.stderr.write("done")
        sys.exit(3)


if __name__ == "__main__":
    main(sys.argv[1])

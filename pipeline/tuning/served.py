"""`python -m pipeline.tuning.served PARENT ...`: `paddlewheel ...` in a process that ends with its parent."""

from __future__ import annotations

import runpy
import sys

from pipeline.process.processes import die_with

if __name__ == "__main__":
    die_with(int(sys.argv.pop(1)))
    # By name: the command line is of a room above this one.
    runpy.run_module("pipeline", run_name="__main__", alter_sys=False)

"""The echo service, or with arguments `paddlewheel`, in a process that may open FILES files, and no more."""

import os
import resource
import runpy
import sys
from pathlib import Path

files = int(os.environ["FILES"])
resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
if sys.argv[1:]:
    runpy.run_module("pipeline", run_name="__main__")
runpy.run_path(str(Path(__file__).with_name("echo.py")), run_name="__main__")

"""The echo service in a process that may open FILES files, and no more."""

import os
import resource
import runpy
from pathlib import Path

files = int(os.environ["FILES"])
resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
runpy.run_path(str(Path(__file__).with_name("echo.py")), run_name="__main__")

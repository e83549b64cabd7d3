"""Entry point of a worker process, `python -m pipeline.worker`, which the front process runs."""

import sys

from pipeline.worker.main import main

main(sys.argv[1:])

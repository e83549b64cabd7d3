"""Entry of a worker process."""

import sys

from pipeline.worker.main import main

main(sys.argv[1:])

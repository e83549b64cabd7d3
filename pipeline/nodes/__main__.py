"""Entry point of a worker's proxy, `python -m pipeline.nodes`, which the front runs in place of a worker."""

import sys

from pipeline.nodes.proxy import main

main(sys.argv[1:])

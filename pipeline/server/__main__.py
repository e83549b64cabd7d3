"""Entry of the front process."""

import sys

from pipeline.server.lifecycle import main

main(sys.argv[1:])

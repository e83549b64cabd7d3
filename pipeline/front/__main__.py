"""Entry of the front process."""

import sys

from pipeline.front.lifecycle import main

main(sys.argv[1:])

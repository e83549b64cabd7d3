"""Entry of the output reader."""

import sys

from pipeline.output.reader import main

main(sys.argv[1:])

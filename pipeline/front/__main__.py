"""Run the front-end process of a service: `python -m pipeline.front APP_FD`."""

import sys

from pipeline.front.lifecycle import main

main(sys.argv[1:])

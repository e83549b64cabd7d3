"""Entry point of the placer beside a front, `python -m pipeline.nodes.on_ray SETTINGS`.

With `once` as second argument it is one placer; without, the process that restarts placers.
"""

import json
import sys

from pipeline.nodes.on_ray.supervisor import PlacerSettings, supervise

if __name__ == "__main__":
    settings = PlacerSettings(**json.loads(sys.argv[1]))
    if "once" in sys.argv[2:]:
        from pipeline.nodes.on_ray.placer import run_placer

        run_placer(settings)
    else:
        supervise(settings, sys.argv[1])

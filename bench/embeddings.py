"""A service of embeddings at OpenAI's endpoint, compared with the bare predictor at 64 connections.

The demo's model stands for an encoder of its size: the vector holds its scores. Each round measures both in
turn, so only the ratio counts.
"""

from __future__ import annotations

import argparse
import json
from statistics import median

from rich.console import Console

from bench.load import CannotMeasure, bodies_file, wrk
from bench.running import DEMO_MODEL
from bench.text_services import CONNECTIONS, MIN_OF_LOOP, sorted_loop
from bench.texts import headlines
from tests.support.text_services import TextProcess

PATH = "/v1/embeddings"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python -m bench.embeddings")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    options = parser.parse_args()
    requests = [json.dumps({"input": text, "encoding_format": "base64"}).encode() for text in headlines()]
    console, ratios = Console(), []
    with (
        TextProcess(DEMO_MODEL, "--engine", "paddle", "--task", "embeddings") as service,
        bodies_file(requests) as file,
    ):
        wrk(
            service.url, PATH, connections=4, seconds=1, bodies=file
        )  # the first answers measure the time of an answer
        for _ in range(options.rounds):
            load = wrk(service.url, PATH, connections=CONNECTIONS, seconds=options.seconds, bodies=file)
            if load.errors:
                raise CannotMeasure(f"{load.errors} requests failed:\n{service.log[-2000:]}")
            loop = sorted_loop(options.seconds)
            ratios.append(load.per_s / loop)
            console.print(f"embeddings {load.per_s:.0f}/s, the sorted loop {loop:.0f}/s")
    console.print(f"of the sorted loop {median(ratios):.2f} (target {MIN_OF_LOOP})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

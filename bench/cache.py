"""KServe v2 with and without the response cache, with 80 % of requests repeated: the demo model of 2 x 128.

The model runs as ONNX in a model repository. CPU is that of the front and its worker, per request.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from bench.load import CannotMeasure, Load, bodies_file, wrk
from bench.processes import children, cpu_s
from bench.running import ROOT
from pipeline.front.cache import keys
from pipeline.front.cache.local import CachedOutput, LocalCache
from pipeline.front.dag_run import Request
from pipeline.messages.messages import Outcome
from tests.support.repository_process import RepositoryProcess

PROGRAM = ROOT / "models/demo/serving_server/variants/onnx/model.onnx"
CONFIG = 'backend: "onnxruntime"\nmax_batch_size: 16\ndynamic_batching { }\nresponse_cache { enable: true }\n'
CACHE = "--cache-config=local,size=104857600"
TOKENS, WORDS = 32, 2000
BODIES, POPULAR, REPEATS = 40_000, 100, 0.8
CONNECTIONS = 8


class Figure(NamedTuple):
    """Results of one turn: the load, and the server's CPU per request."""

    load: Load
    cpu_us: float


def build_body(number: int) -> bytes:
    """Return the request of a text of random tokens."""
    words = random.Random(number).choices(range(1, WORDS), k=TOKENS)
    columns = {"input_ids": words, "token_type_ids": [0] * TOKENS, "attention_mask": [1] * TOKENS}
    inputs = [
        {"name": name, "datatype": "INT64", "shape": [1, TOKENS], "data": data}
        for name, data in columns.items()
    ]
    return msgspec.json.encode({"inputs": inputs})


def build_loads() -> dict[str, list[bytes]]:
    """Return the bodies of each load. Those of single requests are in no other load."""
    single = [build_body(number) for number in range(2 * BODIES)]
    popular = [build_body(-1 - number) for number in range(POPULAR)]
    chance = random.Random(0)
    mixed = [
        chance.choice(popular) if chance.random() < REPEATS else single[number] for number in range(BODIES)
    ]
    return {"80 % repeats": mixed, "misses": single[BODIES:], "hits": popular}


def measure(service: RepositoryProcess, bodies: Sequence[bytes], seconds: float) -> Figure:
    """Send one load. Raises CannotMeasure for errors, and for bodies that were sent twice by accident."""
    pids = [service.process.pid, *children(service.process.pid)]
    before = cpu_s(pids)
    with bodies_file(bodies) as file:
        load = wrk(
            f"http://127.0.0.1:{service.http_port}", "/v2/models/bert/infer",
            connections=CONNECTIONS, seconds=seconds, bodies=file,
        )  # fmt: skip
    if load.errors:
        raise CannotMeasure(f"{load.errors} of {load.requests} requests failed: {service.log[-500:]}")
    if POPULAR < len(bodies) < load.requests:
        raise CannotMeasure(
            f"{load.requests} requests were sent, and there are {len(bodies)}: fewer --seconds"
        )
    return Figure(load, (cpu_s(pids) - before) / load.requests * 1e6)


def measure_all(seconds: float) -> dict[str, Figure]:
    """Measure the loads with the cache, and the repeats without it."""
    loads, figures = build_loads(), dict[str, Figure]()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "bert" / "1").mkdir(parents=True)
        (Path(folder) / "bert" / "config.pbtxt").write_text(CONFIG)
        shutil.copy(PROGRAM, Path(folder) / "bert" / "1")
        with RepositoryProcess(Path(folder)) as service:
            figures["80 % repeats, no cache"] = measure(service, loads["80 % repeats"], seconds)
        with RepositoryProcess(Path(folder), arguments=[CACHE]) as service:
            for name, bodies in loads.items():
                figures[name] = measure(service, bodies, seconds)
    return figures


def count_wrong_answers(lookups: int) -> tuple[int, int]:
    """Look up requests whose keys all have one hash. Return the hits, and the wrong answers among them."""
    cache, chance = LocalCache(1 << 20), random.Random(0)
    hits = wrong = 0
    with patch.object(keys, "hash_key", lambda data: 0):
        for _ in range(lookups):
            array = np.array([chance.randrange(POPULAR)], np.int64)
            key = keys.build_request_key(b"model", Request("bert", "infer", {"X": array}), 1 << 20)
            assert key is not None
            output = cache.find(key)
            if output is None:
                cache.store(key, CachedOutput(Outcome.ANSWER, (array.tobytes(),)))
            else:
                hits += 1
                wrong += output.parts != (array.tobytes(),)
    return hits, wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cache", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load (%(default)s)")
    parser.add_argument(
        "--collisions",
        type=int,
        metavar="LOOKUPS",
        help="look up keys that all have one hash instead",
    )
    options, console = parser.parse_args(), Console()
    if options.collisions:
        hits, wrong = count_wrong_answers(options.collisions)
        console.print(f"{options.collisions:,} lookups: {hits:,} hits, {wrong} wrong answers")
        return int(wrong > 0)
    try:
        figures = measure_all(options.seconds)
    except CannotMeasure as exc:
        console.print(f"[red]{exc}[/red]")
        return 1
    table = Table("", "requests/s", "p50 ms", "CPU us a request")
    for name, figure in figures.items():
        load = figure.load
        table.add_row(name, f"{load.per_s:,.0f}", f"{load.p50_ms:.2f}", f"{figure.cpu_us:,.0f}")
    console.print(table)
    without, repeats = figures["80 % repeats, no cache"], figures["80 % repeats"]
    hit, miss = figures["hits"], figures["misses"]
    console.print(
        f"requests/s with the cache / without: {repeats.load.per_s / without.load.per_s:.2f} (goal 2)"
    )
    console.print(f"CPU without the cache / with it: {without.cpu_us / repeats.cpu_us:.2f}")
    console.print(f"CPU of a hit / of a miss: {hit.cpu_us / miss.cpu_us:.2f} (goal 0.4)")
    return 0


if __name__ == "__main__":
    sys.exit(main())

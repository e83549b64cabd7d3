"""A worker's memory and CPU under batches of random shapes, by settings of the C library's allocator.

Run as `python -m bench.worker_memory --one BATCHES SEED TOKENS` in the environment to measure; prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.load import CannotMeasure
from bench.processes import resident_mb
from bench.running import DEMO_MODEL, ROOT
from pipeline.process.environment import MODEL_PROCESS
from pipeline.worker.model import DEFAULT_BATCH_TOKENS

LONGEST, MAX_ROWS = 512, 60
SAMPLES = 6
KEPT = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
# In place of the workers' settings; empty: not set.
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "as workers run": {},
    "glibc's own": dict.fromkeys(KEPT, ""),
    "all over 128 KB given back": dict.fromkeys(KEPT, str(128 << 10)),
}


def measure_one(batches: int, seed: int, tokens: int) -> dict[str, Any]:
    """Return MB after each of SAMPLES parts of the batches, and CPU ms per batch in the last part."""
    from pipeline.config.config_file import load_config
    from pipeline.engines import create_predictor
    from pipeline.models.serving_model import load_serving_model
    from pipeline.worker.plan import bucket

    conf = load_config(ROOT / "config.yml").op["bert"].local_service_conf
    assert conf is not None
    predictor = create_predictor(load_serving_model(DEMO_MODEL), conf)
    chance = random.Random(seed)
    loaded, sampled = resident_mb(os.getpid()), []
    for _ in range(SAMPLES):
        began = resource.getrusage(resource.RUSAGE_SELF)
        for _ in range(batches // SAMPLES):
            length = bucket(chance.randint(1, LONGEST), None)
            rows = chance.randint(1, min(MAX_ROWS, max(1, tokens // length)))
            ids = np.full((rows, length), 7, "int64")
            mask = np.ones_like(ids)
            feeds = {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "attention_mask": mask}
            predictor.run(feeds)
        sampled.append(resident_mb(os.getpid()))
    used, count = resource.getrusage(resource.RUSAGE_SELF), batches // SAMPLES
    return {
        "loaded": loaded,
        "mb": sampled,
        "user_ms": (used.ru_utime - began.ru_utime) * 1e3 / count,
        "system_ms": (used.ru_stime - began.ru_stime) * 1e3 / count,
    }


def _measured(changed: Mapping[str, str], *what: int) -> dict[str, Any]:
    env = {**os.environ, **MODEL_PROCESS, **changed}
    command = [sys.executable, "-m", "bench.worker_memory", "--one", *map(str, what)]
    env = {name: value for name, value in env.items() if value}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotMeasure(done.stderr[-2000:])
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.worker_memory", description=__doc__)
    parser.add_argument("--batches", type=int, default=150, help="of random shapes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--tokens", type=int, default=DEFAULT_BATCH_TOKENS, help="of a batch, at most (default: %(default)s)"
    )
    parser.add_argument("--one", type=int, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        sys.stdout.write(json.dumps(measure_one(*options.one)) + "\n")
        return 0
    console = Console()
    parts = [str((part + 1) * (options.batches // SAMPLES)) for part in range(SAMPLES)]
    table = Table("MB after batches", "loaded", *parts, "CPU ms a batch: user", "system")
    try:
        for name, changed in SETTINGS.items():
            measured = _measured(changed, options.batches, options.seed, options.tokens)
            cpu = (f"{measured[key]:.0f}" for key in ("user_ms", "system_ms"))
            table.add_row(name, f"{measured['loaded']:.0f}", *(f"{mb:.0f}" for mb in measured["mb"]), *cpu)
    except CannotMeasure as exc:
        console.print(f"not measured: {exc}", style="red", markup=False)
        return 1
    console.print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m tests.simulation`: simulate seeds; exit code 1 for a broken invariant, or a bug not found."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulation.planted_bugs import BUGS, find_seed
from tests.simulation.run import simulate

CHUNK = 50  # seeds that a process takes at a time
EXAMPLES = """examples:
  python -m tests.simulation --seed 7                 replay a run, with its events
  python -m tests.simulation --seeds 10000            look for a seed that breaks an invariant
  python -m tests.simulation --seeds 500 --planted    find each planted bug within so many seeds
"""


def replay(seed: int, *, sequences: bool = False) -> bool:
    """Print the events of a run; returns whether it kept every invariant."""
    result = simulate(seed, sequences=sequences)
    sys.stdout.write("\n".join([*result.trace, *(f"violation: {v}" for v in result.violations), ""]))
    return not result.violations


def explore(seeds: Iterable[int], processes: int, *, sequences: bool = False) -> bool:
    """Run seeds, and print those that break an invariant; returns whether none does."""
    runs = requests = failed = 0
    virtual_s = 0.0
    with ProcessPoolExecutor(processes) as pool:
        for seed, violation, sent, took_s in pool.map(
            partial(_run, sequences=sequences), seeds, chunksize=CHUNK
        ):
            runs, requests, virtual_s = runs + 1, requests + sent, virtual_s + took_s
            if violation:
                failed += 1
                sys.stdout.write(f"seed {seed}: {violation}\n")
    sys.stdout.write(
        f"{runs} seeds, {requests} requests, {virtual_s / 3600:.1f} virtual hours: "
        f"{failed} seeds broke an invariant\n"
    )
    return not failed


def find_planted(seeds: int, processes: int) -> bool:
    """Look for each planted bug; returns whether all are found."""
    with ProcessPoolExecutor(processes) as pool:
        seeds_found = dict(zip(BUGS, pool.map(find_seed, BUGS, [seeds] * len(BUGS)), strict=True))
    for name, seed in seeds_found.items():
        sys.stdout.write(f"{name}: {'NOT FOUND' if seed is None else f'found by seed {seed}'}\n")
    missed = [name for name, seed in seeds_found.items() if seed is None]
    sys.stdout.write(
        f"{len(BUGS) - len(missed)} of {len(BUGS)} planted bugs are found within {seeds} seeds\n"
    )
    return not missed


def _run(seed: int, *, sequences: bool) -> tuple[int, str, int, float]:
    result = simulate(seed, sequences=sequences)
    return seed, next(iter(result.violations), ""), result.requests, result.virtual_s


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--seed", type=int, help="replay this seed and print its events")
    parser.add_argument("--seeds", type=int, default=500, help="number of seeds; default: %(default)s")
    parser.add_argument("--first", type=int, default=0, help="the first of them; default: %(default)s")
    parser.add_argument("--planted", action="store_true", help="look for the planted bugs instead")
    parser.add_argument("--sequences", action="store_true", help="have the requests form sequences")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.seed is not None:
        return not replay(options.seed, sequences=options.sequences)
    if options.planted:
        return not find_planted(options.seeds, options.processes)
    seeds = range(options.first, options.first + options.seeds)
    return not explore(seeds, options.processes, sequences=options.sequences)


if __name__ == "__main__":
    sys.exit(main())

"""Tries hostile input on every codec, the worker and both endpoints of a service; exit 1 on a crash or hang.

The same seed tries the same inputs. What was found once lies in tests/fuzz/corpus and comes first.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from bench.load import CannotMeasure
from bench.running import running_service
from tests.fuzz.codecs import CODECS, Codec
from tests.fuzz.sockets import Endpoint, Sent, grpc_endpoint, http_endpoint
from tests.fuzz.trial import GROWTH_MB, Result, described, run_trial
from tests.fuzz.watched import CONFIG, SCRIPT, Watched

BATCH = 500  # connections between two looks at the service
EXAMPLES = """examples:
  python -m tests.fuzz --codec 10000 --socket 500        a first look
  python -m tests.fuzz --codec 1000000 --socket 20000    the long run
  python -m tests.fuzz --codec 100000 --only npy --only v2-json
  python -m tests.fuzz --codec 20000 --only worker --only batch-plan
  python -m tests.fuzz --engine atheris --only v2-proto --codec 1000000
"""


def try_codecs(
    codecs: list[Codec], count: int, seed: int, processes: int, progress: Progress
) -> list[Result]:
    """`count` inputs in all at least, shared out evenly."""
    each = -(-count // len(codecs))

    def trial(codec: Codec) -> Result:
        task = progress.add_task(codec.name, total=each)
        return run_trial(codec, each, seed, lambda done: progress.update(task, completed=done))

    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(trial, codecs))


def try_endpoints(count: int, seed: int, progress: Progress) -> Iterator[Result]:
    """Half of the connections to each endpoint, of one service."""
    with running_service(SCRIPT, CONFIG) as service:
        watched = Watched(service)
        for endpoint in (http_endpoint(seed), grpc_endpoint(seed)):
            yield _try_endpoint(endpoint, watched, count // 2, progress)


def _try_endpoint(endpoint: Endpoint, watched: Watched, count: int, progress: Progress) -> Result:
    task = progress.add_task(endpoint.name, total=count)
    sent, result = Sent(), Result(endpoint.name)
    while sent.inputs < count:
        sent.add(watched.fire(endpoint, min(BATCH, count - sent.inputs)))
        progress.update(task, completed=sent.inputs)
        if not result.mb_before and sent.inputs * 5 >= count:  # pools and caches have filled
            result.mb_before = watched.resident_mb
        if watched.broken:
            break
    result.inputs, result.answered = sent.inputs, sent.answered
    result.refused = sent.refused + sent.dropped
    result.hangs = sent.hangs
    result.crashes = dict.fromkeys(watched.broken, b"")
    watched.broken.clear()
    result.mb_after = watched.resident_mb
    return result


def print_results(results: list[Result], console: Console) -> None:
    table = Table(
        Column(no_wrap=True), "inputs", "refused", "answered", "crashes", "hangs", "MB before", "after"
    )
    for result in results:
        told = (result.inputs, result.refused, result.answered, len(result.crashes), len(result.hangs))
        memory = (f"{result.mb_before:.0f}", f"{result.mb_after:.0f}")
        table.add_row(result.name, *(f"{n:,}" for n in told), *memory)
    console.print(table)
    for result in results:
        if result.crashes or result.hangs:
            console.print(described(result), style="red", markup=False)
        elif not result.kept_its_promise:
            console.print(f"{result.name}: grew by over {GROWTH_MB:g} MB", style="red")


def keep(results: list[Result], folder: Path) -> None:
    """Write each input that was answered wrongly to a file, to be looked at and moved to the corpus."""
    for result in results:
        for number, data in enumerate([*result.crashes.values(), *result.hangs]):
            path = folder / result.name / f"found-{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--codec", type=int, default=100_000, help="inputs of all codecs (default: %(default)s)"
    )
    parser.add_argument(
        "--socket", type=int, default=0, help="connections to both endpoints (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--processes", type=int, default=2, help="codecs at a time (default: %(default)s)")
    parser.add_argument(
        "--only", action="append", choices=[codec.name for codec in CODECS], help="this codec alone"
    )
    parser.add_argument(
        "--engine", choices=("mutation", "atheris"), default="mutation", help="default: %(default)s"
    )
    parser.add_argument(
        "--keep", type=Path, default=Path("build/fuzz"), help="what is found: default %(default)s"
    )
    options = parser.parse_args()
    codecs = [codec for codec in CODECS if not options.only or codec.name in options.only]
    if options.engine == "atheris":
        from tests.fuzz.guided import run_guided

        return run_guided(codecs, options.codec, options.seed, options.keep)
    console = Console()
    columns = (TextColumn("{task.description:18}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    results: list[Result] = []
    try:
        with Progress(*columns, console=console) as progress, contextlib.suppress(KeyboardInterrupt):
            if options.codec:
                results += try_codecs(codecs, options.codec, options.seed, options.processes, progress)
            if options.socket:
                results += try_endpoints(options.socket, options.seed, progress)
    except CannotMeasure as exc:
        console.print(f"not tried: {exc}", style="red", markup=False)
        return 1
    print_results(results, console)
    keep(results, options.keep)
    return 0 if results and all(result.kept_its_promise for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())

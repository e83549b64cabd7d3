"""`python -m tests.chaos`: a service under load and faults; exit code 1 when it broke a promise."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.load import CannotMeasure
from bench.running import default_config
from pipeline.config.config_file import Limits
from tests.chaos import keeping_service
from tests.chaos.answer_key import answer_key
from tests.chaos.faults import FAULTS, OF_DEFAULT_SERVICE, OF_SEQUENCES, inflict
from tests.chaos.hostile import ATTACKS, hostile_clients
from tests.chaos.load import Load
from tests.chaos.questions import Questions
from tests.chaos.report import Report, grown_processes
from tests.chaos.sequence_load import SequenceLoad, write_models
from tests.chaos.world import World
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import ROOT, ServiceProcess

SCRIPT = Path(__file__).resolve().parent / "service.py"
TEXTS = 1600  # pairs of them make 2.5 million questions
SETTLING_S = 40  # samples of a second each
EXAMPLES = """examples:
  python -m tests.chaos --seconds 60
  python -m tests.chaos --seconds 20 --faults kill,cancel --every 5 --hostile none
  python -m tests.chaos --settle 60 --seconds 600 --health-ms 100 --growth 30     hostile clients as well
  python -m tests.chaos --settle 300 --seconds 900 --faults none --longest 510 --growth 2     a soak
  python -m tests.chaos --seconds 60 --keeps-state --threads --batch-size 8
  python -m tests.chaos --seconds 10 --seed 7 --json
  python -m tests.chaos --seconds 600 --sequences --every 5 --growth 10
  python -m tests.chaos --seconds 120 --shards 2 --batch-size 8 --faults kill,hang,disconnect,poison
"""


async def run(options: argparse.Namespace) -> Report:
    """Raises CannotMeasure."""
    growth = None if options.growth is None else 1 + options.growth / 100
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        service, create_load = _prepare(options, Path(folder))
        with service:
            return await _run(options, service, create_load, began, growth)


def _prepare(options: argparse.Namespace, folder: Path) -> tuple[ServiceProcess, Callable[[World], Load]]:
    """Start a service. Return it, and a function that creates its load."""
    if options.sequences:
        model = write_models(folder)
        return (
            RepositoryProcess(folder, wait=False),
            lambda world: SequenceLoad(world, model, options.callers, options.seed),
        )
    key = answer_key(options.texts, options.longest, options.seed)
    service = ServiceProcess(
        options.script,
        _config(options),
        arguments=("--config", "{config}"),
        beside={keeping_service.KEY_FILE: json.dumps(key)},
        folder=ROOT,
        wait=False,
    )
    return service, lambda world: Load(world, Questions(key), options.callers)


async def _run(
    options: argparse.Namespace,
    service: ServiceProcess,
    create_load: Callable[[World], Load],
    began: float,
    growth: float | None,
) -> Report:
    world = World(service)
    async with world.served():
        load = create_load(world)
        alone_s = await load.alone_s()
        async with load.running():
            # With a limit for growth each attack has run before memory is read for the first time.
            early = options.hostile if options.growth is not None else []
            async with hostile_clients(world.http_port, world.rpc_port, early):
                await asyncio.sleep(options.settle)
            before = await _settled_memory(world) if early else await world.resident()
            chance = random.Random(options.seed)
            async with hostile_clients(world.http_port, world.rpc_port, options.hostile) as hostile:
                faults = await inflict(load, options.faults, options.seconds, options.every, chance)
            await world.until_ready()
            after = await world.resident()
            for _ in range(SETTLING_S):  # large bodies are decoded, and free memory is given back
                if not grown_processes(before, after, attacked=bool(options.hostile), growth=growth):
                    break
                after = await world.resident()
        await world.until_idle()
    took_s = time.monotonic() - began
    return Report(
        load.tally, faults, took_s, alone_s, before, after, world.broken, growth, hostile,
        options.health_ms and options.health_ms / 1e3, world.lost_connections,
    )  # fmt: skip


async def _settled_memory(world: World) -> dict[str, float]:
    """Return the resident MB of each process once no process shrinks by a twentieth in a second."""
    before = await world.resident()
    for _ in range(SETTLING_S):
        after = await world.resident()
        if all(mb >= 0.95 * before.get(name, 0.0) for name, mb in after.items()):
            return after
        before = after
    return before


def _config(options: argparse.Namespace) -> dict[str, Any]:
    """Return the shipped configuration; `--keeps-state` and `--batch-size` change what they name."""
    config = default_config(options.instances)
    # Tests usually have /metrics rendered for each request, which is dear under `pipelined-metrics`.
    config["limits"] = {"metrics_interval_s": Limits().metrics_interval_s}
    if options.keeps_state:
        config["dag"]["is_thread_op"] = options.threads
        del config["op"]["bert"]["local_service_conf"]
        config["op"]["bert"].update(keeping_service.OP_CONFIG)
    config["shards"] = options.shards
    if options.shards > 1 and options.keeps_state:
        for key in keeping_service.OP_CONFIG:  # a `timeout` is kept by workers alone
            del config["op"]["bert"][key]
    elif options.shards > 1:
        config["op"]["bert"]["placement"] = "thread"
    if options.batch_size is not None:
        config["op"]["bert"]["batch_size"] = options.batch_size
    return config


def _names(text: str, allowed: Collection[str]) -> list[str]:
    names = [] if text == "none" else text.split(",")
    unknown = [name for name in names if name not in allowed]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown)}: not among {', '.join(allowed)}, which may be joined by commas, or none"
        )
    return names


def _length(text: str) -> int:
    if not 8 <= int(text) <= 510:
        raise argparse.ArgumentTypeError(f"{text} is not from 8 to 510, the most that the demo model takes")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description="Loads the default service over all its endpoints with questions of known answers, "
        "and meanwhile kills, hangs and exchanges its workers, floods it, leaves it, sends it rubbish and "
        "poison, and restarts it. Exit code 1: an answer was wrong or missing, or memory grew.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--seconds", type=float, default=60, help="of faults; each has at least one turn (default: 60)")
    add(
        "--faults",
        type=partial(_names, allowed=FAULTS),
        help=f"of {', '.join(FAULTS)}; or none (default: all, stall with --keeps-state)",
    )
    add(
        "--hostile",
        type=partial(_names, allowed=ATTACKS),
        help=f"of {', '.join(ATTACKS)}, beside the load; or none (default: all, none with --keeps-state)",
    )
    add("--every", type=float, default=0.5, help="seconds between a fault's end and the next (default: 0.5)")
    add("--seed", type=int, default=1, help="of texts, victims and order (default: 1)")
    add(
        "--callers",
        type=int,
        default=6,
        help="at each endpoint, each with one request at a time (default: 6)",
    )
    add("--instances", type=int, default=2, help="of the Op (default: 2)")
    add("--texts", type=int, default=TEXTS, help=f"in the answer key (default: {TEXTS})")
    add("--longest", type=_length, default=60, help="characters of a text, 4 or more each (default: 60)")
    add(
        "--settle",
        type=float,
        default=1,
        help="seconds of load, and of attacks with --growth, before the first fault (default: 1)",
    )
    add(
        "--growth", type=float, help="percent that memory may grow from then on (default: as a short run may)"
    )
    add("--health-ms", type=float, help="limit for the 99th percentile of /health/live (default: none)")
    add("--script", type=Path, help="another service named bert that answers alike")
    add("--keeps-state", action="store_true", help="a service whose hooks hand all they know on by `self`")
    add("--threads", action="store_true", help="with --keeps-state: instances are threads of one process")
    add("--sequences", action="store_true", help="a model repository, with sequences and streams of answers")
    add("--shards", type=int, default=1, help="with --keeps-state: as with --threads (default: 1)")
    add("--batch-size", type=int, help="of the Op (default: config.yml's)")
    add("--json", action="store_true", help="print JSON")
    return parser


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.shards > 1:
        options.threads = True
        options.faults = OF_DEFAULT_SERVICE if options.faults is None else options.faults
    if options.sequences:
        options.faults = OF_SEQUENCES if options.faults is None else options.faults
        if other := sorted({*options.faults} - {*OF_SEQUENCES}):
            parser.error(f"--faults {','.join(other)}: --sequences has {', '.join(OF_SEQUENCES)}")
    elif "leave" in (options.faults or ()):
        parser.error("--faults leave: only the clients of --sequences do that")
    if options.faults is None:
        options.faults = [*OF_DEFAULT_SERVICE, "stall"] if options.keeps_state else OF_DEFAULT_SERVICE
    if options.hostile is None:
        options.hostile = [] if options.keeps_state or options.sequences else list(ATTACKS)
    if "stall" in options.faults and not options.keeps_state:
        parser.error("--faults stall: only the service of --keeps-state stalls")
    if options.script is None:
        options.script = Path(keeping_service.__file__) if options.keeps_state else SCRIPT
    return options


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of the blocks that stop the service
    try:
        report = asyncio.run(run(options))
    except CannotMeasure as exc:
        console.print(f"not measured: {exc}", style="red", markup=False)
        return 1
    if options.json:
        json.dump(report.as_json(), sys.stdout, ensure_ascii=False, indent=1)
    else:
        report.print(console)
    return 1 if report.promises_broken() else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""Loads the demo served by other serving software in turns with our service: same model, texts and cores.

Each peer has an environment of its own below build/peers, made at its first run; the same predictor,
tokenizer and threads, as many instances and batches as large as config.yml says. What can't be installed
or started is told and left out.
"""

from __future__ import annotations

import argparse
import os
import sys

from rich.console import Console
from rich.progress import Progress

from bench.load import CannotMeasure
from bench.peers.comparison import Comparison
from bench.peers.report import Rounds, print_table
from bench.peers.table import LEFT_OUT, PEERS
from bench.running import ROOT, default_config, running_service
from bench.texts import headlines

EXAMPLES = """examples:
  python -m bench.peers
  python -m bench.peers --peers mosec litserve --connections 64
  python -m bench.peers --peers mosec --wait-ms 5 --rounds 3     another wait than its best
"""


def measure(options: argparse.Namespace, console: Console) -> Rounds:
    """Every peer that can be measured. Raises CannotMeasure when our service can't."""
    config = default_config()
    rounds: Rounds = {}
    chosen = [peer for peer in PEERS if peer.key in (options.peers or [peer.key])]
    with (
        running_service(ROOT / "web_service.py", config) as service,
        Progress(console=console, transient=True) as progress,
    ):
        instances = config["op"]["bert"]["concurrency"]
        comparison = Comparison(service, headlines(), instances, options.python39)
        for peer in chosen:
            task = progress.add_task(peer.name, total=options.rounds * len(options.connections))
            wait_ms = peer.wait_ms if options.wait_ms is None else options.wait_ms
            try:
                with comparison.with_peer(peer, wait_ms) as pair:
                    for number in range(options.rounds):
                        for connections in options.connections:
                            turns = pair.turns(connections, options.seconds, ours_first=number % 2 == 0)
                            rounds.setdefault((peer.name, connections), []).append(turns)
                            progress.advance(task)
            except CannotMeasure as exc:
                console.print(f"{peer.name} is left out: {exc}", markup=False)
    return rounds


def main() -> int:
    options = _parser().parse_args()
    console = Console(width=None if sys.stdout.isatty() else 200)
    try:
        rounds = measure(options, console)
    except CannotMeasure as exc:
        console.print(f"not measured: {exc}", style="red", markup=False)
        return 1
    for name, reason in LEFT_OUT.items():
        console.print(f"{name} is left out: {reason}", markup=False)
    title = (
        f"closed loop, {options.rounds} rounds of {options.seconds:g} s each in turns, {os.cpu_count()} cores"
    )
    print_table(console, rounds, title)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    keys = [peer.key for peer in PEERS]
    parser.add_argument("--peers", nargs="+", choices=keys, metavar="PEER", help=f"of {', '.join(keys)}")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 32], help="default: 1 32")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=3, help="of a turn (default: %(default)s)")
    parser.add_argument(
        "--wait-ms", type=float, help="that peers wait for a batch to fill (default: its best)"
    )
    parser.add_argument(
        "--python39", default="python3.9", metavar="PATH", help="for Paddle Serving (default: %(default)s)"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

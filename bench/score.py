"""Rows/s of `paddlewheel score` compared with the sorted loop: tokenizer and predictor without a server.

Rows are the demo's headlines, repeated and shuffled. The loop has all of them sorted by length, and a process
for each core. It runs before and after the command. With --kill nothing is measured: the command is killed in
the middle and called again, and each row must be there once, in order.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from rich.console import Console

from bench.load import CannotMeasure
from bench.peers.loops import EVERYTHING, LoopProcesses, loop_processes
from bench.running import DEMO_MODEL, ROOT, default_config, running_service
from bench.texts import headlines, mixed_lengths
from pipeline.offline.in_process import ModelService

LEAST = 0.9
_POLL_S = 0.05
_RATE = re.compile(r"\(([\d,]+) rows/s\)")
EXAMPLES = """examples:
  python -m bench.score
  python -m bench.score --texts mixed --rows 20000
  python -m bench.score --service
  python -m bench.score --kill
"""


class Way(NamedTuple):
    """Engine and settings that run the model, chosen as by `paddlewheel score`."""

    engine: str
    precision: str

    @classmethod
    def chosen(cls) -> Way:
        """Timed at the first call."""
        (section,) = ModelService(DEMO_MODEL).as_app().config.op.values()
        conf = section.local_service_conf
        assert conf is not None
        return cls(str(conf.engine), str(conf.precision))


def write_rows(path: Path, texts: list[str], rows: int) -> None:
    many = [texts[at % len(texts)] for at in range(rows)]
    random.Random(1).shuffle(many)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"id": at, "text": text}) + "\n" for at, text in enumerate(many))


def looped(loops: LoopProcesses, seconds: float, cores: int) -> float:
    """Return the rows/s of all loop processes."""
    return sum(ran.texts / ran.seconds for ran in loops.run(EVERYTHING, seconds, cores))


def scored(source: Path, target: list[str]) -> tuple[float, float]:
    """Return the rows/s that the command prints, and the seconds from its start to its end."""
    out = source.with_name("out.jsonl")
    command = [sys.executable, "-m", "pipeline", "score", str(source), str(out), "--restart", *target]
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    took_s = time.monotonic() - began
    rate = _RATE.search(done.stdout)
    if done.returncode or rate is None:
        raise CannotMeasure(f"paddlewheel score left with {done.returncode}: {done.stderr[-800:]}")
    return float(rate[1].replace(",", "")), took_s


def killed(source: Path, rows: int) -> str:
    """Kill a command, and call it again. Return the first error in the rows of both; empty without errors."""
    out = source.with_name("out.jsonl")
    part = out.with_name("out.jsonl.part")
    command = [sys.executable, "-m", "pipeline", "score", str(source), str(out), "--model", str(DEMO_MODEL)]
    command += ["--window", str(rows // 8)]
    middle = 0.4 * source.stat().st_size  # a row with its answer is about as long
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as first:
        while first.poll() is None and not (part.exists() and part.stat().st_size > middle):
            time.sleep(_POLL_S)
        if first.poll() is not None:
            return "the command ended before it was killed: take more rows"
        first.send_signal(signal.SIGKILL)
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if second.returncode or "from an earlier run" not in second.stdout:
        return f"the second command did not go on: {second.stdout[-400:]} {second.stderr[-400:]}"
    with out.open(encoding="utf-8") as file:
        rows_written = [json.loads(line) for line in file]
    if [row["id"] for row in rows_written] != list(range(rows)):
        return f"{len(rows_written)} rows are there, or not in order"
    unanswered = sum(not row["answer"]["label"] for row in rows_written)
    return f"{unanswered} rows have no answer" if unanswered else ""


def survive(rows: int) -> int:
    """Kill the command in the middle of `rows` rows, and print the result."""
    console = Console(markup=False, highlight=False)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "rows.jsonl")
        write_rows(source, headlines(), rows)
        wrong = killed(source, rows)
    console.print(f"{rows:,} rows, SIGKILL in the middle: {wrong or 'each row is there once, in order'}")
    console.print(f"target: no row lost or doubled: {'missed' if wrong else 'met'}")
    return int(bool(wrong))


def main() -> int:
    options = _parser().parse_args()
    if options.kill:
        return survive(options.rows)
    console = Console(markup=False, highlight=False)
    texts = {"headlines": headlines, "mixed": mixed_lengths}[options.texts]()
    cores = os.cpu_count() or 1
    try:
        way = Way.chosen()
        with (
            tempfile.TemporaryDirectory() as folder,
            loop_processes(DEMO_MODEL, way.engine, way.precision, texts, cores) as loops,
        ):
            source = Path(folder, "rows.jsonl")
            write_rows(source, texts, options.rows)
            before = looped(loops, options.seconds, cores)
            if options.service:
                with running_service(ROOT / "web_service.py", default_config(cores)) as service:
                    rate, took_s = scored(source, ["--service", f"{service.url}/bert"])
            else:
                rate, took_s = scored(source, ["--model", str(DEMO_MODEL)])
            loop = mean((before, looped(loops, options.seconds, cores)))
    except CannotMeasure as exc:
        console.print(f"not measured: {exc}", style="red")
        return 1
    console.print(f"{way.engine} {way.precision}, {cores} cores, {options.rows:,} rows ({options.texts})")
    console.print(f"sorted loop       {loop:,.0f} rows/s")
    console.print(
        f"paddlewheel score {rate:,.0f} rows/s, {rate / loop:.2f} of it; {took_s:.1f} s with its start"
    )
    console.print(f"target: at least {LEAST} of the loop: {'met' if rate >= LEAST * loop else 'missed'}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.score",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument("--texts", choices=("headlines", "mixed"), default="headlines", help="(headlines)")
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="of the loop, twice (default: %(default)s)"
    )
    parser.add_argument("--service", action="store_true", help="through the default service")
    parser.add_argument("--kill", action="store_true", help="in the middle, then call it again")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

"""`paddlewheel score` and `paddlewheel evaluate`: from their options to what they print."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from pipeline.offline.evaluate import Evaluation, evaluate, show, write_report
from pipeline.offline.score import WRITE, Job, score
from pipeline.offline.target import Target


def run_score(options: argparse.Namespace) -> None:
    """Raises ConfigError, BadRow, Unanswered."""
    told = Console(stderr=True, markup=False, highlight=False)
    job = Job(
        options.source,
        options.out,
        dict(options.parameter),
        dict(options.key),
        options.errors,
        options.field,
        options.restart,
        options.window,
        options.rows_per_request,
    )
    with _target(options) as target:
        assert target is not None
        scored = score(job, target, told)
    Console(markup=False, highlight=False, soft_wrap=True).print(scored.told(options.out))


def run_evaluate(options: argparse.Namespace) -> None:
    """Raises ConfigError, BadRow, Unanswered."""
    with tempfile.TemporaryDirectory(prefix="evaluate-") as folder, _target(options) as target:
        if target is None:
            made = evaluate(options.source, options.gold, answers=options.field, prefix=options.prefix)
        else:
            kept = options.scored or Path(folder, "scored.jsonl")
            made = _asked(options, target, kept)
    console = Console(markup=False, highlight=False, width=None)
    if options.report:
        for path in write_report(made, options.source.name, options.report):
            console.print(f"written: {path}", soft_wrap=True)
    show(made, console)


def _asked(options: argparse.Namespace, target: Target, out: Path) -> Evaluation:
    """Score the file first, and note how long each request takes."""
    took_ms: list[float] = []
    job = Job(
        options.source,
        out,
        dict(options.parameter),
        dict(options.key),
        WRITE,
        options.field,
        window_rows=options.window,
        request_rows=options.rows_per_request,
        asked=lambda took_s, rows: took_ms.append(took_s * 1e3),
    )
    score(job, target, Console(stderr=True, markup=False, highlight=False))
    return evaluate(out, options.gold, answers=options.field, prefix=options.prefix, latencies_ms=took_ms)


@contextlib.contextmanager
def _target(options: argparse.Namespace) -> Iterator[Target | None]:
    """What is asked; None where nothing is. Raises ConfigError."""
    if options.service:
        from pipeline.offline.server import Server

        with Server(options.service, connections=options.connections, timeout_s=options.timeout) as server:
            yield server
    elif options.model:
        from pipeline.offline.in_process import InProcess

        yield InProcess(options.model)
    else:
        yield None

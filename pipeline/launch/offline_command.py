"""The commands `paddlewheel score` and `paddlewheel evaluate`: run a data file through a model or service."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from pipeline.launch.command_options import EvaluateOptions, ScoreOptions, ScoringOptions
from pipeline.offline.evaluate import Evaluation, evaluate, show, write_report
from pipeline.offline.score import WRITE, Job, score_file
from pipeline.offline.target import Target


def run_score(options: ScoreOptions) -> None:
    """Send the rows of a data file to a service, write them with the answers, and print a summary.

    Raises ConfigError, BadRow for a refused row, and Unanswered if the service does not answer.
    """
    progress_console = Console(stderr=True, markup=False, highlight=False)
    job = replace(
        _build_job(options, options.source, options.out), errors=options.errors, restart=options.restart
    )
    with _target(options) as target:
        assert target is not None
        scored = score_file(job, target, progress_console)
    Console(markup=False, highlight=False, soft_wrap=True).print(scored.format_summary(options.out))


def _build_job(options: ScoringOptions, source: Path, out: Path) -> Job:
    return Job(
        source,
        out,
        dict(options.parameter),
        dict(options.key),
        answers=options.field,
        window_rows=options.window,
        request_rows=options.rows_per_request,
    )


def run_evaluate(options: EvaluateOptions) -> None:
    """Compare answers with the labels of a data file, and print accuracy and the other metrics.

    The file already has the answers, or the service or model that the options name answers the rows first.
    Raises ConfigError, BadRow for a refused row, and Unanswered if the service does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="evaluate-") as folder, _target(options) as target:
        if target is None:
            evaluation = evaluate(options.source, options.gold, answers=options.field, prefix=options.prefix)
        else:
            scored = options.scored or Path(folder, "scored.jsonl")
            evaluation = _score_and_evaluate(options, target, scored)
    console = Console(markup=False, highlight=False, width=None)
    if options.report:
        for path in write_report(evaluation, options.source.name, options.report):
            console.print(f"written: {path}", soft_wrap=True)
    show(evaluation, console)


def _score_and_evaluate(options: EvaluateOptions, target: Target, out: Path) -> Evaluation:
    """Send the rows of the file to `target`, a service or model, and evaluate the answers.

    out: file for the answers. The evaluation includes the latencies of the requests.
    """
    took_ms: list[float] = []
    job = replace(
        _build_job(options, options.source, out),
        errors=WRITE,
        on_request=lambda took_s, rows: took_ms.append(took_s * 1e3),
    )
    score_file(job, target, Console(stderr=True, markup=False, highlight=False))
    return evaluate(out, options.gold, answers=options.field, prefix=options.prefix, latencies_ms=took_ms)


@contextlib.contextmanager
def _target(options: ScoringOptions) -> Iterator[Target | None]:
    """Yield the service or in-process model that the options name; None if they name none.

    Raises ConfigError.
    """
    if options.service:
        from pipeline.offline.server import Server

        with Server(options.service, connections=options.connections, timeout_s=options.timeout) as server:
            yield server
    elif options.model:
        from pipeline.offline.in_process import InProcess

        yield InProcess(options.model)
    else:
        yield None

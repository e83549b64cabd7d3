"""The options of `paddlewheel score` and `paddlewheel evaluate`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.launch.commands import add_command
from pipeline.offline.target import REQUEST_ROWS  # imports no rich: the doctor runs without it

if TYPE_CHECKING:
    from pipeline.launch.commands import Commands

MAX_ROWS, MAX_WINDOW, MAX_CONNECTIONS = 1024, 1 << 20, 1024
_ROWS = "rows: .jsonl with an object a line, .csv, .tsv or .parquet"

Command = Callable[[argparse.Namespace], int]


def add_score(commands: Commands, command: Command) -> None:
    parser = add_command(
        commands,
        "score",
        command,
        "have all rows of a file answered, and write them with their answers",
        "paddlewheel score news.jsonl scored.jsonl --service localhost:18082",
    )
    parser.add_argument("source", type=Path, metavar="IN", help=_ROWS)
    parser.add_argument("out", type=Path, metavar="OUT", help="rows with their answers, in the same order")
    _add_target(parser, required=True)
    _add_scoring(parser, rows=REQUEST_ROWS)
    parser.add_argument(
        "--errors",
        choices=("stop", "write"),
        default="stop",
        help="a row that can't be answered: end there, or write it with its error (%(default)s)",
    )
    parser.add_argument(
        "--restart", action="store_true", help="begin anew where OUT, or the rest of a killed run, is there"
    )


def add_evaluate(commands: Commands, command: Command) -> None:
    parser = add_command(
        commands,
        "evaluate",
        command,
        "compare answers with the labels of a file: accuracy, F1, confusion matrix, latency",
        "paddlewheel evaluate test.jsonl --gold label --service localhost:18082 --report build/news",
    )
    parser.add_argument("source", type=Path, metavar="FILE", help=f"{_ROWS}; scored, where nothing is asked")
    parser.add_argument("--gold", required=True, metavar="COLUMN", help="the column with what is right")
    parser.add_argument(
        "--prefix", default="", metavar="TEXT", help="what labels of the file begin with, and answers don't"
    )
    parser.add_argument(
        "--report", type=Path, metavar="PATH", help="write PATH.json, and the confusion matrix as PATH.svg"
    )
    parser.add_argument("--scored", type=Path, metavar="OUT", help="where to keep the answers (nowhere)")
    _add_target(parser, required=False)
    _add_scoring(parser, rows=1)


def _add_target(parser: argparse.ArgumentParser, *, required: bool) -> None:
    target = parser.add_mutually_exclusive_group(required=required)
    target.add_argument(
        "--service",
        metavar="ADDRESS",
        help="of a running service, e.g. localhost:18082 or localhost:18082/bert",
    )
    target.add_argument(
        "--model", type=Path, metavar="FOLDER", help="of a model, or a service's script, run in this process"
    )


def _add_scoring(parser: argparse.ArgumentParser, *, rows: int) -> None:
    parser.add_argument(
        "--key",
        type=_pair,
        action="append",
        default=[],
        metavar="INPUT=COLUMN",
        help="the column of an input that is called otherwise",
    )
    parser.add_argument(
        "--parameter",
        type=_parameter,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of every request, e.g. top_k=3",
    )
    parser.add_argument("--field", default="answer", metavar="NAME", help="of the answers (%(default)s)")
    _add_pace(parser, rows)


def _add_pace(parser: argparse.ArgumentParser, rows: int) -> None:
    """Add the options for the size and the number of requests."""
    parser.add_argument(
        "--connections",
        type=_parse_up_to(MAX_CONNECTIONS),
        default=8,
        metavar="N",
        help="requests to a service at a time (%(default)s)",
    )
    parser.add_argument(
        "--rows-per-request",
        type=_parse_up_to(MAX_ROWS),
        default=rows,
        metavar="N",
        help="most rows of a request (%(default)s)",
    )
    parser.add_argument(
        "--window",
        type=_parse_up_to(MAX_WINDOW),
        default=4096,
        metavar="N",
        help="rows that are sorted by length together (%(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="for a request to a service, further tries included (%(default)g)",
    )


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, as in text=sentence")
    return name, value


def _parameter(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE. The value is JSON, else a text."""
    name, value = _pair(text)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _parse_up_to(maximum: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= maximum:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {maximum}")
        return int(text)

    return number

"""`tritonserver`: the program by which KServe, Seldon Core, PaddleX and Model Analyzer start a server."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from client.options import parse_options
from pipeline.errors import ServingError
from pipeline.launch.commands import OneLineParser
from pipeline.launch.serve_options import ServeOptions, add_flags, parse_flags
from pipeline.process.start_signals import end_plainly, left_at_once, survive_hangups

EXIT_ERROR = 1  # Triton's exit code after a wrong flag, and after a start that failed


class _Parser(OneLineParser):
    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_ERROR, f"{self.prog}: {message}; --help lists the flags.\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tritonserver`, and return the exit code: 1 after an error.

    This command uses Triton's defaults where `paddlewheel serve` differs: a model that can't be served aborts
    the start, and log lines have Triton's format. argv: command-line arguments; by default those of the
    process.
    """
    parser = _Parser(
        prog="tritonserver",
        description="Serve a Triton model repository on plain Python. The same as `paddlewheel serve`, with "
        "Triton's defaults.",
        epilog="Example: tritonserver --model-repository=models --model-control-mode=explicit",
    )
    add_flags(parser)
    values = parse_flags(parser, sys.argv[1:] if argv is None else argv)
    options = parse_options(ServeOptions, values)
    try:
        start_server(
            replace(
                options,
                exit_on_error=options.exit_on_error is not False,
                log_format=options.log_format or "default",
            )
        )
    except ServingError as exc:
        sys.stderr.write(f"{exc.message}\n")
        return EXIT_ERROR
    except SystemExit as exc:  # a repository that can't be served, which is already reported
        return EXIT_ERROR if exc.code else 0
    return 0


def start_server(options: ServeOptions) -> None:
    """Replace this process with the server.

    Raises ServingError for wrong flags, and if the server can't start.
    """
    end_plainly()
    survive_hangups()
    with left_at_once():
        from pipeline.launch.serve_command import serve_repository
    serve_repository(options)

"""`python3 -m paddle_serving_server.serve stop|kill|check`: Paddle Serving's commands for services."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pipeline.launch.command_line import main as paddlewheel
from pipeline.launch.commands import EXIT_MISTAKE, OneLineParser

COMMANDS = {"stop": "stop", "kill": "kill", "check": "doctor"}
NO_CPP_SERVER = (
    "paddle_serving_server.serve starts no server here: that was the C++ server (brpc), which Paddlewheel "
    "lacks; `paddlewheel new myservice --model MODEL_DIR` writes a service for the same model.\n"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns the exit code of `paddlewheel stop`, `kill` or `doctor`; 2 for other commands.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not {*COMMANDS, "-h", "--help"}.intersection(arguments):
        sys.stderr.write(NO_CPP_SERVER)
        return EXIT_MISTAKE
    parser = OneLineParser(
        prog="python3 -m paddle_serving_server.serve",
        description="Stop the services that were started in this folder (or in SERVING_HOME), or check the "
        "machine: the same as `paddlewheel stop`, `kill` and `doctor`.",
        epilog="Example: python3 -m paddle_serving_server.serve stop --port 18082",
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--port", help="stop or kill only the service that listens there")
    options = parser.parse_args(arguments)
    port = ["--port", options.port] if options.port and options.command != "check" else []
    return paddlewheel([COMMANDS[options.command], *port])


if __name__ == "__main__":
    sys.exit(main())

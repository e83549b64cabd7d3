"""Command line of a service script (web_service.py): the options --config and --print-config."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pipeline.api.service import Service, WebService
from pipeline.config.config_file import dump_config
from pipeline.errors import ConfigError


def prepare_from_arguments(service: WebService, default_config: str | Path) -> None:
    """Parse the command line of a service script and set the service's configuration.

    --config PATH replaces `default_config`; --print-config prints the resolved configuration and exits. Exits
    with code 2 if the command line is invalid, or the configuration to print.
    """
    parser = argparse.ArgumentParser(
        description=f"Serves {service.name} over HTTP and gRPC.",
        epilog="example: python3 web_service.py --config production.yml",
    )
    parser.add_argument("--config", default=default_config, metavar="PATH", help="default: %(default)s")
    parser.add_argument(
        "--print-config", action="store_true", help="print every key with its value and leave"
    )
    options = parser.parse_args()
    service.prepare_pipeline_config(options.config)
    if options.print_config:
        # The workers of a measurement by `auto` run the script with the same arguments, and have to serve.
        sys.argv[1:] = ["--config", str(options.config)]
        print_config(service)


def print_config(service: Service) -> None:
    """Print the effective configuration as YAML, with defaults and the script's own values, and exit.

    For each `op` section with an `auto` key, a comment shows the chosen settings and the measured times.
    Exits with code 2 and the mistakes on stderr if the configuration is invalid.
    """
    try:
        app = service.as_app()
    except ConfigError as exc:
        sys.stderr.write(f"{exc.message}\n")
        sys.exit(2)
    for op, choice in app.choices.items():
        sys.stdout.write(f"# op.{op}, chosen by its times on this machine: {choice.line()}\n")
    sys.stdout.write(dump_config(app.config))
    sys.exit(0)

"""The options of a service script: --config and --print-config."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pipeline.api.service import Service, WebService
from pipeline.config.config_file import dump_config
from pipeline.errors import ConfigError
from pipeline.tuning import auto


def prepare_from_arguments(service: WebService, default_config: str | Path) -> None:
    """Read the script's command line and prepare the service's configuration.

    --config PATH names another file than the default; --print-config prints the resolved configuration and
    leaves. Leaves with exit code 2 for a mistake in either.
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
        print_config(service)


def print_config(service: Service) -> None:
    """Print the configuration with the Ops' own arguments and all defaults, and leave the process.

    Comments state the choice behind each `auto`, and the measurement.
    """
    try:
        _, _, config = service.resolve()
        config, choices = auto.resolved(config)
    except ConfigError as exc:
        sys.stderr.write(f"{exc.message}\n")
        sys.exit(2)
    for op, choice in choices.items():
        sys.stdout.write(f"# op.{op}, chosen by its times on this machine: {choice.line()}\n")
    sys.stdout.write(dump_config(config))
    sys.exit(0)

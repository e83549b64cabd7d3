"""`paddlewheel serve`: serves a Triton model repository in this process's place."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.launch.serve_options import notes
from pipeline.triton.service import Options, RepositoryService


def serve(options: argparse.Namespace) -> None:
    """Does not return: the server takes over this process. Leaves with exit code 2 and what is wrong."""
    for line in notes(options):
        sys.stderr.write(f"{line}\n")
    service = RepositoryService(
        options.id,
        Options(
            tuple(folder.absolute() for folder in options.model_repository),
            options.id,
            options.http_port if options.allow_http else None,
            options.grpc_port if options.allow_grpc else None,
            options.metrics_port if options.allow_metrics else None,
            options.strict_model_config or options.disable_auto_complete_config,
            options.model_control_mode,
            options.exit_on_error,
            tuple(options.load_model) if options.model_control_mode == "explicit" else None,
            _config(options),
            options.strict_readiness,
            options.repository_poll_secs if options.model_control_mode == "poll" else 0,
        ),
    )
    service.serve()


def _config(options: argparse.Namespace) -> dict[str, Any]:
    """What of the flags is said in config.yml elsewhere."""
    config: dict[str, Any] = {
        "dag": {"drain_timeout": options.exit_timeout_secs},
        "logging": {"level": _level(options)},
    }
    if options.grpc_use_ssl or options.grpc_use_ssl_mutual:
        tls = {"cert": options.grpc_server_cert, "key": options.grpc_server_key}
        missing = [name for name, file in tls.items() if not file]
        if missing:
            raise ConfigError(f"--grpc-use-ssl needs --grpc-server-{' and --grpc-server-'.join(missing)}")
        if options.grpc_use_ssl_mutual:
            tls["client_ca"] = options.grpc_root_cert
        config["tls"] = {name: str(Path(file).absolute()) for name, file in tls.items() if file}
    return config


def _level(options: argparse.Namespace) -> str:
    """The least severe level that is logged."""
    if options.log_verbose > 0:
        return "DEBUG"
    levels = {"INFO": options.log_info, "WARNING": options.log_warning}
    return next((level for level, wanted in levels.items() if wanted), "ERROR")

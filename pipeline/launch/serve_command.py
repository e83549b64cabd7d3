"""`paddlewheel serve`: serves a Triton model repository in this process's place."""

from __future__ import annotations

import argparse

from pipeline.triton.service import Options, RepositoryService


def serve(options: argparse.Namespace) -> None:
    """Does not return: the server takes over this process. Leaves with exit code 2 and what is wrong."""
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
        ),
    )
    service.serve()

"""Serves a Triton model repository, with Triton's flags: `tritonserver` and `paddlewheel serve`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pipeline.api.buckets import Bucket
from pipeline.api.cache_settings import parse_cache_settings
from pipeline.api.header_patterns import HeaderPatterns
from pipeline.api.metrics_settings import parse_metrics_settings
from pipeline.api.restrictions import Restrictions, parse_restrictions
from pipeline.api.run_resources import parse_resource_limits
from pipeline.errors import ConfigError
from pipeline.launch.serve_options import (
    GRPC_ARGUMENTS,
    RESTRICTIONS,
    ServeOptions,
    check_flags,
    get_option,
)
from pipeline.launch.trace_flags import build_trace_section
from pipeline.triton.config_file import parse_defaults
from pipeline.triton.service import Options, RepositoryService

_LOG_FORMATS = {None: "text", "default": "triton", "iso8601": "triton_iso8601"}


def serve_repository(options: ServeOptions) -> None:
    """Replace this process with a server of the Triton model repository that the flags name.

    Raises ConfigError for wrong flags.
    """
    defaults, warnings = parse_defaults(options.backend_config)
    lines = check_flags(options)
    if options.log_file is not None:
        _log_to(options.log_file)
    for line in lines:
        sys.stderr.write(f"{line}\n")
    restrictions = Restrictions(
        *(
            parse_restrictions(flag, get_option(options, flag), prefix)
            for flag, prefix in RESTRICTIONS.items()
        )
    )
    polls = options.model_control_mode == "poll"
    explicit = options.model_control_mode == "explicit"
    service = RepositoryService(
        options.id,
        Options(
            folders=tuple(
                Path(place.folder) if isinstance(place, Bucket) else place.absolute()
                for place in options.model_repository
            ),
            buckets=tuple(place for place in options.model_repository if isinstance(place, Bucket)),
            http_port=options.http_port if options.allow_http else None,
            grpc_port=options.grpc_port if options.allow_grpc else None,
            metrics_port=options.metrics_port if options.allow_metrics else None,
            metrics_address=options.metrics_address,
            sagemaker_port=options.sagemaker_port if options.allow_sagemaker else None,
            strict=options.strict_model_config or options.disable_auto_complete_config,
            control=options.model_control_mode,
            exit_on_error=options.exit_on_error,
            load=options.load_model if explicit else None,
            config=_config(options),
            strict_readiness=options.strict_readiness,
            poll_s=options.repository_poll_secs if polls else 0,
            strict_devices=options.strict_devices,
            install_requirements=options.install_requirements,
            starts=max(0, options.model_load_thread_count),
            namespacing=options.model_namespacing,
            load_retries=max(0, options.model_load_retry_count),
            resource_limits=parse_resource_limits(options.rate_limit, options.rate_limit_resource),
            defaults=defaults,
            backend_directory=options.backend_directory and options.backend_directory.absolute(),
            notes=tuple(warnings),
            restrictions=restrictions,
            header_patterns=HeaderPatterns(
                options.http_header_forward_pattern, options.grpc_header_forward_pattern
            ),
            grpc_arguments=tuple(
                (argument, int(get_option(options, flag)))
                for flag, argument in GRPC_ARGUMENTS.items()
                if get_option(options, flag) is not None
            ),
            cache=parse_cache_settings(options.cache_config, options.response_cache_byte_size),
            metrics=parse_metrics_settings(
                options.metrics_config, cpu=options.allow_cpu_metrics, gpu=options.allow_gpu_metrics
            ),
        ),
    )
    service.serve()


def _config(options: ServeOptions) -> dict[str, Any]:
    """Return the configuration of the server, in the form of a config.yml, from Triton's flags.

    Raises ConfigError for TLS without a certificate or key.
    """
    config: dict[str, Any] = {
        "dag": {"drain_timeout": options.exit_timeout_secs},
        "logging": {"level": _level(options), "format": _LOG_FORMATS[options.log_format]},
        "limits": {"body_bytes": options.http_max_input_size},
        "http_address": options.http_address,
        "rpc_address": options.grpc_address,
        "trace": build_trace_section(options),
    }
    if options.allow_client_shm is not None:
        config["v2"] = {"shared_memory": "always" if options.allow_client_shm else "off"}
    if options.api_keys is not None:
        config["security"] = {"api_keys": str(options.api_keys.absolute())}
    if options.grpc_use_ssl or options.grpc_use_ssl_mutual:
        tls: dict[str, Any] = {"cert": options.grpc_server_cert, "key": options.grpc_server_key}
        missing = [name for name, file in tls.items() if not file]
        if missing:
            raise ConfigError(f"--grpc-use-ssl needs --grpc-server-{' and --grpc-server-'.join(missing)}")
        if options.grpc_use_ssl_mutual:
            tls["client_ca"] = options.grpc_root_cert
        files = {name: str(Path(file).absolute()) for name, file in tls.items() if file}
        config["tls"] = {**files, "http": False}
    return config


def _log_to(path: Path) -> None:
    """Redirect standard output and error of this process, and of the server that replaces it, to a file.

    The output is appended. Raises ConfigError if the file can't be opened.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as exc:
        raise ConfigError(f"--log-file={path} can't be written: {exc.strerror}") from exc
    for standard in (1, 2):
        os.dup2(fd, standard)
    os.close(fd)


def _level(options: ServeOptions) -> str:
    """Return the server's log level ("DEBUG", "INFO", "WARNING" or "ERROR") for Triton's logging flags."""
    if options.log_verbose > 0:
        return "DEBUG"
    levels = {"INFO": options.log_info, "WARNING": options.log_warning}
    return next((level for level, enabled in levels.items() if enabled), "ERROR")

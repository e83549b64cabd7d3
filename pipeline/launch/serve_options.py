"""The command-line flags of `paddlewheel serve`, which are Triton's, including flags without effect here."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.api.restrictions import APIS
from pipeline.launch.commands import add_command, add_options, option, switch

if TYPE_CHECKING:
    from pipeline.launch.commands import Commands

# Triton's other flags: what each does there, and why it has no effect here.
_BATCHES = "batches of requests travel in shared memory that grows as needed"
_NO_GPU = "GPU memory is the engine's own business"
_NO_TRACE = "requests are not traced; /metrics and the access log tell their times"
_ONE_LOOP = "one thread of the front serves all connections"
_NO_CACHE = "the response cache is not built yet"
WITHOUT_EFFECT = {
    "allow-cpu-metrics": "tells whether /metrics has the CPU's figures: it always has",
    "allow-gpu-metrics": "tells whether /metrics has the GPU's figures: see paddlewheel_gpu_memory_bytes",
    "allow-sagemaker": "opens the port of SageMaker: there is none here",
    "allow-vertex-ai": "opens the port of Vertex AI: there is none here",
    "backend-directory": "names the folder of backends: engines are Python packages here",
    "buffer-manager-thread-count": f"sets threads that copy batches: {_BATCHES}",
    "cache-config": f"configures the response cache: {_NO_CACHE}",
    "cache-directory": f"names the folder of caches: {_NO_CACHE}",
    "cuda-memory-pool-byte-size": f"sizes a pool of GPU memory: {_NO_GPU}",
    "cuda-virtual-address-size": f"sizes growing GPU memory: {_NO_GPU}",
    "enable-peer-access": f"lets GPUs read each other's memory: {_NO_GPU}",
    "grpc-arg-infer-response-compression": "compresses gRPC answers: they are sent as they are",
    "grpc-infer-allocation-pool-size": "keeps messages for reuse: bytes are parsed in place",
    "grpc-infer-response-compression-level": "compresses gRPC answers: they are sent as they are",
    "grpc-infer-thread-count": f"sets threads: {_ONE_LOOP}",
    "grpc-header-forward-pattern": "gives models the metadata of requests: parameters reach them",
    "host-policy": "binds instances to NUMA nodes: the kernel places workers",
    "http-header-forward-pattern": "gives models the headers of requests: parameters reach them",
    "http-thread-count": f"sets threads: {_ONE_LOOP}",
    "metrics-config": "configures summaries of /metrics: it has histograms",
    "metrics-interval-ms": "tells how often gauges are read: they are read when asked for",
    "min-supported-compute-capability": f"rules old GPUs out: {_NO_GPU}",
    "model-config-name": "chooses among several configurations of a model: config.pbtxt is read",
    "model-namespacing": "lets repositories have models of one name: each name is one model here",
    "model-load-retry-count": "tries a failed load again: a worker's start is tried again by itself",
    "pinned-memory-pool-byte-size": f"sizes pinned memory: {_BATCHES}",
    "rate-limit": "limits executions by resources: the rate limiter is not built yet",
    "rate-limit-resource": "limits executions by resources: the rate limiter is not built yet",
    "repoagent-directory": "names the folder of agents: the checksum agent is built in",
    "response-cache-byte-size": f"sizes the response cache: {_NO_CACHE}",
    "reuse-grpc-port": "shares the port with other servers: a port is one server's here",
    "reuse-http-port": "shares the port with other servers: a port is one server's here",
    "sagemaker-port": "opens the port of SageMaker: there is none here",
    "sagemaker-safe-port-range": "bounds the ports beside SageMaker's: there is none here",
    "sagemaker-thread-count": f"sets threads: {_ONE_LOOP}",
    "trace-config": f"configures traces: {_NO_TRACE}",
    "trace-count": f"configures traces: {_NO_TRACE}",
    "trace-file": f"configures traces: {_NO_TRACE}",
    "trace-level": f"configures traces: {_NO_TRACE}",
    "trace-log-frequency": f"configures traces: {_NO_TRACE}",
    "trace-rate": f"configures traces: {_NO_TRACE}",
    "vertex-ai-default-model": "names the model of the port of Vertex AI: there is none here",
    "vertex-ai-port": "opens the port of Vertex AI: there is none here",
    "vertex-ai-thread-count": f"sets threads: {_ONE_LOOP}",
}
RESTRICTIONS = {"http-restricted-api": "", "grpc-restricted-protocol": "triton-grpc-protocol-"}
# These flags limit or protect something. Ignoring them would be unsafe, so they are refused.
REFUSED = {"model-load-gpu-limit": "bounds the GPU memory that a load may take, which this server can't"}
GRPC_ARGUMENTS = {  # gRPC's channel argument by flag
    "grpc-keepalive-time": "grpc.keepalive_time_ms",
    "grpc-keepalive-timeout": "grpc.keepalive_timeout_ms",
    "grpc-keepalive-permit-without-calls": "grpc.keepalive_permit_without_calls",
    "grpc-http2-max-pings-without-data": "grpc.http2.max_pings_without_data",
    "grpc-http2-min-recv-ping-interval-without-data": "grpc.http2.min_ping_interval_without_data_ms",
    "grpc-http2-max-ping-strikes": "grpc.http2.max_ping_strikes",
    "grpc-max-connection-age": "grpc.max_connection_age_ms",
    "grpc-max-connection-age-grace": "grpc.max_connection_age_grace_ms",
}
_BUCKETS = {"s3": "aws s3 sync", "gs": "gcloud storage rsync", "as": "az storage blob download-batch"}
_ALONE = ("enable-peer-access", "reuse-grpc-port", "reuse-http-port")  # flags that may have no value


def repository_folder(text: str) -> Path:
    """Parse the path of a Triton model repository. Raise argparse's error for a bucket such as s3://."""
    scheme, separator, _ = text.partition("://")
    if separator and scheme in _BUCKETS:
        raise argparse.ArgumentTypeError(
            f"{text} is in a bucket, which is not read here: copy it to a folder ({_BUCKETS[scheme]}), and "
            "name that"
        )
    return Path(text)


def yes_or_no(text: str) -> bool:
    """Parse a boolean flag as Triton does: true, false, 1, 0, on or off. Raise argparse's error else."""
    lowered = text.lower()
    if lowered not in ("true", "false", "1", "0", "on", "off"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return lowered in ("true", "1", "on")


def positive(text: str) -> int:
    """Parse a whole number of at least 1. Raise argparse's error else."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _flag(help_text: str, default: bool | None = False) -> Any:
    """Declare a boolean command-line flag as a dataclass field; `--flag` alone means true."""
    shown = help_text if default is None else f"{help_text} ({str(default).lower()})"
    return option(default=default, type=yes_or_no, nargs="?", const=True, metavar="BOOL", help=shown)


def _port(port: int) -> Any:
    return option(default=port, metavar="PORT", help="(%(default)s)")


def _address(name: str) -> Any:
    return option(metavar="ADDRESS", help=f"address of the port of {name} (all)")


def _restriction(flag: str) -> Any:
    return option(
        default=(),
        metavar="API,API:KEY=VALUE",
        help=f"answer these APIs only to requests with the header {RESTRICTIONS[flag]}KEY: VALUE "
        f"({', '.join(APIS)})",
    )


def _grpc_argument(flag: str) -> Any:
    return option(metavar="NUMBER", help=f"gRPC's {GRPC_ARGUMENTS[flag]}")


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The flags of Triton that have an effect in `paddlewheel serve`, with Triton's names."""

    model_repository: tuple[Path, ...] = option(
        "--model-repository",
        "--model-store",
        default=(),
        type=repository_folder,
        action="append",
        required=True,
        metavar="DIR",
        help="folder with a folder for each model; may be given several times",
    )
    id: str = option(default="triton", help="the server's name (%(default)s)")
    http_port: int = _port(8000)
    http_address: str | None = _address("http")
    allow_http: bool = _flag("open the port of http", default=True)
    grpc_port: int = _port(8001)
    grpc_address: str | None = _address("grpc")
    allow_grpc: bool = _flag("open the port of grpc", default=True)
    metrics_port: int = _port(8002)
    metrics_address: str | None = _address("metrics")
    allow_metrics: bool = _flag("open the port of metrics", default=True)
    http_max_input_size: int = option(
        default=64 << 20,
        type=positive,
        metavar="BYTES",
        help="most bytes of an HTTP body, and of a gRPC message, too (%(default)s)",
    )
    api_keys: Path | None = option(
        metavar="FILE", help="NAME:KEY a line, of which every client must show one"
    )
    http_restricted_api: tuple[str, ...] = _restriction("http-restricted-api")
    grpc_restricted_protocol: tuple[str, ...] = _restriction("grpc-restricted-protocol")
    allow_client_shm: bool | None = _flag(
        "clients may use shared memory; without this flag only clients on this machine may", default=None
    )
    grpc_keepalive_time: int | None = _grpc_argument("grpc-keepalive-time")
    grpc_keepalive_timeout: int | None = _grpc_argument("grpc-keepalive-timeout")
    grpc_keepalive_permit_without_calls: int | None = _grpc_argument("grpc-keepalive-permit-without-calls")
    grpc_http2_max_pings_without_data: int | None = _grpc_argument("grpc-http2-max-pings-without-data")
    grpc_http2_min_recv_ping_interval_without_data: int | None = _grpc_argument(
        "grpc-http2-min-recv-ping-interval-without-data"
    )
    grpc_http2_max_ping_strikes: int | None = _grpc_argument("grpc-http2-max-ping-strikes")
    grpc_max_connection_age: int | None = _grpc_argument("grpc-max-connection-age")
    grpc_max_connection_age_grace: int | None = _grpc_argument("grpc-max-connection-age-grace")
    grpc_use_ssl: bool = _flag("TLS on the gRPC port")
    grpc_server_cert: str | None = option(metavar="FILE", help="PEM file of the server's certificate")
    grpc_server_key: str | None = option(metavar="FILE", help="PEM file of its private key")
    grpc_root_cert: str | None = option(metavar="FILE", help="PEM file of authorities, of clients'")
    grpc_use_ssl_mutual: bool = _flag("clients must show a certificate of --grpc-root-cert")
    model_control_mode: str = option(
        default="none",
        choices=("none", "poll", "explicit"),
        help="explicit: clients load and unload models; poll: changes on the disk do (%(default)s)",
    )
    repository_poll_secs: int = option(
        default=15, metavar="SECONDS", help="between looks at the disk, with poll (%(default)s)"
    )
    load_model: tuple[str, ...] = option(
        default=(), metavar="NAME", help="with explicit: load it at the start; * for all"
    )
    exit_on_error: bool = _flag("end where a model can't be served, in place of serving the others")
    strict_readiness: bool = _flag("the server is ready when all models are", default=True)
    strict_devices: bool = _flag("refuse models that ask for a GPU which they can't have")
    install_requirements: bool = _flag("have pip install the requirements.txt of Python models")
    model_load_thread_count: int = option(
        default=0, metavar="COUNT", help="workers that start at a time (as many as there are cores)"
    )
    backend_config: tuple[str, ...] = option(
        default=(),
        metavar="BACKEND,NAME=VALUE",
        help="default-max-batch-size and intra_op_thread_count of models that leave them out",
    )
    strict_model_config: bool = _flag("a config.pbtxt may leave nothing out")
    disable_auto_complete_config: bool = switch(help="the same as --strict-model-config=true")
    exit_timeout_secs: int = option(
        default=30, metavar="SECONDS", help="that admitted requests have after SIGTERM (%(default)s)"
    )
    log_file: Path | None = option(metavar="FILE", help="in place of standard output")
    log_verbose: int = option(default=0, metavar="LEVEL", help="over 0: a line for each request")
    log_info: bool = _flag("log lines of this level: info", default=True)
    log_warning: bool = _flag("log lines of this level: warning", default=True)
    log_error: bool = _flag("log lines of this level: error", default=True)
    log_format: str = option(
        default="default", choices=("default", "ISO8601"), help="without effect: ISO 8601"
    )


def add_serve(commands: Commands, command: Callable[[argparse.Namespace], None]) -> None:
    """Add the subcommand `serve` to the command line of `paddlewheel`.

    command: the function that runs it with the parsed namespace.
    """
    parser = add_command(
        commands,
        "serve",
        command,
        "serve a Triton model repository, with Triton's flags",
        "paddlewheel serve --model-repository models",
    )
    parser.allow_abbrev = False  # Triton has flags that begin with other flags
    add_flags(parser)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags of Triton to a parser, also flags that are refused or have no effect."""
    add_options(parser, ServeOptions)
    for flag in REFUSED:
        parser.add_argument(f"--{flag}", action="append", help=argparse.SUPPRESS)
    for flag in WITHOUT_EFFECT:
        nargs: dict[str, Any] = {"nargs": "?", "const": "true"} if flag in _ALONE else {}
        parser.add_argument(f"--{flag}", action="append", help=argparse.SUPPRESS, **nargs)


def notes(values: argparse.Namespace) -> Iterator[str]:
    """Yield a line for the user about each given flag of Triton that has no effect here."""
    for flag, why in WITHOUT_EFFECT.items():
        if get_option(values, flag) is not None:
            yield f"--{flag} has no effect: in Triton it {why}"


def get_option(values: object, flag: str) -> Any:
    """Return the value of a flag, written with hyphens, from a namespace or `ServeOptions`."""
    return getattr(values, flag.replace("-", "_"))


def hint(unknown: str) -> str:
    """Return "; did you mean --FLAG?" with the flag most similar to an unknown flag, else an empty text."""
    near = difflib.get_close_matches(unknown.partition("=")[0], _known(), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _known() -> list[str]:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return [option for action in parser._actions for option in action.option_strings]

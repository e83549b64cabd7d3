"""The flags of `tritonserver` and `paddlewheel serve`, which are Triton's, including flags without effect.

Each flag is declared once, with its effect: the parser, --help and the table of docs/triton.md follow from
the declaration.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from client.options import add_options, list_options, option
from pipeline.api.buckets import Bucket
from pipeline.api.restrictions import APIS
from pipeline.api.run_resources import EXECUTION_COUNT
from pipeline.errors import ConfigError
from pipeline.launch import flag_values as values
from pipeline.launch.flag_values import BOOL, COUNT, FILE, PORT, TEXT, Kind

NO_EFFECT = "no effect: "
REFUSED = "refused: "
_NO_GPU = "the engine manages GPU memory"
_OLDER = "the older name of --trace-config "
_NO_VERTEX = "there is no port of Vertex AI"
_ONE_LOOP = "one thread of the front serves all connections"
_SHARED_MEMORY = "batches travel in shared memory that grows as needed"
RESTRICTIONS = {"http-restricted-api": "", "grpc-restricted-protocol": "triton-grpc-protocol-"}
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


@dataclass(frozen=True)
class _Section:
    """A section of --help of `paddlewheel serve`. The methods declare its flags as dataclass fields."""

    title: str

    def flag(
        self,
        effect: str,
        kind: Kind,
        *names: str,
        default: Any = None,
        default_text: str = "",
        **settings: Any,
    ) -> Any:
        """Declare a flag.

        names: the flag's spellings, by default the field's name with hyphens. default: () declares a flag
        that may be repeated. default_text: the default as shown in --help, if the value itself is not clear.
        settings: further keyword arguments of argparse's `add_argument`.
        """
        shown = default_text or _format_default(default)
        repeated = {"action": "append"} if default == () else {}
        return option(
            *names,
            default=default,
            section=self.title,
            type=kind.parse,
            metavar=kind.shown,
            help=f"{effect} ({shown})" if shown else effect,
            **{**kind.settings, **repeated, **settings},
        )

    def ignored(self, reason: str, kind: Kind, *, repeated: bool = False) -> Any:
        """Declare a Triton flag that is accepted but has no effect. reason: why, for --help."""
        return self.flag(f"{NO_EFFECT}{reason}", kind, default=() if repeated else None)

    def refused(self, reason: str, kind: Kind) -> Any:
        """Declare a refused flag of Triton, which limits or protects something: to ignore it is unsafe."""
        return self.flag(f"{REFUSED}{reason}", kind, default=())

    def restriction(self, flag: str) -> Any:
        """Declare a flag that restricts APIs to requests with a certain header."""
        return self.flag(
            f"answer these APIs only to requests with the header {RESTRICTIONS[flag]}KEY: VALUE "
            f"({', '.join(APIS)})",
            values.RESTRICTION,
            default=(),
        )

    def channel_argument(self, flag: str, kind: Kind = COUNT) -> Any:
        """Declare a flag that sets a gRPC channel argument."""
        return self.flag(f"gRPC's {GRPC_ARGUMENTS[flag]}", kind)


def _format_default(default: Any) -> str:
    if default is None or default == ():
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)


_SERVER = _Section("Server")
_LOGGING = _Section("Logging")
_REPOSITORY = _Section("Model repository")
_HTTP = _Section("HTTP")
_GRPC = _Section("gRPC")
_SECURITY = _Section("Clients")
_SAGEMAKER = _Section("SageMaker")
_VERTEX = _Section("Vertex AI")
_METRICS = _Section("Metrics")
_TRACING = _Section("Tracing")
_BACKENDS = _Section("Backends and agents")
_CACHE = _Section("Response cache")
_LIMITER = _Section("Rate limiter")
_MEMORY = _Section("Memory and devices")


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Triton's command-line flags, under Triton's names, and the flags that this project adds.

    A flag without effect is None or () unless the command line has the flag.
    """

    id: str = _SERVER.flag("the server's name in its metadata", TEXT, "--id", "-id", default="triton")
    exit_timeout_secs: int = _SERVER.flag(
        "time that admitted requests have after SIGTERM", values.SECONDS, default=30
    )

    log_verbose: int = _LOGGING.flag("from 1 on: a line for each request", values.VERBOSITY, default=0)
    log_info: bool = _LOGGING.flag("log lines of this level: info", BOOL, default=True)
    log_warning: bool = _LOGGING.flag("log lines of this level: warning", BOOL, default=True)
    log_error: bool = _LOGGING.flag("log lines of this level: error", BOOL, default=True)
    log_format: str | None = _LOGGING.flag(
        "Triton's lines: LMMDD hh:mm:ss.ssssss, or YYYY-MM-DDThh:mm:ssZ L, both in UTC",
        values.choice("default", "iso8601"),
        default_text="tritonserver: default; paddlewheel serve: its own lines",
    )
    log_file: Path | None = _LOGGING.flag("in place of standard output", FILE)

    model_repository: tuple[Path | Bucket, ...] = _REPOSITORY.flag(
        "folder with a folder for each model, or s3://BUCKET/FOLDER; may be given several times",
        values.REPOSITORY,
        "--model-repository",
        "--model-store",
        default=(),
        required=True,
    )
    exit_on_error: bool | None = _REPOSITORY.flag(
        "end where a model can't be served; false: serve the others, also none",
        BOOL,
        default_text="tritonserver: true; paddlewheel serve: serve the others, unless there is none",
    )
    disable_auto_complete_config: bool = _REPOSITORY.flag(
        "a config.pbtxt may leave nothing out", BOOL, default=False
    )
    strict_model_config: bool = _REPOSITORY.flag("the same, by its older name", BOOL, default=False)
    strict_readiness: bool = _REPOSITORY.flag("the server is ready when all models are", BOOL, default=True)
    model_control_mode: str = _REPOSITORY.flag(
        "explicit: clients load and unload models; poll: changes on the disk do",
        values.choice("none", "poll", "explicit"),
        default="none",
    )
    repository_poll_secs: int = _REPOSITORY.flag(
        "time between looks at the disk, with poll", values.SECONDS, default=15
    )
    load_model: tuple[str, ...] = _REPOSITORY.flag(
        "with explicit: load it at the start; * alone: all", values.NAME, default=()
    )
    model_config_name: str | None = _REPOSITORY.ignored("each model has one configuration", values.NAME)
    model_load_thread_count: int = _REPOSITORY.flag(
        "workers that start at the same time", COUNT, default=0, default_text="the number of cores"
    )
    model_load_retry_count: int = _REPOSITORY.flag(
        "further tries to load a model whose load has failed", COUNT, default=0
    )
    model_namespacing: bool = _REPOSITORY.flag(
        "several repositories may hold models of one name; ensembles run those of their own repository",
        BOOL,
        default=False,
    )
    install_requirements: bool = _REPOSITORY.flag(
        "pip installs the requirements.txt of Python models", BOOL, default=False
    )

    allow_http: bool = _HTTP.flag("open the port of HTTP", BOOL, default=True)
    http_address: str | None = _HTTP.flag("address of the port of HTTP", values.ADDRESS, default_text="all")
    http_port: int = _HTTP.flag("port of HTTP", PORT, default=8000)
    reuse_http_port: bool | None = _HTTP.ignored("a port belongs to one server", BOOL)
    http_header_forward_pattern: str = _HTTP.flag(
        "headers with a name that this pattern matches become parameters of inference requests",
        values.PATTERN,
        default="",
    )
    http_thread_count: int | None = _HTTP.ignored(_ONE_LOOP, COUNT)
    http_max_input_size: int = _HTTP.flag(
        "most bytes of an HTTP body, and of a gRPC message", values.POSITIVE_BYTES, default=64 << 20
    )
    http_restricted_api: tuple[str, ...] = _HTTP.restriction("http-restricted-api")

    allow_grpc: bool = _GRPC.flag("open the port of gRPC", BOOL, default=True)
    grpc_address: str | None = _GRPC.flag("address of the port of gRPC", values.ADDRESS, default_text="all")
    grpc_port: int = _GRPC.flag("port of gRPC", PORT, default=8001)
    reuse_grpc_port: bool | None = _GRPC.ignored("a port belongs to one server", BOOL)
    grpc_header_forward_pattern: str = _GRPC.flag(
        "metadata with a key that this pattern matches become parameters of inference requests",
        values.PATTERN,
        default="",
    )
    grpc_infer_thread_count: int | None = _GRPC.ignored(_ONE_LOOP, COUNT)
    grpc_infer_allocation_pool_size: int | None = _GRPC.ignored("messages are parsed in place", COUNT)
    grpc_max_response_pool_size: int | None = _GRPC.ignored(
        "streams wait for slow clients, whatever the number of responses", COUNT
    )
    grpc_use_ssl: bool = _GRPC.flag("TLS on the port of gRPC", BOOL, default=False)
    grpc_use_ssl_mutual: bool = _GRPC.flag(
        "TLS; clients show a certificate of --grpc-root-cert", BOOL, default=False
    )
    grpc_server_cert: Path | None = _GRPC.flag("PEM file of the server's certificate", FILE)
    grpc_server_key: Path | None = _GRPC.flag("PEM file of the certificate's private key", FILE)
    grpc_root_cert: Path | None = _GRPC.flag("PEM file of the authorities of clients", FILE)
    grpc_infer_response_compression_level: str | None = _GRPC.ignored(
        "responses are sent uncompressed", values.choice("none", "low", "medium", "high")
    )
    grpc_keepalive_time: int | None = _GRPC.channel_argument("grpc-keepalive-time")
    grpc_keepalive_timeout: int | None = _GRPC.channel_argument("grpc-keepalive-timeout")
    grpc_keepalive_permit_without_calls: bool | None = _GRPC.channel_argument(
        "grpc-keepalive-permit-without-calls", BOOL
    )
    grpc_http2_max_pings_without_data: int | None = _GRPC.channel_argument(
        "grpc-http2-max-pings-without-data"
    )
    grpc_http2_min_recv_ping_interval_without_data: int | None = _GRPC.channel_argument(
        "grpc-http2-min-recv-ping-interval-without-data"
    )
    grpc_http2_max_ping_strikes: int | None = _GRPC.channel_argument("grpc-http2-max-ping-strikes")
    grpc_max_connection_age: int | None = _GRPC.channel_argument("grpc-max-connection-age")
    grpc_max_connection_age_grace: int | None = _GRPC.channel_argument("grpc-max-connection-age-grace")
    grpc_restricted_protocol: tuple[str, ...] = _GRPC.restriction("grpc-restricted-protocol")

    api_keys: Path | None = _SECURITY.flag(
        "file with a line NAME:KEY for each API key; each client shows one", FILE
    )
    allow_client_shm: bool | None = _SECURITY.flag(
        "clients may use shared memory", BOOL, default_text="clients on this machine only"
    )

    allow_sagemaker: bool = _SAGEMAKER.flag("open the port of SageMaker", BOOL, default=False)
    sagemaker_port: int = _SAGEMAKER.flag(
        "port of SageMaker, with /ping, /invocations and /models", PORT, default=8080
    )
    sagemaker_safe_port_range: str | None = _SAGEMAKER.flag(
        "with --allow-sagemaker: the other ports must be in this range", values.PORT_RANGE
    )
    sagemaker_thread_count: int | None = _SAGEMAKER.ignored(_ONE_LOOP, COUNT)
    allow_vertex_ai: bool | None = _VERTEX.ignored(_NO_VERTEX, BOOL)
    vertex_ai_port: int | None = _VERTEX.ignored(_NO_VERTEX, PORT)
    vertex_ai_thread_count: int | None = _VERTEX.ignored(_NO_VERTEX, COUNT)
    vertex_ai_default_model: str | None = _VERTEX.ignored(_NO_VERTEX, values.NAME)

    allow_metrics: bool = _METRICS.flag("open the port of metrics", BOOL, default=True)
    metrics_address: str | None = _METRICS.flag(
        "address of the port of metrics", values.ADDRESS, default_text="all"
    )
    metrics_port: int = _METRICS.flag("port of metrics", PORT, default=8002)
    allow_gpu_metrics: bool = _METRICS.flag(
        "nv_gpu_* in /metrics, with the package nvidia-ml-py", BOOL, default=True
    )
    allow_cpu_metrics: bool = _METRICS.flag(
        "nv_cpu_* in /metrics: CPU and memory of the machine", BOOL, default=True
    )
    metrics_interval_ms: float | None = _METRICS.ignored(
        "gauges are read when they are requested", values.MILLISECONDS
    )
    metrics_config: tuple[str, ...] = _METRICS.flag(
        "kinds of latency metrics: counter_latencies, summary_latencies, histogram_latencies; "
        "summary_quantiles=QUANTILE:ERROR,...",
        values.METRICS_SETTING,
        default=(),
    )

    trace_config: tuple[str, ...] = _TRACING.flag(
        "which requests are traced, and where the traces go: level, rate, count, mode, triton,file, "
        "triton,log-frequency, opentelemetry,url",
        values.MODE_SETTING,
        default=(),
    )
    trace_file: Path | None = _TRACING.flag(f"{_OLDER}triton,file", FILE)
    trace_level: tuple[str, ...] = _TRACING.flag(f"{_OLDER}level", values.TRACE_LEVEL, default=())
    trace_rate: int | None = _TRACING.flag(f"{_OLDER}rate", COUNT)
    trace_count: int | None = _TRACING.flag(f"{_OLDER}count", COUNT)
    trace_log_frequency: int | None = _TRACING.flag(f"{_OLDER}triton,log-frequency", COUNT)

    backend_directory: Path | None = _BACKENDS.flag(
        "folder of backends that are written in Python: NAME/model.py runs models with that backend",
        values.FOLDER,
    )
    backend_config: tuple[str, ...] = _BACKENDS.flag(
        "default-max-batch-size and intra_op_thread_count of models that leave them out",
        values.BACKEND_SETTING,
        default=(),
    )
    repoagent_directory: Path | None = _BACKENDS.ignored("the checksum agent is built in", values.FOLDER)

    cache_config: tuple[str, ...] = _CACHE.flag(
        "local,size=BYTES: cache responses of models with response_cache in memory; redis,host=NAME: in a "
        "Redis server",
        values.SETTING,
        default=(),
    )
    cache_directory: Path | None = _CACHE.ignored("caches are Python code", values.FOLDER)
    response_cache_byte_size: int | None = _CACHE.flag(
        "the same, by its older name; 0: no cache", values.BYTES
    )

    rate_limit: str = _LIMITER.flag(
        "execution_count: an instance runs while the resources of its rate_limiter are free, by priority",
        values.choice("off", EXECUTION_COUNT),
        default="off",
    )
    rate_limit_resource: tuple[str, ...] = _LIMITER.flag(
        "how much there is of a resource on each device, or on this one; without the flag as much as an "
        "instance needs at most",
        values.RESOURCE,
        default=(),
    )

    pinned_memory_pool_byte_size: int | None = _MEMORY.ignored(_SHARED_MEMORY, values.BYTES)
    cuda_memory_pool_byte_size: tuple[str, ...] = _MEMORY.ignored(_NO_GPU, values.DEVICE_BYTES, repeated=True)
    cuda_virtual_address_size: tuple[str, ...] = _MEMORY.ignored(_NO_GPU, values.DEVICE_BYTES, repeated=True)
    enable_peer_access: bool | None = _MEMORY.ignored(_NO_GPU, BOOL)
    min_supported_compute_capability: float | None = _MEMORY.ignored(_NO_GPU, values.NUMBER)
    buffer_manager_thread_count: int | None = _MEMORY.ignored(_SHARED_MEMORY, COUNT)
    host_policy: tuple[str, ...] = _MEMORY.ignored("the kernel places workers", values.SETTING, repeated=True)
    model_load_gpu_limit: tuple[str, ...] = _MEMORY.refused(
        "the GPU memory of a load can't be bounded; leave the flag out", values.DEVICE_SHARE
    )
    strict_devices: bool = _MEMORY.flag(
        "refuse models that ask for a GPU which is missing", BOOL, default=False
    )


USAGE = "%(prog)s --model-repository DIR [--FLAG=VALUE ...]"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags of Triton to a parser, including flags that are refused or have no effect.

    As with getopt_long, a flag may be abbreviated to any unambiguous beginning of its name.
    """
    parser.usage = USAGE
    add_options(parser, ServeOptions)


def check_flags(options: ServeOptions) -> list[str]:
    """Return a line for the user about each flag in the command line that has no effect.

    Raises ConfigError for a refused flag, and for flags that exclude each other.
    """
    lines = []
    for field, flag, settings in list_options(ServeOptions):
        if getattr(options, field) in (None, ()):
            continue
        if settings["help"].startswith(REFUSED):
            raise ConfigError(f"{flag} is {settings['help']}")
        if settings["help"].startswith(NO_EFFECT):
            lines.append(f"{flag} has {settings['help']}")
    if options.rate_limit_resource and options.rate_limit != EXECUTION_COUNT:
        lines.append(f"--rate-limit-resource has {NO_EFFECT}--rate-limit is {options.rate_limit}")
    if options.load_model and options.model_control_mode != "explicit":
        raise ConfigError("--load-model needs --model-control-mode=explicit: the other modes load all models")
    if "*" in options.load_model and len(options.load_model) > 1:
        raise ConfigError("--load-model=* loads all models: leave the other --load-model out")
    for first, second in combinations(_list_ports(options), 2):
        if first[1] == second[1]:
            raise ConfigError(f"{first[0]} and {second[0]} are both {first[1]}: give each a port of its own")
    _check_safe_range(options)
    return lines


def _check_safe_range(options: ServeOptions) -> None:
    """Raise ConfigError for a port outside --sagemaker-safe-port-range, except SageMaker's own port."""
    ports = options.sagemaker_safe_port_range
    if ports is None or not options.allow_sagemaker:
        return
    first, last = map(int, ports.split("-"))
    for flag, port in _list_ports(options):
        if flag != "--sagemaker-port" and not first <= port <= last:
            raise ConfigError(
                f"{flag} is {port}, and --sagemaker-safe-port-range is {ports}: choose a port in the range"
            )


def _list_ports(options: ServeOptions) -> list[tuple[str, int]]:
    """Return the flag and the number of each port that the server opens."""
    return [
        (f"--{name}-port", get_option(options, f"{name}-port"))
        for name in ("http", "grpc", "metrics", "sagemaker")
        if get_option(options, f"allow-{name}")
    ]


def get_option(options: ServeOptions, flag: str) -> Any:
    """Return the value of a command-line flag. flag: the flag's name, written with hyphens."""
    return getattr(options, flag.replace("-", "_"))


def parse_flags(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. An unknown flag ends the process, with the nearest flag in the error."""
    values, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint(unknown[0])}")
    return values


def hint(unknown: str) -> str:
    """Return "; did you mean --FLAG?" with the flag most similar to an unknown flag, else an empty text."""
    parser = argparse.ArgumentParser()
    add_flags(parser)
    names = [option for action in parser._actions for option in action.option_strings]
    near = difflib.get_close_matches(unknown.partition("=")[0], names, n=1)
    return f"; did you mean {near[0]}?" if near else ""

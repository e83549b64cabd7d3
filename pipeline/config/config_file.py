"""The schema of config.yml as frozen pydantic models, and its loader. A misspelt key is an error."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import yaml
from pydantic import AliasChoices, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from pipeline.config.nodes_section import NodesConfig
from pipeline.config.op_section import (
    FeedPaddingConfig,
    FetchPaddingConfig,
    LocalServiceConf,
    OpConfig,
    PaddingConfig,
    TensorRtConf,
    TensorShapes,
)
from pipeline.config.report import BETWEEN_KEYS, describe_mistakes, drop_unknown_keys, read_yaml
from pipeline.config.trace_section import TraceConfig
from pipeline.config.value_types import (
    AUTO_NUMBER,
    OFF,
    Address,
    ClientType,
    Int,
    NumberOrAuto,
    Port,
    PortOrOff,
    PositiveInt,
    Seconds,
    Section,
)
from pipeline.errors import ConfigError

DEFAULT_MAX_PENDING_REQUESTS = 1000
DEFAULT_MAX_PENDING_ROWS = 1_000_000
DEFAULT_BODIES_BYTES = 2 << 30
DEFAULT_KSERVE_ROWS = 1024
DEFAULT_BATCH_TOKENS = 8_192  # of a predictor batch without `max_batch_tokens`
SHORT_TIMEOUT_MS = 60  # up to here `op.<name>.timeout` may be meant in seconds


class TracerConfig(Section):
    """`dag.tracer`: periodic log lines."""

    interval_s: Int = Field(
        default=-1, description="Seconds between lines in the log about the work of each Op; -1: none."
    )


class DagConfig(Section):
    """`dag`: settings that apply to whole requests."""

    is_thread_op: bool = Field(
        default=True,
        description="Instances of an Op without a Paddle model are threads of one process; false: processes. "
        "op.<name>.placement overrides it.",
    )
    retry: PositiveInt = Field(
        default=1, description="Tries of a whole request in all, when an Op's `timeout` is over for good."
    )
    client_type: ClientType | None = Field(
        default=None, description="client_type of Ops with server_endpoints that name none."
    )
    use_profile: bool = Field(
        default=False, description="Server-Timing: a header of HTTP answers, trailing metadata over gRPC."
    )
    tracer: TracerConfig = Field(default=TracerConfig(), description="Summaries in the log.")
    enable_prometheus: bool = Field(
        default=False, description="/metrics has Paddle Serving's own counters, `pd_*`, too."
    )
    prometheus_port: Port | None = Field(
        default=None, description="With enable_prometheus: /metrics alone on this port, too."
    )
    channel_size: Annotated[Int, Field(ge=0)] = Field(
        default=0, description="Bounds what is admitted; 0: no bound of its own."
    )
    channel_recv_frist_arrive: bool = Field(
        default=False,
        validation_alias=AliasChoices("channel_recv_frist_arrive", "channel_recv_first_arrive"),
        serialization_alias="channel_recv_frist_arrive",  # the original's spelling
        description="A join goes on with the input that came first.",
    )
    max_pending_requests: PositiveInt = Field(
        default=0,
        description="Requests admitted and not yet answered, at most; 0: channel_size, or 1000 without it.",
    )
    max_pending_rows: PositiveInt = Field(
        default=DEFAULT_MAX_PENDING_ROWS,
        description="Rows of the requests that are pending, at most; a request alone may have more.",
    )
    request_timeout: Seconds = Field(
        default=30.0, description="Seconds a request may take in all; 0: no deadline."
    )
    drain_delay: Seconds = Field(
        default=0.0, description="Seconds served as usual after SIGTERM, not ready any more."
    )
    drain_timeout: Seconds = Field(
        default=30.0, description="Seconds that admitted requests have after SIGTERM."
    )
    http_errors: Literal["original", "status"] = Field(
        default="original",
        description="original: HTTP 200 with err_no, as Paddle Serving; status: 4xx and 5xx.",
    )
    max_hops: PositiveInt = Field(default=100, description="Jumps (jump_to_ops) one request may make.")

    @field_validator("max_pending_requests", mode="before")
    @classmethod
    def _bounded_by_channel_size(cls, value: Any, info: ValidationInfo) -> Any:
        channel_size = info.data.get("channel_size", 0)
        if value in (0, "0"):
            return channel_size or DEFAULT_MAX_PENDING_REQUESTS
        if channel_size and isinstance(value, int):
            return min(value, channel_size)
        return value


class Limits(Section):
    """`limits`: maximum sizes and counts of a client's requests. Larger requests are rejected, not cut.

    `max_memory` limits what `auto` chooses.
    """

    body_bytes: PositiveInt = Field(default=64 << 20, description="Bytes of an HTTP body or gRPC message.")
    bodies_bytes: PositiveInt = Field(
        default=DEFAULT_BODIES_BYTES,
        description="Bytes of all HTTP bodies that are arriving or not answered yet; of all answers "
        "over HTTP, or gRPC, that wait to be read; of all gRPC messages that are arriving.",
    )
    response_bytes: PositiveInt = Field(default=512 << 20, description="Bytes of an answer.")
    header_count: PositiveInt = Field(default=64, description="Headers of an HTTP request.")
    header_bytes: PositiveInt = Field(
        default=32 << 10, description="Bytes of all headers of an HTTP request."
    )
    json_depth: PositiveInt = Field(default=32, description="Nesting of a JSON body.")
    tensors: PositiveInt = Field(default=4096, description="Tensors, or keys, of one request.")
    rows: PositiveInt = Field(default=100_000, description="Rows, or instances, of one request.")
    kserve_rows: PositiveInt = Field(
        default=DEFAULT_KSERVE_ROWS,
        description="Rows of one KServe v1 or v2 request to a model whose Ops declare no maximum; "
        "`max_batch_size` of the model's metadata.",
    )
    tensor_rank: Annotated[Int, Field(ge=1, le=32)] = Field(default=16, description="Dimensions of a tensor.")
    text_chars: PositiveInt = Field(
        default=64 << 20, description="Characters of one value: a text, or an image in base64."
    )
    header_timeout_s: Annotated[Seconds, Field(gt=0)] = Field(
        default=10.0, description="Seconds to send the headers."
    )
    body_timeout_s: Annotated[Seconds, Field(gt=0)] = Field(
        default=30.0, description="Seconds to send the body, and to read on in an answer."
    )
    idle_timeout_s: Annotated[Seconds, Field(gt=0)] = Field(
        default=75.0, description="Seconds that a connection may stay open without a request."
    )
    metrics_interval_s: Annotated[Seconds, Field(ge=0)] = Field(
        default=1.0,
        description="Seconds between renderings of /metrics, and of /overview.json; requests wait for it.",
    )
    max_connections: PositiveInt = Field(default=10_000, description="Open connections of each port.")
    connection_calls: PositiveInt = Field(
        default=1000, description="Calls under way on one gRPC connection; a client holds further ones back."
    )
    sequences: PositiveInt = Field(
        default=100_000, description="Live sequences of an Op; further ones are refused with 429."
    )
    sequence_bytes: PositiveInt = Field(
        default=1 << 30, description="Bytes of the states that the front keeps for the sequences of an Op."
    )
    sequence_idle_s: Annotated[Seconds, Field(gt=0)] = Field(
        default=60.0,
        description="Seconds without a request after which a sequence ends. A config.pbtxt has its own, "
        "`max_sequence_idle_microseconds`.",
    )
    max_memory: PositiveInt | None = Field(
        default=None,
        description="Memory of an Op's workers in MB (10^6 bytes); `auto` chooses no setting with more, and "
        "`shards` starts fewer.",
    )


__all__ = [
    "DagConfig",
    "FeedPaddingConfig",
    "FetchPaddingConfig",
    "Limits",
    "LocalServiceConf",
    "LoggingConfig",
    "NodesConfig",
    "OpConfig",
    "PaddingConfig",
    "RotationConfig",
    "SecurityConfig",
    "ServiceConfig",
    "TensorRtConf",
    "TensorShapes",
    "TlsConfig",
    "TraceConfig",
    "TracerConfig",
    "V2Config",
    "check_service_name",
    "dump_config",
    "load_config",
]

log = logging.getLogger(__name__)

RESERVED_SERVICE_NAMES = ("v1", "v2", "health", "metrics", "docs")  # first segments of our own paths


class V2Config(Section):
    """`v2`: Triton's ports, besides `http_port` and `rpc_port`, and permissions of KServe v2 clients."""

    http_port: Port | None = Field(default=None, description="All of http_port here, too (Triton: 8000).")
    grpc_port: Port | None = Field(default=None, description="All of rpc_port here, too (Triton: 8001).")
    metrics_port: Port | None = Field(default=None, description="/metrics alone (Triton: 8002).")
    metrics_address: Address | None = Field(
        default=None, description="Address of metrics_port; absent: that of http_port."
    )
    sagemaker_port: Port | None = Field(
        default=None, description="/ping and /invocations of Amazon SageMaker (Triton: 8080)."
    )
    shared_memory: Literal["loopback", "always", "off"] = Field(
        default="loopback",
        description="Who may name files of this machine's /dev/shm to be read and written: clients that "
        "connect from this machine (where a proxy does for others, turn it off), all, or none.",
    )
    model_control: Literal["none", "explicit"] = Field(
        default="explicit",
        description="explicit: clients may load and unload models; none: they are refused.",
    )

    @field_validator("shared_memory", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML reads `off` as false


class RotationConfig(Section):
    """`logging.rotation`: size and number of the files in `logging.directory`."""

    max_bytes: Annotated[Int, Field(ge=0)] = Field(
        default=64 << 20,
        description="Bytes before a file is moved aside; 0: never, one that logrotate moves is opened anew.",
    )
    backup_count: PositiveInt = Field(default=5, description="Files moved aside that are kept.")


class LoggingConfig(Section):
    """`logging`: level, format, files and rotation of the service's log."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Least severe level logged; DEBUG has a line for each request."
    )
    format: Literal["text", "json", "triton", "triton_iso8601"] = Field(
        default="text", description="Lines for people or for machines, or as Triton's --log-format has them."
    )
    directory: str | None = Field(
        default=None,
        description="Folder of files beside standard output, one a process: NAME.front.log, NAME.OP.0.log; "
        "NAME.output.log has what they print.",
    )
    rotation: RotationConfig = Field(default=RotationConfig(), description="How large those files grow.")

    @field_validator("level", mode="before")
    @classmethod
    def _upper_case(cls, value: Any) -> Any:
        return value.upper() if isinstance(value, str) else value


class TlsConfig(Section):
    """`tls`: HTTPS and TLS on every port, including those of `v2`. Paths are resolved like a model's."""

    cert: str = Field(
        description="PEM file of the server's certificate, followed by those that lead to its authority."
    )
    key: str = Field(description="PEM file of its private key, without a passphrase.")
    client_ca: str | None = Field(
        default=None,
        description="PEM file of authorities; clients must show a certificate of theirs, health checks too.",
    )
    http: bool = Field(default=True, description="false: of gRPC alone, HTTP stays plain.")


class SecurityConfig(Section):
    """`security`: API keys of clients. Certificates are under `tls`."""

    api_keys: str | None = Field(
        default=None,
        description="File of API keys, NAME:KEY or NAME:sha256:DIGEST a line; absent: anyone may ask.",
    )
    key_pending: Annotated[Int, Field(ge=0)] = Field(
        default=0, description="Requests pending with the keys of one name, at most; 0: as many as of all."
    )
    key_rate: Seconds = Field(
        default=0.0, description="Requests a second with the keys of one name, at most; 0: any number."
    )
    open_health: bool = Field(default=True, description="Health pages and calls are answered without a key.")
    open_metrics: bool = Field(default=False, description="/metrics is answered without a key.")


class ServiceConfig(Section):
    """The whole configuration in config.yml."""

    http_port: Port | None = Field(
        default=None, description="HTTP; at least one of http_port and rpc_port is needed."
    )
    rpc_port: PortOrOff = Field(default=0, description="gRPC; absent: http_port + 1; off: none.")
    http_address: Address | None = Field(
        default=None, description="Address that HTTP ports are opened on; absent: on all of this machine's."
    )
    rpc_address: Address | None = Field(default=None, description="The same for gRPC ports.")
    worker_num: PositiveInt = Field(
        default=1, description="Multiplies the instances when build_dag_each_worker is true."
    )
    build_dag_each_worker: bool = Field(
        default=False, description="worker_num times the instances of every Op."
    )
    shards: NumberOrAuto = Field(
        default=AUTO_NUMBER,
        validate_default=False,
        description="Processes that each accept requests over HTTP and run the model, for a service of one "
        "Op; 1: one front before the workers; `auto`: one for each core, if they are faster by a tenth here. "
        "Absent: `auto` beside another `auto` of the Op, if sample.jsonl is beside its model.",
    )
    dag: DagConfig = Field(default=DagConfig(), description="What holds for whole requests.")
    op: dict[str, OpConfig] = Field(default={}, description="One section per Op, by its name.")
    v2: V2Config = Field(default=V2Config(), description="What concerns the KServe v2 protocol alone.")
    logging: LoggingConfig = Field(
        default=LoggingConfig(),
        description="Where and how we log. What is not read in time is dropped, and counted.",
    )
    tls: TlsConfig | None = Field(default=None, description="Certificates; absent: plain HTTP and gRPC.")
    security: SecurityConfig = Field(default=SecurityConfig(), description="Who may ask.")
    limits: Limits = Field(default=Limits(), description="The largest that is accepted.")
    trace: TraceConfig = Field(default=TraceConfig(), description="Traces of requests, as Triton's.")
    nodes: NodesConfig | None = Field(
        default=None, description="Other machines that run the workers; absent: all run on this one."
    )

    @field_validator("rpc_port", mode="before")
    @classmethod
    def _follows_http_port(cls, value: Any, info: ValidationInfo) -> Any:
        if value is False or value == OFF:  # `off`, as YAML reads it
            return OFF
        if value not in (0, "0"):
            return value
        if "http_port" not in info.data:
            return 1024  # any valid port: the error of http_port is reported alone
        http_port = info.data["http_port"]
        if http_port is None:
            raise PydanticCustomError(
                BETWEEN_KEYS, "http_port or rpc_port is needed, e.g. `http_port: 18082`"
            )
        return http_port + 1

    @field_validator("v2")
    @classmethod
    def _one_port_each(cls, v2: V2Config, info: ValidationInfo) -> V2Config:
        ports = [(key, info.data.get(key)) for key in ("http_port", "rpc_port")]
        if [port for _, port in ports] == [None, OFF] and v2.sagemaker_port is None:
            raise PydanticCustomError(BETWEEN_KEYS, "rpc_port is off, and there is no http_port")
        ports += [(f"v2.{key}", getattr(v2, key)) for key in V2Config.model_fields if "port" in key]
        ports += _list_ports(info.data.get("dag", DagConfig())).items()
        key_by_port: dict[int, str] = {}
        for name, port in ports:
            if port is not None and key_by_port.setdefault(port, name) != name:
                same = {"one": key_by_port[port], "other": name, "port": port}
                raise PydanticCustomError(
                    BETWEEN_KEYS, "{one} and {other} are both {port}; give each a port of its own", same
                )
        return v2

    @field_validator("nodes")
    @classmethod
    def _has_no_shards(cls, nodes: NodesConfig | None, info: ValidationInfo) -> NodesConfig | None:
        if nodes is not None and info.data.get("shards", 1) > 1:
            raise PydanticCustomError(BETWEEN_KEYS, "shards serve on one machine; remove shards or nodes")
        return nodes

    def ports(self) -> dict[str, int]:
        """Return the numbers of the ports to open, by their keys in config.yml such as "v2.grpc_port"."""
        ports = {"http_port": self.http_port, "rpc_port": self.rpc_port}
        ports |= {f"v2.{name}": getattr(self.v2, name) for name in V2Config.model_fields if "port" in name}
        return {name: port for name, port in (ports | _list_ports(self.dag)).items() if port and port != OFF}

    def address(self, port: str) -> str:
        """Return the IP address that a port listens on; empty for all interfaces.

        `port` is a key of `ports`.
        """
        if port == "v2.metrics_port" and self.v2.metrics_address:
            return self.v2.metrics_address
        address = self.rpc_address if port in ("rpc_port", "v2.grpc_port") else self.http_address
        return address or ""


def _list_ports(dag: DagConfig) -> dict[str, int | None]:
    return {"dag.prometheus_port": dag.prometheus_port if dag.enable_prometheus else None}


def check_service_name(name: str) -> None:
    """Raise ConfigError for a service name that is no URL path segment, or is reserved by the server."""
    if name in RESERVED_SERVICE_NAMES:
        raise ConfigError(
            f"A service can't be named {name!r}: {', '.join(RESERVED_SERVICE_NAMES)} are paths of the "
            "server itself; choose another name in WebService(name=...)."
        )
    if not re.fullmatch(r"[^\s/?#:]+", name):
        raise ConfigError(
            f"A service can't be named {name!r}: the name is the first part of its path /{{name}}/{{method}} "
            "and can't be empty or hold blanks, '/', '?', '#' or ':'."
        )


def load_config(
    source: str | Path | Mapping[str, Any],
    *,
    op_overrides: Mapping[str, Mapping[str, Any]] | None = None,
    replaced_sections: Mapping[str, Any] = MappingProxyType({}),
    before_warnings: Callable[[ServiceConfig], None] = lambda config: None,
) -> ServiceConfig:
    """Load and validate config.yml, from a path or from its content as a mapping.

    `op_overrides` are the arguments of the script's steps (Ops) by name. They win over the file; None counts
    as absent. `replaced_sections` are sections in place of the file's. Logs a warning for each key that
    Paddle Serving ignored, after `before_warnings`. Raises one ConfigError with every mistake, one per line.
    """
    notes: list[str] = []
    if isinstance(source, Mapping):
        name, data = "configuration", dict(source)
    else:
        name, data = str(source), read_yaml(Path(source), notes)
    overrides = {
        op: {key: value for key, value in options.items() if value is not None}
        for op, options in (op_overrides or {}).items()
    }
    data = {**_merge_overrides(data, overrides), **replaced_sections}
    try:
        try:
            config = _validate(data)
        except ValidationError as error:
            data, ignored = drop_unknown_keys(name, data, error, ServiceConfig)
            if not ignored:
                raise
            notes += ignored
            config = _validate(data)
    except ValidationError as error:
        raise ConfigError(describe_mistakes(name, error, ServiceConfig, overrides)) from None
    notes += _find_short_timeouts(name, config, overrides)
    before_warnings(config)
    for note in notes:
        log.warning(note)
    return config


def _find_short_timeouts(
    source: str, config: ServiceConfig, overrides: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return a warning for each Op timeout, in milliseconds, that is so short that seconds may be meant."""
    notes = []
    for name, op in config.op.items():
        if 0 < op.timeout <= SHORT_TIMEOUT_MS:
            in_script = "timeout" in overrides.get(name, ())
            where = f"Op(name={name!r}, timeout=...)" if in_script else f"op.{name}.timeout"
            notes.append(
                f"{source}: {where}: {op.timeout} milliseconds; write {op.timeout * 1000} for {op.timeout} "
                "seconds, or set dag.request_timeout, in seconds"
            )
    return notes


def _validate(data: Mapping[str, Any]) -> ServiceConfig:
    return ServiceConfig.model_validate(data, by_name=False, by_alias=True)


def _merge_overrides(data: dict[str, Any], overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the file's data with the arguments of the script's steps (Ops) merged over its `op` sections.

    A malformed `op` is left to validation.
    """
    ops = data.get("op")
    if not overrides or not (ops is None or isinstance(ops, Mapping)):
        return data
    ops = dict(ops or {})
    for name, options in overrides.items():
        section = ops.get(name)
        if section is None or isinstance(section, Mapping):
            ops[name] = {**(section or {}), **options}
    return {**data, "op": ops}


def dump_config(config: ServiceConfig) -> str:
    """Return the resolved configuration as YAML, which `load_config` can read back without a change."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

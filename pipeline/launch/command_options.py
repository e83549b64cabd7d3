"""The command-line options of each `paddlewheel` command, declared as dataclasses.

The options of `serve` are Triton's flags, in `serve_options`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client.addresses import SEVERAL
from client.connection_options import ConnectionOptions
from client.options import argument, option, switch
from pipeline.errors import ConfigError
from pipeline.launch.flag_values import repository_folder
from pipeline.offline.target import REQUEST_ROWS  # imports no rich: the doctor runs without it

PRECISIONS = ("fp32", "bf16", "fp16", "int8")
TASKS = ("classification", "multi-label", "labelling", "zero-shot", "embeddings", "reranking")
"""The tasks of pipeline/ops/text_files.py, which is imported when the command runs."""
MAX_ROWS, MAX_WINDOW, MAX_CONNECTIONS = 1024, 1 << 20, 1024
_ROWS = "rows: .jsonl with an object a line, .csv, .tsv or .parquet"
_HTTP_PORT: dict[str, Any] = {"default": 18082, "metavar": "PORT", "help": "HTTP (%(default)s)"}
_RPC_PORT: dict[str, Any] = {"default": 8088, "metavar": "PORT", "help": "gRPC (%(default)s)"}


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _parse_sides(text: str) -> tuple[int, ...]:
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise argparse.ArgumentTypeError(f"{text!r} is no side like 256, nor two like 224x320")
    return tuple(map(int, sides))


def _parse_precisions(text: str) -> tuple[str, ...]:
    names = _parse_names(text)
    if unknown := [name for name in names if name not in PRECISIONS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(PRECISIONS)}")
    return names


def _parse_connections(text: str) -> tuple[int, ...]:
    names = _parse_names(text)
    numbers = sorted({int(name) for name in names if name.isdecimal()})
    if not all(map(str.isdecimal, names)) or not numbers or numbers[0] < 1 or numbers[-1] > MAX_CONNECTIONS:
        raise argparse.ArgumentTypeError(f"from 1 to {MAX_CONNECTIONS}, e.g. 1,4,16,64")
    return tuple(numbers)


def _parse_share(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 1")
    return number


def _parse_percents(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part.strip().removesuffix("%")) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} has no percents like 1,10,50,100%") from None


def _parse_positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 up")
    return int(text)


def _parse_memory(text: str) -> int:
    """Parse a memory size in Kubernetes' notation, such as 900Mi or 2Gi, to bytes."""
    match = re.fullmatch(r"([1-9]\d{0,5})(Mi|Gi)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size like 900Mi or 2Gi")
    return int(match[1]) << {"Mi": 20, "Gi": 30}[match[2]]


def _parse_up_to(maximum: int) -> Callable[[str], int]:
    def parse_number(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= maximum:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {maximum}")
        return int(text)

    return parse_number


def _parse_pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, as in text=sentence")
    return name, value


def _parse_parameter(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE to a name and a value. The value is decoded as JSON, or else kept as text."""
    name, value = _parse_pair(text)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def parse_duration(flag: str, text: str) -> float:
    """Parse a duration like "50ms", "90s", "5m" or "1h", and return seconds.

    flag: the command-line option, for the message. Raises ConfigError for other texts and for 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)", text.strip())
    if match is None or not float(match[1]):
        raise ConfigError(f"{flag} {text!r} is no time; write it as 50ms, 90s, 5m or 1h")
    return float(match[1]) * {"ms": 1e-3, "s": 1, "m": 60, "h": 3600}[match[2]]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `paddlewheel run`, which runs the script of a service."""

    config: Path | None = option(metavar="PATH", help="in place of the script's own configuration")
    print_config: bool = switch(help="print the resolved configuration and leave")
    script: Path = argument(
        metavar="SCRIPT", help="file that calls run_service(), or its folder: web_service.py runs there"
    )
    arguments: tuple[str, ...] = argument(
        nargs=argparse.REMAINDER, metavar="...", help="what the script is given"
    )


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """The options of `paddlewheel text`, which serves a text model without a script."""

    model: Path = argument(metavar="MODEL", help="folder of a serving model, or with an ONNX model")
    task: str = option(default="", choices=TASKS, help="what it does (as its files say)")
    labels: str = option(
        default="", metavar="A,B|FILE", help="names of the classes, in order (as its files say)"
    )
    top_k: int = option(type=_parse_positive, default=0, metavar="N", help="most labels that are told")
    threshold: float | None = option(
        type=_parse_share, metavar="S", help="least score of a label or an entity"
    )
    scheme: str = option(
        default="",
        choices=("auto", "bio", "bioes", "bioul", "none"),
        help="what labels of tokens say of places in an entity (as their names tell)",
    )
    template: str = option(default="", metavar="TEXT", help="zero-shot: hypothesis with {} for a label")
    candidates: str = option(default="", metavar="A,B|FILE", help="zero-shot: labels of requests without any")
    tokenizer: str = option(default="", metavar="FILE", help="its tokenizer (the file beside the model)")
    pair: bool = switch(help="each text has a second one, text_pair")
    too_long: str = option(
        default="",
        choices=("refuse", "truncate", "windows"),
        help="what becomes of texts beyond the model's length (refuse)",
    )
    stride: int = option(
        type=_parse_positive, default=0, metavar="N", help="tokens from window to window (3/4 of one)"
    )
    max_tokens: int = option(type=_parse_positive, default=0, metavar="N", help="of a text (the model's)")
    name: str = option(default="", help="of the service, the first part of its URL (that of MODEL)")
    engine: str = option(default="auto", metavar="NAME", help="that runs it (the fastest, once timed)")
    http_port: int = option(**_HTTP_PORT)
    rpc_port: int = option(**_RPC_PORT)


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """The options of `paddlewheel explain`, which reports on a Triton model repository."""

    model_repository: tuple[Path, ...] = argument(
        type=repository_folder, nargs="+", metavar="DIR", help="model repository"
    )
    svg: Path | None = option(metavar="FILE", help="write a drawing of it, too")


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The options of `paddlewheel new` that describe the model's inputs and outputs.

    They are written to the serving.yml of the new service. Empty values are derived from the model's files.
    """

    input: str = option(
        default="",
        choices=("image", "text", "table", "tensor"),
        help="what clients send (as the model's serving.yml says, else tensors)",
    )
    output: str = option(
        default="",
        choices=("classes", "multilabel", "tokens", "entities", "zero-shot", "tensor"),
        help="what they get (labels, where an output has scores of classes)",
    )
    labels: str = option(default="", metavar="A,B|FILE", help="names of the classes, in order")
    top_k: int = option(default=0, metavar="N", help="best labels with scores (image: 5)")
    preset: str = option(
        default="",
        choices=("torchvision", "paddle", "timm", "plain"),
        help="how images were made inputs in training (torchvision; grey: plain)",
    )
    resize: tuple[int, ...] = option(
        type=_parse_sides, default=(), metavar="N|HxW", help="the shorter side, or both (as the preset)"
    )
    crop: tuple[int, ...] = option(
        type=_parse_sides, default=(), metavar="N|HxW", help="the middle (as the preset, the model's sides)"
    )
    columns: tuple[str, ...] = option(
        type=_parse_names, default=(), metavar="A,B", help="of a table, in the order of the feed"
    )


NO_OPTIONS = ModelOptions()


@dataclass(frozen=True, kw_only=True)
class NewOptions(ModelOptions):
    """The options of `paddlewheel new`, which writes the folder of a new service for a model."""

    directory: Path = argument(metavar="DIR", help="folder to write; it may not hold anything")
    model: Path = option(
        required=True,
        metavar="SERVING_DIR",
        help="what `paddlewheel convert serving` wrote, or a folder with an ONNX model alone",
    )
    name: str | None = option(help="of the service, the first part of its URL (the name of DIR)")
    copy: bool = switch(help="copy the model to DIR/model, so that DIR can be moved, e.g. to Docker")
    run: bool = switch(help="start the service, too")
    http_port: int = option(**_HTTP_PORT)
    rpc_port: int = option(**_RPC_PORT)

    @property
    def model_options(self) -> ModelOptions:
        """The command-line options that describe the model's inputs and outputs, without other options."""
        names = [field.name for field in dataclasses.fields(ModelOptions)]
        return ModelOptions(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    """The options of `paddlewheel config`, which prints the reference of config.yml and serving.yml."""

    language: str = option(choices=("en", "zh"), default="en", help="English or Chinese (%(default)s)")


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """The options of `paddlewheel doctor`, which checks whether this machine can serve."""

    config: Path | None = option(
        metavar="PATH", help="whose ports and devices are looked at (config.yml, where there is one)"
    )
    json: bool = switch(help="print the findings as JSON")


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """The options of `paddlewheel tune`, which measures a service to find its fastest settings.

    The constructor raises ConfigError if `budget` or `p99` is not of the form 50ms, 90s, 5m or 1h.
    """

    service: Path | None = argument(
        metavar="SERVICE", nargs="?", default=None, help="folder of a service, or its script"
    )
    model_repository: Path | None = option(
        metavar="DIR",
        help="tune a model of this repository, in place of a service, and write its config.pbtxt",
    )
    model: str | None = option(metavar="NAME", help="the model of the repository (the only one)")
    p99: str | None = option(metavar="TIME", help="greatest p99, e.g. 50ms (absent: the frontier's knee)")
    sample: Path | None = option(metavar="FILE", help=".txt: a text a line; .jsonl: a body a line")
    key: str | None = option(help="key of each text (the first of the service's own example)")
    budget: str = option(default="5m", metavar="TIME", help="most time in all (%(default)s)")
    op: str | None = option(metavar="NAME", help="the Op to tune, where several have models")
    engine: tuple[str, ...] = option(
        type=_parse_names, default=(), metavar="A,B", help="engines (all that can)"
    )
    precision: tuple[str, ...] = option(
        type=_parse_precisions,
        default=(),
        metavar="A,B",
        help="of fp32, bf16, fp16 and int8; answers differ by it (config.yml's alone)",
    )
    connections: tuple[int, ...] = option(
        type=_parse_connections,
        default=(1, 4, 16, 64),
        metavar="A,B",
        help="of the load, ascending (1,4,16,64)",
    )
    config: Path | None = option(metavar="PATH", help="in place of config.yml by the script")
    report: Path | None = option(metavar="PATH", help="PATH.json and PATH.svg (tuned, beside config.yml)")
    dry_run: bool = switch(help="print the change of config.yml, write nothing")
    record: Path | None = option(
        metavar="FILE.jsonl",
        help="tune nothing: write down what the running service answers, 1,000 requests at most, as a sample",
    )

    def __post_init__(self) -> None:
        """Raise ConfigError for a malformed `budget` or `p99`, before the measurements start."""
        _ = self.budget_s, self.p99_ms

    @property
    def budget_s(self) -> float:
        """The time limit of all measurements together, in seconds."""
        return parse_duration("--budget", self.budget)

    @property
    def p99_ms(self) -> float | None:
        """The highest acceptable p99 latency of a request in milliseconds; None without a limit."""
        return parse_duration("--p99", self.p99) * 1e3 if self.p99 else None


_SERVICE_SETTINGS: dict[str, Any] = {
    "metavar": "ADDRESS",
    "help": f"of a running service, e.g. localhost:18082 or localhost:18082/bert, {SEVERAL}",
    "group": "target",
}
_ROWS_SETTINGS: dict[str, Any] = {
    "type": _parse_up_to(MAX_ROWS),
    "metavar": "N",
    "help": "most rows of a request (%(default)s)",
}


@dataclass(frozen=True, kw_only=True)
class ScoringOptions:
    """The options that `score` and `evaluate` share: the model that answers, and how rows become requests.

    Rows are the lines of a data file. `service` is a running service, `model` a model run in this process.
    """

    service: str | None = option(**_SERVICE_SETTINGS)
    model: Path | None = option(
        metavar="FOLDER", help="of a model, or a service's script, run in this process", group="target"
    )
    key: tuple[tuple[str, str], ...] = option(
        type=_parse_pair,
        action="append",
        default=(),
        metavar="INPUT=COLUMN",
        help="the column of an input that is called otherwise",
    )
    parameter: tuple[tuple[str, Any], ...] = option(
        type=_parse_parameter,
        action="append",
        default=(),
        metavar="NAME=VALUE",
        help="of every request, e.g. top_k=3",
    )
    field: str = option(default="answer", metavar="NAME", help="of the answers (%(default)s)")
    connections: int = option(
        type=_parse_up_to(MAX_CONNECTIONS),
        default=8,
        metavar="N",
        help="requests to a service at a time (%(default)s)",
    )
    rows_per_request: int = option(default=1, **_ROWS_SETTINGS)
    window: int = option(
        type=_parse_up_to(MAX_WINDOW),
        default=4096,
        metavar="N",
        help="rows that are sorted by length together (%(default)s)",
    )
    timeout: float = option(
        default=60.0,
        metavar="SECONDS",
        help="for a request to a service, further tries included (%(default)g)",
    )


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(ScoringOptions):
    """The options of `paddlewheel score`, which has a service answer the rows of a file."""

    source: Path = argument(metavar="IN", help=_ROWS)
    out: Path = argument(metavar="OUT", help="rows with their answers, in the same order")
    service: str | None = option(required=True, **_SERVICE_SETTINGS)
    rows_per_request: int = option(default=REQUEST_ROWS, **_ROWS_SETTINGS)
    errors: str = option(
        choices=("stop", "write"),
        default="stop",
        help="a row that can't be answered: end there, or write it with its error (%(default)s)",
    )
    restart: bool = switch(help="begin anew where OUT, or the rest of a killed run, is there")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(ScoringOptions):
    """The options of `paddlewheel evaluate`, which compares answers with the labels of a data file."""

    source: Path = argument(metavar="FILE", help=f"{_ROWS}; scored, where nothing is asked")
    gold: str = option(required=True, metavar="COLUMN", help="the column with what is right")
    prefix: str = option(
        default="", metavar="TEXT", help="what labels of the file begin with, and answers don't"
    )
    report: Path | None = option(metavar="PATH", help="write PATH.json, and the confusion matrix as PATH.svg")
    scored: Path | None = option(metavar="OUT", help="where to keep the answers (nowhere)")


@dataclass(frozen=True, kw_only=True)
class ExportTritonOptions:
    """The options of `paddlewheel export triton`, which exports a text service as a model repository."""

    service: Path | None = option(
        group="source", required=True, metavar="PATH", help="of a service, or its script"
    )
    model: Path = option(group="source", metavar="FOLDER", help="of a model of texts")
    output: Path = option(required=True, metavar="DIR", help="the model repository")
    name: str = option(default="", help="of the ensemble (that of the service, or of the model)")
    onnx: Path | None = option(metavar="FILE", help="the model's ONNX form (that beside it)")
    force: bool = switch(help="replace models of these names")


@dataclass(frozen=True, kw_only=True)
class ExportKubernetesOptions:
    """The options of `paddlewheel export kubernetes`, which writes the manifests of a service.

    The constructor raises ConfigError if `queue_wait` is not of the form 50ms, 90s, 5m or 1h.
    """

    service: Path = argument(metavar="SERVICE", help="folder of a service, or its script")
    output: Path = option(required=True, metavar="DIR", help="folder to write; it may not hold anything")
    config: Path | None = option(metavar="PATH", help="in place of config.yml by the script")
    name: str = option(default="", help="of all objects, a DNS label (the name of the service)")
    image: str = option(default="", help="with the service in /srv (NAME:latest)")
    memory: int = option(
        type=_parse_memory, default=0, metavar="SIZE", help="of the service, e.g. 900Mi (it is measured)"
    )
    replicas: int = option(type=_parse_positive, default=2, metavar="N", help="fewest (%(default)s)")
    max_replicas: int = option(type=_parse_positive, default=10, metavar="N", help="most (%(default)s)")
    queue_wait: str = option(
        default="100ms", metavar="TIME", help="mean wait in queues that adds replicas (%(default)s)"
    )
    kserve: bool = switch(help="write a ClusterServingRuntime and InferenceServices, too")
    storage: str = option(
        default="pvc://models",
        metavar="URI",
        help="with --kserve: of the folder with the model repositories 1 and 2 (%(default)s)",
    )

    def __post_init__(self) -> None:
        """Raise ConfigError for a malformed `queue_wait`, before the service is started."""
        _ = self.queue_wait_s

    @property
    def queue_wait_s(self) -> float:
        """The mean time in queues above which replicas are added, in seconds."""
        return parse_duration("--queue-wait", self.queue_wait)


@dataclass(frozen=True, kw_only=True)
class UpgradeOptions(ConnectionOptions):
    """The options of `paddlewheel upgrade`, which replaces a model if the new version's answers agree."""

    model: str = argument(metavar="MODEL", help="a loaded model of a repository, or the Op of a script")
    version: str = argument(metavar="NEW", help="the version on disk that shall take over, such as 2")
    url: str = option(
        default="http://localhost:8000", metavar="URL", help="of the running service (%(default)s)"
    )
    requests: int | None = option(
        type=_parse_positive, metavar="N", help="live requests to compare (2000, without --minutes)"
    )
    minutes: float | None = option(
        metavar="N", help="compare for this time, or until --requests if both are set"
    )
    tolerance: float = option(
        default=0.0,
        metavar="SHARE",
        help="of answers that may change beyond those that change without an upgrade (%(default)g)",
    )
    score_tolerance: float = option(
        default=0.01, metavar="X", help="difference of numbers from 0 to 1 that is no change (%(default)g)"
    )
    tensor_tolerance: float = option(
        default=0.001, metavar="X", help="the same for other numbers, relative to the largest (%(default)g)"
    )
    timeout: float = option(
        default=10.0, metavar="SECONDS", help="after which the new version hangs (%(default)g)"
    )
    share_cpu: bool = switch(help="compare without idle CPU time, too, which slows live requests")
    canary: tuple[float, ...] = option(
        default=(),
        type=_parse_percents,
        metavar="1,10,50,100%",
        help="after that, shift live requests to the new version in these steps",
    )
    step_requests: int = option(
        default=100, type=_parse_positive, metavar="N", help="of the new version in each step (%(default)s)"
    )
    error_limit: float = option(
        default=0.01,
        metavar="SHARE",
        help="of the requests that only the new version may fail, or it gets none (%(default)g)",
    )
    latency_limit: float = option(
        default=2.0,
        metavar="FACTOR",
        help="times the served version's 95th percentile, above which a request is late (%(default)g)",
    )
    report: Path | None = option(metavar="PATH", help="write PATH.json and PATH.html")

    @property
    def request_document(self) -> dict[str, Any]:
        """The JSON body of the request that starts the upgrade."""
        limits = {"requests": self.requests, "minutes": self.minutes}
        return {
            "version": self.version,
            **{name: value for name, value in limits.items() if value is not None},
            "tolerance": self.tolerance,
            "score_tolerance": self.score_tolerance,
            "tensor_tolerance": self.tensor_tolerance,
            "timeout_s": self.timeout,
            "share_cpu": self.share_cpu,
            "canary": self.canary,
            "step_requests": self.step_requests,
            "error_limit": self.error_limit,
            "latency_limit": self.latency_limit,
        }


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """The options of `paddlewheel agent`, which runs workers for services on other machines."""

    address: str = option(
        default="127.0.0.1:7071", metavar="HOST:PORT", help="where fronts connect (%(default)s)"
    )
    token_file: Path = option(required=True, metavar="FILE", help="the secret of nodes.token_file")
    cert: Path | None = option(metavar="FILE", help="PEM file of the agent's certificate, for TLS")
    key: Path | None = option(metavar="FILE", help="PEM file of its private key")
    max_workers: int = option(
        type=_parse_positive, default=0, metavar="N", help="most worker processes (any number)"
    )
    idle_timeout: int = option(
        type=_parse_positive,
        default=0,
        metavar="SECONDS",
        help="end after this time without a connection (never)",
    )


@dataclass(frozen=True, kw_only=True)
class RayUpOptions:
    """The options of `paddlewheel ray up`, which runs a service on a Ray cluster."""

    service: Path = argument(
        metavar="SERVICE", help="folder of a service, its script, or a Triton model repository"
    )
    address: str = option(
        default="auto", metavar="HOST:PORT", help="of the Ray cluster (the cluster of this machine)"
    )
    config: Path | None = option(metavar="PATH", help="in place of config.yml by the script")
    resources: tuple[str, ...] = option(
        default=(),
        metavar="OP=NAME:COUNT,...",
        help="of a worker of an Op or model, e.g. ocr=CPU:2,GPU:1 (CPU:1)",
    )
    flag: tuple[str, ...] = option(
        default=(),
        metavar="NAME=VALUE",
        help="flag of `paddlewheel serve` for a model repository, e.g. http-port=9000",
    )
    cert: Path | None = option(
        metavar="FILE", help="PEM file on each node: certificate of its agents, for TLS"
    )
    key: Path | None = option(metavar="FILE", help="PEM file on each node: private key of its agents")
    ca: Path | None = option(metavar="FILE", help="PEM file here: authorities of the agents' certificates")


@dataclass(frozen=True, kw_only=True)
class KillOptions:
    """The options of `paddlewheel kill`, which select the running services to end.

    Without `port` and `pid` the services that were started in this folder are selected.
    """

    port: int | None = option(group="service", help="the service that listens there, wherever it was started")
    pid: int | None = option(group="service", help="the service of this process")


@dataclass(frozen=True, kw_only=True)
class StopOptions(KillOptions):
    """The options of `paddlewheel stop`: the options of `kill`, and how long to wait until services end."""

    timeout: float = option(
        default=60.0, metavar="SECONDS", help="how long their end is waited for (%(default)g)"
    )

"""The schema of the `op.<name>` section of config.yml: model, engine, batching, padding, remote endpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from pipeline.config.value_types import (
    ClientType,
    EngineName,
    Int,
    Names,
    NumberOrAuto,
    Placement,
    PositiveInt,
    Precision,
    PrecisionOrAuto,
    Seconds,
    Section,
    off_when_not_positive,
)
from pipeline.errors import ConfigError


class TensorShapes(Section):
    """The shapes of one tensor in a TensorRT profile."""

    min: list[PositiveInt] = Field(description="Smallest shape.")
    opt: list[PositiveInt] = Field(description="The shape TensorRT optimises for.")
    max: list[PositiveInt] = Field(description="Largest shape.")

    @model_validator(mode="after")
    def _in_order(self) -> TensorShapes:
        if not len(self.min) == len(self.opt) == len(self.max):
            raise ValueError(f"min {self.min}, opt {self.opt} and max {self.max} differ in rank")
        if any(not a <= b <= c for a, b, c in zip(self.min, self.opt, self.max, strict=True)):
            raise ValueError(
                f"min {self.min} <= opt {self.opt} <= max {self.max} does not hold on every axis"
            )
        return self


def _get_shapes_tag(shapes: object) -> str:
    if isinstance(shapes, str):
        return "function-file"
    return "function-files" if isinstance(shapes, list) else "function-ranges"


class TensorRtConf(Section):
    """`op.<name>.local_service_conf.tensorrt`: TensorRT engines and their shape ranges."""

    precision: Precision | None = Field(
        default=None, description="Precision of the engine; absent: `precision`."
    )
    cache_dir: str = Field(
        default="", description="Folder that keeps built engines; empty: beside the model."
    )
    shapes: Annotated[
        Annotated[dict[str, TensorShapes], Tag("function-ranges")]
        | Annotated[str, Tag("function-file")]
        | Annotated[list[str], Field(min_length=1, max_length=16), Tag("function-files")],
        Discriminator(_get_shapes_tag),
    ] = Field(
        default={},
        description="min, opt and max shape per tensor, for Ops without `set_dynamic_shape_info`; or the "
        "path of a file of `paddlewheel convert shapes`. For an ONNX model it may be several files, each of "
        "one length class. An engine is built for each, and the first whose range holds a batch runs it.",
    )
    auto_collect: bool = Field(
        default=False,
        description="Without shapes: find them at start by running the model on the CPU, and keep them in "
        "`cache_dir`. For .pdmodel programs.",
    )
    collect_lengths: Annotated[list[PositiveInt], Field(min_length=1, max_length=16)] = Field(
        default=[16, 64, 128], description="Lengths that `auto_collect` runs on each axis that varies."
    )
    collect_batches: Annotated[list[PositiveInt], Field(min_length=1, max_length=16)] = Field(
        default=[1, 8], description="Rows that `auto_collect` runs; the largest caps a predictor batch."
    )


class LocalServiceConf(Section):
    """`op.<name>.local_service_conf`: the model of this Op and its engine's settings."""

    client_type: Literal["local_predictor", "brpc", "grpc"] = Field(
        default="local_predictor",
        description="The model runs in our worker, also with brpc and grpc: no server is started for it.",
    )
    model_dir: str = Field(
        default="",
        validation_alias="model_config",  # pydantic keeps `model_config` for itself
        serialization_alias="model_config",
        description="Serving model directory: the folder that holds serving_server/, or that folder itself; "
        "or one with versions, each a serving model directory named 1, 2, ...",
    )
    model_version: PositiveInt | None = Field(
        default=None,
        description="The version to serve, of a model_config with versions; absent: the highest there when "
        "the Op is loaded.",
    )
    engine: EngineName | None = Field(
        default=None,
        description="Engine that runs the model: paddle, onnxruntime, openvino, pytorch, or one that an "
        "installed package adds; `auto`: the fastest of those that can run it here; absent: the one whose "
        "files the directory holds.",
    )
    allow_failed_parity: bool = Field(
        default=False, description="Serve the model although parity.json beside it says that a check failed."
    )
    workdir: str = Field(default="", description="Accepted and unused, as in the original's local predictor.")
    concurrency: PositiveInt | None = Field(
        default=None,
        description="Accepted and unused, as in the original, whose examples have it; the Op's counts.",
    )
    thread_num: PositiveInt = Field(
        default=2,
        description="CPU threads of one predictor, which threads of an Op with an ONNX model share.",
    )
    inference_mode: bool = Field(
        default=True,
        description="Run PyTorch models in its inference mode; false: only without gradients.",
    )
    lenient_feeds: bool = Field(
        default=False,
        description="Run an ONNX model on feeds without elements and on texts that are no UTF-8, as Triton "
        "does; false: reject them.",
    )
    inter_op_thread_num: PositiveInt = Field(
        default=1,
        description="Operators of an ONNX model that ONNX Runtime runs beside each other, where it has "
        "branches.",
    )
    mem_optim: bool = Field(default=True, description="Reuse memory between operators.")
    ir_optim: bool = Field(default=False, description="Run the graph optimisations of the engine.")
    device_type: Annotated[Int, Field(ge=-1, le=6)] = Field(
        default=-1,
        description="-1 by `devices`, 0 cpu, 1 gpu, 2 tensorRT, 3 arm cpu, 4 xpu, 5 Ascend310, 6 Ascend910.",
    )
    devices: str = Field(
        default="",
        description='Cards, e.g. "0,1"; instances take them round robin. Empty: the CPU.',
        pattern=r"^(\d+(,\d+)*)?$",
    )
    precision: PrecisionOrAuto = Field(
        default="fp32",
        description="Arithmetic of the predictor; one that the engine can't run on the device is fp32, with "
        "a warning. `auto`: bf16 and the model's int8 form, too, where one is faster and answers as fp32 on "
        "at least 256 real rows (sample.npz beside the model).",
    )
    strict_precision: bool = Field(
        default=False,
        description="End the start where `precision` or `use_calib` would have no effect, in place of the "
        "warning.",
    )
    use_calib: bool = Field(default=False, description="Calibrate int8 in TensorRT.")
    use_mkldnn: bool | None = Field(
        default=None,
        description="oneDNN on the CPU. Absent: off, as in Paddle Serving, and on with `precision: bf16`; "
        "with `engine: auto` on where it is faster and answers alike on real rows of two sizes (sample.npz "
        "beside the model).",
    )
    mkldnn_cache_capacity: Annotated[Int, Field(ge=0)] = Field(
        default=0,
        description="Input shapes whose oneDNN primitives are kept; 0: chosen from the length buckets.",
    )
    mkldnn_op_list: Names | None = Field(
        default=None, description="Operators oneDNN runs; absent: all it can."
    )
    mkldnn_bf16_op_list: Names | None = Field(default=None, description="Operators oneDNN runs in bf16.")
    min_subgraph_size: PositiveInt = Field(
        default=3, description="Smallest subgraph handed to TensorRT, in operators."
    )
    fetch_list: Names = Field(default=[], description="Alias names of the outputs to return; empty: all.")
    tensorrt: TensorRtConf = Field(
        default=TensorRtConf(), description="TensorRT engine: precision, cache, shapes."
    )

    @field_validator("devices", mode="before")
    @classmethod
    def _devices_as_text(cls, value: Any) -> Any:
        """Convert `devices: 0`, `[0, 1]` and `"0, 1"` to the form `"0,1"`."""
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, list):
            value = ",".join(str(item) for item in value)
        return value.replace(" ", "") if isinstance(value, str) else value


class FeedPaddingConfig(Section):
    """Padding of one model input (feed): the axis and the value."""

    axis: PositiveInt = Field(description="Axis that may be padded; 0 is the batch and can't be.")
    value: float = Field(default=0.0, description="What the padding holds.")


class FetchPaddingConfig(Section):
    """The axis of a model output (fetch) that is cut back after padding."""

    axis: PositiveInt = Field(description="Axis that is cut back to the row's own length.")

    @model_validator(mode="before")
    @classmethod
    def _axis_alone(cls, data: Any) -> Any:
        return {"axis": data} if isinstance(data, int | str) else data


class PaddingConfig(Section):
    """`op.<name>.padding`: axes that may be padded, so that requests of different shapes share a batch."""

    feeds: dict[str, FeedPaddingConfig] = Field(
        default={}, description="Per feed: the axis and the pad value."
    )
    fetches: dict[str, FetchPaddingConfig] = Field(default={}, description="Per fetch: the axis to cut back.")
    max_length: PositiveInt | None = Field(
        default=None,
        description="Longest padded row; longer rows share a batch with rows of equal shape only. Absent: no "
        "limit but the model's own.",
    )


class OpConfig(Section):
    """`op.<name>`: settings of one Op (a step of the service)."""

    concurrency: PositiveInt = Field(default=1, description="Instances of this Op.")
    max_concurrency: PositiveInt | None = Field(
        default=None,
        description="Most instances of this Op: further worker processes start while requests wait longer "
        "than `scale_wait`, and end a minute after they were needed last. Absent: `concurrency`, always.",
    )
    scale_wait: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=0.1, description="Expected seconds in the queue above which `max_concurrency` adds instances."
    )
    placement: Placement = Field(
        default="auto",
        description="Instances as a process each, or as threads of one process. `auto`: as dag.is_thread_op; "
        "without that key, and beside another `auto`, as measured here. Instances of a Paddle model are "
        "processes in any case.",
    )
    timeout: Annotated[Int, off_when_not_positive(-1)] = Field(
        default=-1,
        description="Milliseconds one try of this Op may take, from when an instance begins with it; -1, 0: "
        "none of its own. What is over is abandoned, and its worker replaced while it goes on. "
        "With server_endpoints: milliseconds of one call; -1, 0: dag.request_timeout.",
    )
    retry: Annotated[Int, Field(ge=0)] = Field(
        default=1,
        description="Tries of this Op in all, when `timeout` is over; 0 and 1: a single one. With "
        "server_endpoints also when an endpoint fails; each try asks the next endpoint.",
    )
    batch_size: NumberOrAuto = Field(
        default=1,
        description="Most requests merged into one predictor batch; `auto`: up to 32, as many at a time as "
        "cost the least by the times measured here. With pipeline_grpc nothing is merged; the more, the more "
        "calls an instance has under way together.",
    )
    auto_batching_timeout: Annotated[float, Field(allow_inf_nan=False), off_when_not_positive(0)] = Field(
        default=0.0,
        description="Milliseconds a partial batch waits, from its oldest request on; 0 and -1: only a "
        "little, 5 at most, for callers that were answered just before.",
    )
    max_batch_rows: PositiveInt | None = Field(
        default=None, description="Most rows given to the predictor at once."
    )
    max_batch_tokens: PositiveInt | None = Field(
        default=None, description="Most elements (rows x longest row) given to the predictor at once."
    )
    length_buckets: list[PositiveInt] | None = Field(
        default=None, description="Lengths that padded batches are rounded up to; absent: chosen by us."
    )
    padding: PaddingConfig | None = Field(
        default=None, description="Axes that may be padded; absent: as the model directory declares."
    )
    run_timeout: Seconds | None = Field(
        default=None,
        description="Seconds a run may take before its worker is killed and replaced; 0 or absent: 5 after "
        "the latest deadline, or after `timeout`.",
    )
    start_timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=600.0,
        description="Seconds an instance has for init_op, loading and warm-up, once its process is started.",
    )
    probe_interval: Seconds = Field(
        default=10.0,
        description="Seconds an instance is idle before it runs its model once more, so that readiness "
        "knows; one that fails or hangs is replaced. 0: never.",
    )
    max_requests_per_worker: PositiveInt | None = Field(
        default=None, description="Requests a worker answers before it is exchanged for a new one."
    )
    max_worker_rss: PositiveInt | None = Field(
        default=None,
        description="Resident memory of a worker in MB (10^6 bytes); over it, it is exchanged for a new one.",
    )
    crash_retry: bool = Field(
        default=True,
        description="Run requests of a worker that died or hangs again, on another instance, each alone.",
    )
    warmup: bool = Field(default=True, description="Run the predictor before the instance counts as ready.")
    local_service_conf: LocalServiceConf | None = Field(
        default=None, description="The model, run in our worker."
    )
    server_endpoints: Names = Field(
        default=[],
        description="host:port of the services that run this Op's model, asked in turn; one that fails is "
        "passed over. Given, local_service_conf is not used.",
    )
    client_type: ClientType | None = Field(
        default=None,
        description="What the server_endpoints speak: grpc is KServe v2 over gRPC (Triton, say), "
        "pipeline_grpc another Pipeline service; brpc is refused. Absent: dag.client_type.",
    )
    model_name: str = Field(
        default="", description="The model's name on the server_endpoints, with grpc; empty: the Op's name."
    )
    server_api_key_file: str = Field(
        default="",
        description="File that holds the API key to be shown to the server_endpoints (metadata "
        "`authorization: Bearer KEY`, not encrypted); read again when they refuse it.",
    )
    client_config: str = Field(
        default="",
        description="Accepted and unused: a remote KServe v2 service tells its feeds and fetches itself.",
    )
    fetch_list: Names = Field(
        default=[],
        description="Alias names of the outputs to return, or keys of a pipeline_grpc answer; empty: all.",
    )
    use_encryption_model: bool = Field(default=False, description="The remote model is encrypted.")
    encryption_key: str = Field(default="", description="Key of the encrypted model.")

    @property
    def local_model(self) -> LocalServiceConf | None:
        """Settings of the model that the Op's own workers load; None without a local model."""
        conf = self.local_service_conf
        return None if conf is None or not conf.model_dir or self.server_endpoints else conf

    @property
    def has_model(self) -> bool:
        """Whether a model is configured, in the Op's workers or on remote servers."""
        return bool(self.server_endpoints) or self.local_model is not None

    @field_validator("max_concurrency")
    @classmethod
    def _at_least_concurrency(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and value < info.data.get("concurrency", 1):
            raise ValueError("max_concurrency is below concurrency")
        return value

    @field_validator("length_buckets")
    @classmethod
    def _ascending(cls, value: list[int] | None) -> list[int] | None:
        if value is not None and value != sorted(set(value)):
            raise ValueError("lengths must ascend, each once")
        return value

    @field_validator("server_endpoints")
    @classmethod
    def _host_and_port(cls, value: list[str]) -> list[str]:
        for endpoint in value:
            host_and_port = re.fullmatch(r"(?:\[[0-9a-fA-F:]+\]|[^\s:/]+):(\d{1,5})", endpoint)
            if host_and_port is None or not 0 < int(host_and_port[1]) < 65536:
                raise ValueError(f"{endpoint!r} is not host:port")
        return value


MAX_TRY_MS = 600_000  # where neither op.<name>.timeout nor dag.request_timeout bounds a call
CHOICE = (
    "pipeline_grpc for another Pipeline service, grpc for a KServe v2 service (Triton, say); or remove "
    "server_endpoints and run the model here, with local_service_conf"
)


def find_remote_errors(name: str, section: OpConfig, default: ClientType | None) -> list[str]:
    """Return error messages for the settings of a remote model server in the section `op.NAME`.

    `default` is `dag.client_type`, the protocol of sections that name no protocol. Empty for a valid section.
    """
    if not section.server_endpoints:
        remote = {
            "model_name": "it names a remote model",
            "server_api_key_file": "its key is for server_endpoints",
        }
        present = [key for key in remote if getattr(section, key)]
        return [f"op.{name}.{key}: {remote[key]}; give server_endpoints, or remove it" for key in present]
    client_type = section.client_type or default
    match client_type:
        case "grpc":
            return []
        case "pipeline_grpc" if section.model_name:
            return [f"op.{name}.model_name: a Pipeline service has no models to choose from; remove it"]
        case "pipeline_grpc":
            return []
        case "brpc":
            key = f"op.{name}.client_type" if section.client_type else "dag.client_type"
            return [f"{key}: 'brpc' given; there is no brpc client for this Python. Choose {CHOICE}"]
        case "local_predictor":
            return [f"op.{name}.client_type: 'local_predictor' given, with server_endpoints. Choose {CHOICE}"]
        case None:
            return [
                f"op.{name}.client_type: missing; what do the server_endpoints speak? Paddle Serving took "
                f"brpc, for which this Python has no client. Choose {CHOICE}"
            ]


def complete_section(
    name: str, section: OpConfig, default: ClientType | None, request_timeout_s: float
) -> OpConfig:
    """Return an `op.NAME` section with the defaults of its remote model server filled in.

    Sections without `server_endpoints` stay unchanged. `default` is `dag.client_type`, the protocol of
    sections that name no protocol.
    """
    if not section.server_endpoints:
        return section
    client_type = section.client_type or default
    return section.model_copy(
        update={
            "client_type": client_type,
            "model_name": section.model_name or (name if client_type == "grpc" else ""),
            "timeout": section.timeout
            if section.timeout > 0
            else int(request_timeout_s * 1000) or MAX_TRY_MS,
            "local_service_conf": None,  # as in Paddle Serving, endpoints win over it
        }
    )


MAX_BYTES = 4096
_KEY = re.compile(rb"[!-~]+")

Metadata = tuple[tuple[str, str], ...]


class RemoteKey:
    """The API key for a remote server, as gRPC `metadata` of each call; empty without a key file."""

    def __init__(self, path: str) -> None:
        """Read the key file at `path`; an empty path means no key. Raises ConfigError for an invalid file."""
        self._path = path
        self.metadata: Metadata = _build_metadata(path)

    def reread(self, refused: Metadata) -> bool:
        """Read the key file again, after the server rejected a key. Return whether the key has changed.

        `refused` is the rejected metadata.
        """
        try:
            self.metadata = _build_metadata(self._path)
        except ConfigError:  # the file is just being written
            return False
        return self.metadata != refused


def check_remote_key(op: str, path: str) -> list[str]:
    """Return error messages for the file with a remote model server's API key; empty if the file is valid.

    `op` is the name of the section in config.yml.
    """
    try:
        read_remote_key(path)
    except ConfigError as exc:
        return [f"op.{op}.{exc.message}"]
    return []


def _build_metadata(path: str) -> Metadata:
    return (("authorization", f"Bearer {read_remote_key(path)}"),) if path else ()


def read_remote_key(path: str) -> str:
    """Return the API key in a file. Raises ConfigError, whose message never contains the key."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1).strip()
    except OSError as exc:
        raise ConfigError(f"server_api_key_file: {path} can't be read ({exc.strerror})") from exc
    if len(data) > MAX_BYTES or not _KEY.fullmatch(data):
        raise ConfigError(
            f"server_api_key_file: {path} has to hold the key and nothing else, of printable ASCII characters"
        )
    return data.decode()

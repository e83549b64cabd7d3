"""The `dag` section of config.yml: settings that apply to whole requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, ValidationInfo, field_validator

from pipeline.config.value_types import ClientType, Int, Port, PositiveInt, Seconds, Section

DEFAULT_MAX_PENDING_REQUESTS = 1000


class TracerConfig(Section):
    """`dag.tracer`: periodic log lines."""

    interval_s: Int = Field(
        default=-1, description="Seconds between lines in the log about the work of each Op; -1: none."
    )


class DagConfig(Section):
    """`dag`: settings that apply to whole requests."""

    is_thread_op: bool = Field(
        default=True,
        description="Instances of an Op without a Paddle model are threads of one process; false: processes.",
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
        default=1_000_000,
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

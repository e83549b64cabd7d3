"""`trace` of config.yml: which requests are traced, and the file or collector that gets the traces."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from pipeline.config.report import BETWEEN_KEYS
from pipeline.config.value_types import Int, PositiveInt, Section

MAX_RATE, MAX_COUNT = (1 << 32) - 1, (1 << 31) - 1
LEVELS = ("TIMESTAMPS", "TENSORS")
DEFAULT_URL = "http://localhost:4318/v1/traces"
SERVICE_NAME = "service.name"
Level = Literal["TIMESTAMPS", "TENSORS"]
Attribute = Annotated[str, Field(pattern=r"^[^=]+=")]


class TraceConfig(Section):
    """`trace`: traces of requests, as Triton's `--trace-config` configures them."""

    mode: Literal["triton", "opentelemetry"] = Field(
        default="triton",
        description="triton: a JSON file; opentelemetry: spans for a collector, by OTLP over HTTP.",
    )
    level: list[Level] = Field(
        default=[],
        description="TIMESTAMPS: instants of each request; TENSORS: also its inputs and outputs, which needs "
        "mode triton; absent: requests are not traced until a client sets a level.",
    )
    rate: Annotated[Int, Field(ge=0, le=MAX_RATE)] = Field(
        default=1000,
        description="Every rate-th request is traced. A request with the header `traceparent` always is; "
        "0: no other.",
    )
    count: Annotated[Int, Field(ge=-1, le=MAX_COUNT)] = Field(
        default=-1, description="Traces to collect, then none; -1: any number."
    )
    trace_file: str = Field(
        default="", description="File of the traces, with mode triton; absent: requests can't be traced."
    )
    log_frequency: Annotated[Int, Field(ge=0, le=MAX_RATE)] = Field(
        default=0, description="Traces of a file, FILE.0, FILE.1, ...; 0: all are in one file."
    )
    url: str = Field(default=DEFAULT_URL, description="The collector, with mode opentelemetry.")
    resource: list[Attribute] = Field(
        default=[],
        description="Attributes of the server in its spans, as KEY=VALUE; `service.name` names the server.",
    )
    bsp_max_queue_size: PositiveInt = Field(
        default=2048, description="Traces that wait to be written or sent; more are dropped and counted."
    )
    bsp_schedule_delay: PositiveInt = Field(
        default=5000, description="Milliseconds from one transmission to the collector to the next."
    )
    bsp_max_export_batch_size: PositiveInt = Field(
        default=512, description="Spans of a transmission; it is sent at once when so many wait."
    )

    @field_validator("level", mode="before")
    @classmethod
    def _list_levels(cls, value: Any) -> Any:
        if value is False or value == "OFF":  # YAML reads `off` as false
            return []
        return [value] if isinstance(value, str) else value

    @field_validator("bsp_max_export_batch_size")
    @classmethod
    def _fits_queue(cls, value: int, info: ValidationInfo) -> int:
        if value > info.data.get("bsp_max_queue_size", value):
            raise PydanticCustomError(
                BETWEEN_KEYS, "bsp_max_export_batch_size is over bsp_max_queue_size; spans would be dropped"
            )
        return value

    @field_validator("url")
    @classmethod
    def _names_collector(cls, value: str) -> str:
        try:
            parts = urlsplit(_complete_url(value))
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            raise PydanticCustomError(
                BETWEEN_KEYS, "url is no address such as http://localhost:4318/v1/traces"
            )
        return value

    @property
    def collector_url(self) -> str:
        """URL of the trace collector, including its scheme."""
        return _complete_url(self.url)

    @property
    def is_possible(self) -> bool:
        """Whether requests can be traced: there is a collector or a file, and clients may set a level."""
        return self.mode == "opentelemetry" or bool(self.trace_file)


def _complete_url(url: str) -> str:
    """Return a URL completed with a scheme: addresses in Triton's documentation have no scheme."""
    return url if "://" in url else f"http://{url}"

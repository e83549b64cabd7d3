"""Limits on the requests, responses and connections of a client."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipeline.config.value_types import Int, PositiveInt, Seconds, Section


class Limits(Section):
    """`limits`: maximum sizes and counts of a client's requests. Larger requests are rejected, not cut."""

    body_bytes: PositiveInt = Field(default=64 << 20, description="Bytes of an HTTP body or gRPC message.")
    bodies_bytes: PositiveInt = Field(
        default=2 << 30,
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
        default=1.0, description="Seconds from one rendering of /metrics to the next; requests wait for it."
    )
    max_connections: PositiveInt = Field(default=10_000, description="Open connections of each port.")
    connection_calls: PositiveInt = Field(
        default=1000, description="Calls under way on one gRPC connection; a client holds further ones back."
    )

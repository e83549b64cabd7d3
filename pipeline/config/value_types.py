"""Base class of config.yml's sections, and pydantic types of their values."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError, PydanticKnownError

from pipeline.plugins import ENGINES, find


def refuse_bool(value: Any) -> Any:
    """Raise ValueError for a boolean, which pydantic would accept as an integer; return other values."""
    if isinstance(value, bool):
        raise ValueError("expected an integer, not a boolean")
    return value


def as_list(value: Any) -> Any:
    """Split a text like `a, b` into a list, as Paddle Serving does; return other values unchanged."""
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    return value


def lower_case(value: Any) -> Any:
    """Convert a text to lower case, because Paddle Serving accepts `FP16` for `fp16`.

    Returns other values unchanged.
    """
    return value.lower() if isinstance(value, str) else value


def off_when_not_positive(off: int) -> BeforeValidator:
    """Return a pydantic validator that turns 0 and negative numbers into `off`, as Paddle Serving does."""

    def normalise(value: Any) -> Any:
        refuse_bool(value)
        try:
            return off if float(value) <= 0 else value
        except (TypeError, ValueError):
            return value

    return BeforeValidator(normalise)


MIN_PORT, MAX_PORT = 1024, 65535
OFF = -1  # a port that is not opened
AUTO = "auto"  # `engine` and `precision`: the fastest on this machine, see pipeline/tuning
AUTO_NUMBER = -1  # `batch_size: auto` and `shards: auto`, as a number


def _known_engine(name: str) -> str:
    engines = find(ENGINES)
    if name.strip().lower() == AUTO:
        return AUTO
    if name not in engines:
        expected = " or ".join(map(repr, [*engines, AUTO]))
        raise PydanticKnownError("literal_error", {"expected": expected})
    return name


def _parse_number_or_auto(value: Any, parse_number: ValidatorFunctionWrapHandler) -> int:
    """Parse a positive number. The text `auto` becomes AUTO_NUMBER."""
    if isinstance(value, str) and value.strip().lower() == AUTO:
        return AUTO_NUMBER
    try:
        number: int = parse_number(value)
    except ValidationError as exc:
        raise ValueError(f"expected an integer from 1 on, or {AUTO!r}") from exc
    return number


def _address(value: str) -> str:
    try:
        return str(ipaddress.ip_address("127.0.0.1" if value == "localhost" else value))
    except ValueError:
        raise PydanticCustomError("address", "Input should be an IP address, such as 127.0.0.1") from None


def _port_or_off(value: int) -> int:
    if value != OFF and value < MIN_PORT:
        raise PydanticKnownError("greater_than_equal", {"ge": MIN_PORT})
    if value > MAX_PORT:
        raise PydanticKnownError("less_than_equal", {"le": MAX_PORT})
    return value


Int = Annotated[int, BeforeValidator(refuse_bool)]
PositiveInt = Annotated[Int, Field(ge=1)]
Address = Annotated[str, AfterValidator(_address)]


def is_loopback(address: str) -> bool:
    """Whether an IP address is reachable from this machine only. An empty address means all interfaces."""
    return bool(address) and ipaddress.ip_address(address).is_loopback


Port = Annotated[Int, Field(ge=MIN_PORT, le=MAX_PORT)]
PortOrOff = Annotated[
    Int,
    AfterValidator(_port_or_off),
    PlainSerializer(lambda value: False if value == OFF else value, return_type=int | bool),
    WithJsonSchema({"type": "integer", "minimum": 1024, "maximum": 65535}),
]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Names = Annotated[list[str], BeforeValidator(as_list)]
Precision = Annotated[Literal["fp32", "fp16", "bf16", "int8"], BeforeValidator(lower_case)]
Placement = Annotated[Literal["auto", "process", "thread"], BeforeValidator(lower_case)]
NumberOrAuto = Annotated[
    PositiveInt,
    WrapValidator(_parse_number_or_auto),
    PlainSerializer(lambda value: AUTO if value == AUTO_NUMBER else value, return_type=int | str),
    WithJsonSchema({"type": "integer", "minimum": 1}),
]
PrecisionOrAuto = Annotated[Literal["fp32", "fp16", "bf16", "int8", "auto"], BeforeValidator(lower_case)]
EngineName = Annotated[str, AfterValidator(_known_engine)]
ClientType = Literal["brpc", "grpc", "pipeline_grpc", "local_predictor"]


class Section(BaseModel):
    """Base class of config.yml's sections: immutable, rejects unknown keys, ignores keys without a value."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        ser_json_inf_nan="strings",  # a pad value may be -inf, and workers receive this as JSON
        validate_default=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_is_absent(cls, data: Any) -> Any:
        if data is None:
            return {}
        if isinstance(data, Mapping):
            return {key: value for key, value in data.items() if value is not None}
        return data

"""Reading a key/value message as the HTTP port does, with or without success."""

from __future__ import annotations

import pytest

from pipeline.config.config_file import Limits
from pipeline.dialects.key_value.front import parse_http
from pipeline.errors import ServingError
from pipeline.front.dag_run import Request

LIMITS = Limits()
EXAMPLE = '{"key": ["0"], "value": ["..."]}'


def http(body: bytes | str, limits: Limits = LIMITS) -> Request:
    return parse_http(body if isinstance(body, bytes) else body.encode(), "bert", "prediction", limits)


def refusal(body: bytes | str, limits: Limits = LIMITS) -> ServingError:
    with pytest.raises(ServingError) as caught:
        http(body, limits)
    assert caught.value.message.endswith(f". A valid message: {EXAMPLE}")
    return caught.value

"""Requests recorded from Triton 2.51 over gRPC, sent to stand-ins for its models: answers as recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.service_process import ServiceProcess
from tests.support.triton_recordings import GRPC, recorded_grpc, replayed_grpc


@pytest.mark.parametrize("row", GRPC, ids=lambda row: row["id"])
def test_the_answer_is_the_recorded_one(row: dict[str, Any], triton: Callable[[str], ServiceProcess]) -> None:
    assert replayed_grpc(row, triton) == recorded_grpc(row)

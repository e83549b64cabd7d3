"""Requests and answers recorded from Paddle Serving 0.9."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

RECORDINGS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "fixtures/paddle_serving.jsonl").read_text("utf-8").splitlines()
]


def recorded(case: str) -> dict[str, Any]:
    """The first recording of this name."""
    return next(row for row in RECORDINGS if row["case"] == case)


def body_of(recording: dict[str, Any]) -> bytes:
    """What was posted."""
    request = recording["request"]
    return base64.b64decode(request["body_b64"]) if "body_b64" in request else request["body"].encode()

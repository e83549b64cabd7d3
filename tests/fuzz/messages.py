"""The recorded requests that mutation begins with, and the inputs that were once answered wrongly."""

from __future__ import annotations

import base64
import contextlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from client.protos.kserve_v2_pb2 import ModelInferRequest
from client.protos.pipeline_service_pb2 import Request

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
CORPUS = ROOT / "tests" / "fuzz" / "corpus"  # a folder a codec, a file an input once answered wrongly


@cache
def recordings(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FIXTURES / f"{name}.jsonl").read_text("utf-8").splitlines()]


def kept(codec: str) -> list[bytes]:
    """The inputs that a codec once answered wrongly."""
    return [path.read_bytes() for path in sorted((CORPUS / codec).glob("*"))]


def key_value_bodies() -> list[bytes]:
    rows = [row["request"] for row in recordings("paddle_serving") if row["request"]["proto"] == "http"]
    bodies = [
        base64.b64decode(row["body_b64"]) if "body_b64" in row else (row.get("body") or "").encode()
        for row in rows
    ]
    return sorted({body for body in bodies if body and len(body) < 4096})


def pipeline_messages() -> list[bytes]:
    rows = [row["request"] for row in recordings("paddle_serving")]
    messages = {base64.b64decode(row["wire_b64"]) for row in rows if "wire_b64" in row}
    return sorted(message for message in messages if len(message) < 4096)


def pipeline_calls() -> list[bytes]:
    """Those that are messages, without the name of a service."""
    calls = []
    for data in pipeline_messages():
        with contextlib.suppress(DecodeError):
            message = Request.FromString(data)
            message.name = ""
            calls.append(message.SerializeToString())
    return calls


def v2_calls(model: str) -> list[bytes]:
    """Every recorded message, to the given model."""
    calls = []
    for data in v2_messages():
        message = ModelInferRequest.FromString(data)
        message.model_name, message.model_version = model, ""
        calls.append(message.SerializeToString())
    return calls


def v2_bodies() -> list[bytes]:
    """Each after a line with the length of its JSON document, -1 where the header is absent."""
    bodies = []
    for row in recordings("triton"):
        if row["source"] != "http" or not row["request"]["path"].endswith("/infer"):
            continue
        request = row["request"]
        told = request.get("body") or {"text": ""}
        if "elided_bytes" in told:
            continue
        body = base64.b64decode(told["base64"]) if "base64" in told else told["text"].encode()
        length = request["headers"].get("Inference-Header-Content-Length", "-1")
        bodies.append(length.encode() + b"\n" + body)
    return sorted({body for body in bodies if len(body) < 4096})


def v2_settings() -> list[bytes]:
    """What was sent to register shared memory, and to change trace and log settings."""
    rows = [row["request"] for row in recordings("triton") if row["source"] == "http"]
    bodies = {row["body"]["text"] for row in rows if row["path"].endswith(("setting", "logging", "register"))}
    whole = {"key": "/a", "offset": 8, "byte_size": 64, "trace_level": ["OFF"], "log_info": True}
    return sorted(body.encode() for body in {*bodies, json.dumps(whole)} if body)


def v2_messages() -> list[bytes]:
    messages = []
    for row in recordings("triton"):
        for told in [row["request"]] if row.get("method") == "ModelInfer" else row.get("requests", []):
            if "elided" not in told:
                messages.append(ParseDict(told, ModelInferRequest()).SerializeToString())
    return sorted({message for message in messages if len(message) < 4096})

"""Triton's own clients, an old and a new one, each in a process of its own, by every way that they ask."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.service_process import APPS, ROOT, ServiceProcess

PROGRAM = ROOT / "tests" / "support" / "clients" / "every_call.py"
OLD_CLIENTS = Path(sys.prefix) / "old_clients"
SUMS = [240, 0]
TEXTS = ["国足", "", "a\0b"]


@pytest.fixture(scope="module")
def strings() -> Iterator[ServiceProcess]:
    """A model that clients may unload."""
    env = {"MODEL": "identity_string"}
    with ServiceProcess(APPS / "triton.py", name="identity_string", env=env) as service:
        yield service


@pytest.fixture(scope="module", params=["2.6", "2.7"])
def told(
    triton: Callable[[str], ServiceProcess], strings: ServiceProcess, request: pytest.FixtureRequest
) -> dict[str, Any]:
    """What the program printed, by the way that it asked."""
    services = triton("simple"), strings
    addresses = [f"127.0.0.1:{port}" for each in services for port in (each.http_port, each.rpc_port)]
    env = dict(os.environ)
    if request.param == "2.6":
        assert OLD_CLIENTS.is_dir(), "Triton's older client is missing: docker/install.sh dev .venv"
        env["PYTHONPATH"] = str(OLD_CLIENTS)
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *addresses],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answered: dict[str, Any] = json.loads(done.stdout)
    assert answered["version"].startswith(request.param)
    return answered


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_it_asks_and_waits(told: dict[str, Any], protocol: str) -> None:
    sync = told[f"{protocol} sync"]
    assert sync["numbers"] == SUMS and sync["texts"] == TEXTS and sync["request id"] == "7"
    assert sync["one output"] == [True, 0]
    assert sync["classes"] == ["30:15", "28:14"]
    assert sync["refused"] == "Request for unknown model: 'nope' is not found"
    assert sync["ready"] == [True, True, True]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_it_learns_what_there_is(told: dict[str, Any], protocol: str) -> None:
    assert told[f"{protocol} told"] == {
        "server": "triton",
        "inputs": ["INPUT0", "INPUT1"],
        "max_batch_size": 8,
        "counted": True,
        "index": [["simple", "READY"]],
        "trace": True,
        "log": True,
    }


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_it_leaves_and_finds_tensors_in_shared_memory(told: dict[str, Any], protocol: str) -> None:
    lying = told[f"{protocol} shared memory"]
    assert lying == {"numbers": SUMS, "texts": TEXTS, "regions": ["given", "got"]}


def test_it_sends_and_reads_json_and_compresses(told: dict[str, Any]) -> None:
    assert told["http json"] == {"numbers": SUMS, "texts": ["国足", "", "ab"], "compressed": [SUMS, SUMS]}


def test_it_asks_and_is_called_back(told: dict[str, Any]) -> None:
    assert told["http async"] == [SUMS] * 4
    assert told["grpc async"] == [SUMS] * 4


def test_it_streams(told: dict[str, Any]) -> None:
    assert told["grpc stream"] == {
        "simple": [SUMS] * 4,
        "simple ids": list("0123"),
        "identity_string": [TEXTS] * 4,
        "identity_string ids": list("0123"),
    }


def test_it_unloads_and_loads(told: dict[str, Any]) -> None:
    assert told["control"] == {
        "unloaded": [False, "UNAVAILABLE"],
        "loaded": True,
        "texts": TEXTS,
        "refused": "failed to load 'nope', failed to poll from model repository",
    }


def test_it_asks_from_asyncio(told: dict[str, Any]) -> None:
    expected = {"numbers": [SUMS] * 4, "texts": TEXTS, "statistics": 1}
    assert told["http asyncio"] == {**expected, "ready": True}
    assert told["grpc asyncio"] == {**expected, "streamed": [SUMS] * 4}

"""Traces across services: an Op with `server_endpoints` passes its trace on to the remote service."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.collector import Collector
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import APPS, ServiceProcess, key_value, wait_until
from tests.support.triton_repository import write_model

APP = APPS / "remote.py"
ECHO = """
backend: "identity"
input { name: "x" data_type: TYPE_FP32 dims: [ -1, -1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1, -1 ] }
"""
CLIENT_SPAN = "b7ad6b7169203331"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def trace_section(collector: Collector, name: str) -> dict[str, Any]:
    """The section `trace` of a service that traces only requests with the header `traceparent`."""
    return {
        "mode": "opentelemetry",
        "level": "TIMESTAMPS",
        "rate": 0,
        "url": f"http://127.0.0.1:{collector.port}/v1/traces",
        "resource": [f"service.name={name}"],
        "bsp_schedule_delay": 50,
    }


@pytest.fixture(scope="module")
def service(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A script service. Its Op `ask` calls another script service, its Op `echo` a repository."""
    folder = tmp_path_factory.mktemp("models")
    (write_model(folder, "echo", ECHO) / "1").mkdir(exist_ok=True)
    settings = trace_section(collector, "repository")
    flags = [f"{key}={settings[key]}" for key in ("mode", "level", "rate")]
    flags += [f"opentelemetry,url={settings['url']}", "opentelemetry,resource=service.name=repository"]
    flags += ["opentelemetry,bsp_schedule_delay=50"]
    with (
        ServiceProcess(APP, {"trace": trace_section(collector, "told")}, arguments=["told"]) as told,
        RepositoryProcess(folder, arguments=[f"--trace-config={flag}" for flag in flags]) as repository,
    ):
        ops = {
            "ask": {"server_endpoints": [told.rpc_address], "client_type": "pipeline_grpc"},
            "echo": {"server_endpoints": [repository.rpc_address], "client_type": "grpc"},
        }
        config = {"trace": trace_section(collector, "front"), "op": ops}
        with ServiceProcess(APP, config, arguments=["ask", *ops]) as service:
            yield service


@pytest.mark.parametrize(("op", "remote"), [("ask", "told"), ("echo", "repository")])
def test_the_spans_of_a_remote_service_continue_those_of_the_op(
    service: ServiceProcess, collector: Collector, op: str, remote: str
) -> None:
    inputs = {"op": op, "arrays": json.dumps({"x": ["float32", [[1]]]})}
    service.predict(inputs)  # without the header: neither service traces the request
    trace_id = secrets.token_hex(16)
    headers = {"traceparent": f"00-{trace_id}-{CLIENT_SPAN}-01"}
    assert service.http("/test/prediction", key_value(inputs), headers=headers).json["err_no"] == 0

    def list_ancestors() -> list[tuple[str, str]]:
        """The service and name of each span from the remote service's first up to the client's."""
        spans = {span["spanId"]: span for span in collector.spans if span["traceId"] == trace_id}
        names = []
        for span in spans.values():
            if collector.services[span["spanId"]] == remote and span["name"] == "InferRequest":
                while span is not None:
                    names.append((collector.services[span["spanId"]], span["name"]))
                    above = span["parentSpanId"]
                    span = spans.get(above)
                names.append(("client", above))
        return names

    expected = [
        (remote, "InferRequest"),
        ("front", op),
        ("front", "test"),
        ("front", "InferRequest"),
        ("client", CLIENT_SPAN),
    ]
    wait_until(
        lambda: list_ancestors() == expected, "the spans join", on_timeout=lambda: str(collector.spans)
    )
    requests = [span for span in collector.spans if collector.services[span["spanId"]] == remote]
    assert len([span for span in requests if span["name"] == "InferRequest"]) == 1

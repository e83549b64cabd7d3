"""What config.yml may say about remote Ops, and what it means where it is silent."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline import Op, RequestOp, WebService
from pipeline.config.config_file import OpConfig
from pipeline.errors import ConfigError

ENDPOINTS = ["10.0.0.1:8088", "[::1]:8088", "models.example:9000"]


class Remote(WebService):
    def get_pipeline_response(self, read_op: RequestOp) -> Op:
        return Op(name="b", input_ops=[Op(name="a", input_ops=[read_op], server_endpoints=ENDPOINTS)])


def resolved(a: dict[str, Any], b: dict[str, Any] | None = None, **dag: Any) -> dict[str, OpConfig]:
    service = Remote(name="test")
    service.prepare_pipeline_config(
        yml_dict={"http_port": 18082, "dag": dag, "op": {"a": a, **({"b": b} if b else {})}}
    )
    _, _, config = service.resolve()
    return config.op


def test_endpoints_given_to_the_op_are_served_as_the_dag_says() -> None:
    op = resolved({}, client_type="grpc", request_timeout=7.5)["a"]
    assert op.server_endpoints == ENDPOINTS
    assert (op.client_type, op.model_name, op.timeout) == ("grpc", "a", 7500)


def test_what_the_op_says_goes_before_the_dag() -> None:
    given = {"client_type": "grpc", "model_name": "m", "timeout": 20}
    op = resolved(given, client_type="pipeline_grpc")["a"]
    assert (op.client_type, op.model_name, op.timeout) == ("grpc", "m", 20)


def test_a_call_is_bounded_also_where_requests_are_not() -> None:
    assert resolved({"client_type": "grpc"}, request_timeout=0)["a"].timeout == 600_000


def test_endpoints_go_before_a_local_model_as_in_paddle_serving() -> None:
    local = {"local_service_conf": {"model_config": "no/such/folder"}}
    assert resolved({"client_type": "pipeline_grpc", **local})["a"].local_service_conf is None


@pytest.mark.parametrize(
    ("a", "dag", "told"),
    [
        ({}, {}, "op.a.client_type: missing; what do the server_endpoints speak?"),
        ({"client_type": "brpc"}, {}, "op.a.client_type: 'brpc' given; there is no brpc client"),
        ({}, {"client_type": "brpc"}, "dag.client_type: 'brpc' given; there is no brpc client"),
        ({"client_type": "local_predictor"}, {}, "op.a.client_type: 'local_predictor' given, with server_"),
        (
            {"client_type": "pipeline_grpc", "model_name": "m"},
            {},
            "op.a.model_name: a Pipeline service has no models to choose from",
        ),
    ],
    ids=["missing", "brpc", "brpc-by-default", "local", "model-name"],
)
def test_mistakes_are_told_with_the_remedy_and_all_at_once(
    a: dict[str, Any], dag: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(a, {"model_name": "m"}, **dag)
    mine, other = caught.value.message.splitlines()
    assert mine.startswith(told)
    assert other.startswith("op.b.model_name: it names a remote model; give server_endpoints")


@pytest.mark.parametrize("endpoint", ["models.example", "http://models.example:80", "a:0", "a:65536", ":80"])
def test_an_endpoint_is_host_and_port(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="is not host:port"):
        resolved({}, {"server_endpoints": [endpoint], "client_type": "grpc"})

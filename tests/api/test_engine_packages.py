"""PipelineServer, and Ops of the script's own at both ends of the DAG."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from client.protos.pipeline_service_pb2 import Request, Tensor
from pipeline import Op, PipelineServer, RequestOp, ResponseOp
from pipeline.api.dag import collect_ops
from pipeline.errors import ConfigError
from pipeline.paddle_serving.channel_data import ChannelData
from tests.support.service_process import APPS, ServiceProcess, key_value

APP = APPS / "packages.py"


@pytest.fixture(scope="module")
def own() -> Iterator[ServiceProcess]:
    with ServiceProcess(APP, {"dag": {"http_errors": "status"}}, arguments=["own"]) as service:
        yield service


def test_the_app_unpacks_the_message_and_packs_the_answer_over_http(own: ServiceProcess) -> None:
    body = {"key": ["words", "x"], "value": ["two one", None], "logid": 7, "clientip": "10.0.0.1"}
    answer = own.http("/test/count", json.dumps(body)).json
    assert answer == {
        "err_no": 0,
        "err_msg": "",
        "key": ["packed", "words", "x", "from", "log_id", "inputs"],
        "value": ["1007", "[2 1]", "", "test/count 10.0.0.1", "1007", "@DAGExecutor"],
        "tensors": [],
    }


def test_the_app_unpacks_the_message_and_packs_the_answer_over_grpc(own: ServiceProcess) -> None:
    answer = own.rpc(Request(name="test", key=["words"], value=["zero"], logid=-1001))
    assert dict(zip(answer.key, answer.value, strict=True)) == {
        "packed": "-1",
        "words": "[0]",
        "from": "test/ ",
        "log_id": "-1",
        "inputs": "@DAGExecutor",
    }


def test_a_tensor_reaches_the_apps_own_unpacking_through_either_endpoint(own: ServiceProcess) -> None:
    tensor = Tensor(name="numbers", elem_type=0, shape=[2, 2], int64_data=[1, 2, 3, 4])
    message = Request(key=["words"], value=["one"], tensors=[tensor])
    over_grpc = own.rpc(message)
    tensors = [{"name": "numbers", "elem_type": 0, "shape": [2, 2], "int64_data": [1, "2", 3, 4]}]
    over_http = own.http("/test/x", json.dumps({"key": ["words"], "value": ["one"], "tensors": tensors})).json
    assert dict(zip(over_grpc.key, over_grpc.value, strict=True))["sum"] == "10"
    assert dict(zip(over_http["key"], over_http["value"], strict=True))["sum"] == "10"


def test_many_messages_at_once_keep_to_themselves(own: ServiceProcess) -> None:
    names = ["zero", "one", "two"]
    requests = [{"words": names[n % 3], "x": str(n)} for n in range(60)]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(own.predict, requests))
    assert [answer["x"] for answer in answers] == [request["x"] for request in requests]
    assert [answer["words"] for answer in answers] == [f"[{n % 3}]" for n in range(60)]


@pytest.mark.parametrize(
    ("inputs", "status", "err_no", "told"),
    [
        ({"unpack": "refuse"}, 400, 52, "packed 2 0: no words today"),
        (
            {"unpack": "list"},
            500,
            7000,
            "[@DAGExecutor] unpack_request_package returned list of 0; expected a dict",
        ),
        ({"unpack": "list id"}, 500, 7000, "returned list of 1 as log_id; expected a 64-bit integer"),
        ({"unpack": "raise"}, 500, 8000, "rpc package error: Log_id: 0  Raise_msg: no words"),
        ({"unpack": "nothing"}, 500, 7000, "unpack_request_package returned NoneType"),
        ({"words": "four"}, 500, 10000, "'four' is not in list"),
        ({"words": "one", "pack": "list"}, 500, 7000, "[@ResponseOp] pack_response_package returned list"),
        ({"words": "one", "pack": "raise"}, 500, 8000, "FunctionName: pack_response_package"),
        ({"words": "one", "pack": "refuse"}, 400, 53, "not packed"),
    ],
)
def test_a_refusal_of_either_end_and_of_an_op_has_its_number_and_status(
    own: ServiceProcess, inputs: dict[str, str], status: int, err_no: int, told: str
) -> None:
    answer = own.http("/test/prediction", key_value(inputs))
    assert (answer.status, answer.json["err_no"]) == (status, err_no)
    assert told in answer.json["err_msg"]
    assert own.predict({"words": "two"})["words"] == "[2]"


def test_what_unpacking_returns_alone_are_the_inputs(own: ServiceProcess) -> None:
    message = Request(key=["unpack", "x"], value=["dict", "1"], logid=5)
    answer = own.rpc(message)
    assert dict(zip(answer.key, answer.value, strict=True))["log_id"] == "5"


@pytest.mark.parametrize(("action", "log_id"), [("text id", "seven"), ("float id", "7.5"), ("no id", "None")])
def test_the_log_id_of_unpacking_reaches_the_hooks_with_its_type(
    own: ServiceProcess, action: str, log_id: str
) -> None:
    answer = own.predict({"unpack": action, "x": "1"})
    assert (answer["packed"], answer["log_id"], answer["x"]) == (log_id, log_id, "1")


def test_a_message_that_is_none_never_reaches_the_app(own: ServiceProcess) -> None:
    answer = own.http("/test/prediction", '{"key": [')
    assert (answer.status, answer.json["err_no"]) == (400, 8000)
    assert own.rpc(Request(name="other", key=["words"], value=["one"])).err_no == 3002


def test_the_defaults_may_be_built_upon() -> None:
    with ServiceProcess(APP, arguments=["defaults"]) as service:
        answer = service.predict({"x": "1"})
        assert answer == {
            "x": "1",
            "from": "the default",
            "log_id": "0",
            "inputs": "@DAGExecutor",
            "added": "after",
        }


def test_ends_that_are_not_overridden_run_nowhere() -> None:
    with ServiceProcess(APP, arguments=["plain"]) as service:
        assert service.predict({"x": "1"})["x"] == "1"
        assert list(service.http("/health/ready").json["ops"]) == ["words"]
        assert len(service.worker_pids()) == 1


def test_set_pack_format_changes_no_answer_and_ops_without_a_name_are_numbered() -> None:
    with ServiceProcess(APP, arguments=["tensors"]) as service:
        printed = {"numbers": "array([[1, 2, 3]])", "half": "array([0.5], dtype=float32)"}
        answer = service.rpc({"x": "1"})
        assert dict(zip(answer.key, answer.value, strict=True)) == printed
        assert (service.predict({"x": "1"}), list(answer.tensors)) == (printed, [])
        assert list(service.http("/health/ready").json["ops"]) == ["Op0", "Op1"]


def test_a_hook_of_0_9_finds_outputs_and_refusals_where_it_looks_for_them() -> None:
    arrays = {"a": np.array([1])}
    given = ChannelData(arrays)
    assert (given.npdata, given.dictdata, given.prod_error_code) == (arrays, None, None)
    lists = ChannelData({"a": ["x", "y"], "b": np.array([1])})
    assert (lists.datatype, ChannelData({"a": []}).datatype, ChannelData({}).datatype) == (1, 0, 1)
    texts = ChannelData({"a": "x"})
    assert (texts.npdata, texts.dictdata) == (None, {"a": "x"})
    for number in (0, 50, 52, 901):
        own = ChannelData.of_refusal(number, "none left", data_id=1, log_id=2)
        assert (own.error_code, own.error_info) == (50, "")
        assert (own.prod_error_code, own.prod_error_info) == (number, "none left")
    refusal = ChannelData.of_refusal(6000, "too late", data_id=1, log_id=2)
    assert (refusal.error_code, refusal.error_info, refusal.prod_error_code) == (6000, "too late", None)
    assert (refusal.datatype, refusal.npdata, refusal.dictdata) == (2, None, None)


def test_checks_of_what_hooks_pass_on() -> None:
    arrays, texts = {"a": np.array([1])}, {"a": "x"}
    assert ChannelData.check_batch_npdata([arrays, arrays]) == ChannelData.check_npdata(arrays) == (0, None)
    assert ChannelData.check_dictdata([arrays, texts]) == (0, None)
    for code, told in (ChannelData.check_batch_npdata([arrays, texts]), ChannelData.check_dictdata("x")):
        assert (code, "get <class 'str'>" in (told or "")) == (7000, True)


def test_a_web_service_may_bring_its_own_request_op() -> None:
    with ServiceProcess(
        APP, {"op": {"@DAGExecutor": {"concurrency": 2}}}, arguments=["web service"]
    ) as service:
        assert service.predict({"words": "one two"})["words"] == "[1 2]"
        assert service.http("/health/ready").json["ops"]["@DAGExecutor"]["instances"] == 2


def test_a_server_without_a_response_op_ends_with_what_is_missing() -> None:
    with ServiceProcess(APP, arguments=["no response op"], wait=False) as service:
        assert service.exit_code() == 2
        assert "call set_response_op(ResponseOp([last_op])) before run_server" in service.log


def test_what_is_no_response_op_is_refused_where_it_is_given() -> None:
    with pytest.raises(ConfigError, match="takes a ResponseOp, not Op"):
        PipelineServer("test").set_response_op(Op("a", [RequestOp()]))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="2 input_ops; give it the last Op alone"):
        ResponseOp(input_ops=[Op("a"), Op("b")])


def test_two_request_ops_of_the_apps_own_are_told() -> None:
    class OwnRequestOp(RequestOp):
        def unpack_request_package(self, request: Request) -> dict[str, str]:
            return {}

    with pytest.raises(ConfigError, match="two Ops are named @DAGExecutor"):
        collect_ops(Op("c", [Op("a", [OwnRequestOp()]), Op("b", [OwnRequestOp()])]))

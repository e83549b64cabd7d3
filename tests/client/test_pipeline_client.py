"""PipelineClient: what it sends is what Paddle Serving's own client sent."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import numpy as np
import pytest

from client.pipeline_client import PipelineClient
from client.protos.pipeline_service_pb2 import Request
from client.values import parse_value
from tests.support.command_line import python
from tests.support.scripted_servers import OUTPUTS, RpcServer, RpcStep, refuse, reply, rpc_server
from tests.support.service_process import ROOT

RECORDINGS = {
    line["case"]: line["request"]
    for line in map(json.loads, (ROOT / "tests/fixtures/clients.jsonl").read_text("utf-8").splitlines())
}


@contextmanager
def pipeline_client(*script: RpcStep) -> Iterator[tuple[PipelineClient, RpcServer]]:
    with rpc_server(*script) as server, PipelineClient() as client:
        client.connect([server.address])
        yield client, server


@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("grpc_success", {}),
        ("grpc_profile", {"profile": True}),
        ("grpc_tensor_string", {"pack_tensor_format": True}),
    ],
)
def test_pipeline_client_sends_the_recorded_bytes(case: str, options: dict[str, bool]) -> None:
    text = RECORDINGS["grpc_success"]["message"]["value"][0]
    with pipeline_client(reply()) as (client, server):
        response = client.predict({"0": text}, **options)  # type: ignore[call-overload]
    assert dict(zip(response.key, response.value, strict=True)) == OUTPUTS
    assert server.seen == [base64.b64decode(RECORDINGS[case]["wire_b64"])]


def test_pipeline_client_takes_logid_and_clientip_out_of_the_feed() -> None:
    feed = {"cmd": "ids", "logid": 9223372036854775807}
    with pipeline_client(reply()) as (client, server):
        client.predict(feed)
        client.predict({"cmd": "ids", "clientip": "1.1.1.1", "logid": 5}, log_id=7)
    assert server.seen[0] == base64.b64decode(RECORDINGS["grpc_logid_max"]["wire_b64"])
    sent = Request.FromString(server.seen[1])
    assert (sent.key, sent.logid, sent.clientip) == (["cmd"], 7, "1.1.1.1")
    assert "logid" in feed


@pytest.mark.parametrize("as_bytes", [False, True])
def test_pipeline_client_sends_offsets_as_the_lod_of_their_tensor(as_bytes: bool) -> None:
    feed = {"words": np.array([[5], [6], [7]]), "words.lod": [0, 2, 3], "other.lod": np.array([1])}
    with pipeline_client(reply()) as (client, server):
        client.predict(feed, pack_tensor_format=True, use_tensor_bytes=as_bytes)
    words, other = Request.FromString(server.seen[0]).tensors
    assert (words.name, words.shape, words.lod) == ("words", [3, 1], [0, 2, 3])
    assert (other.name, other.lod) == ("other.lod", [])  # belongs to no tensor


def test_pipeline_client_packs_each_dtype_as_recorded() -> None:
    two = [1, 2]
    feed = {
        "cmd": "types",
        "i64": two,
        "f32": np.array([two], "float32"),
        "i32": np.array(two, "int32"),
        "f64": np.array(two, "float64"),
        "i16": np.array(two, "int16"),
        "f16": np.array(two, "float16"),
        "bf16": np.array(two, "uint16"),
        "u8": np.array(two, "uint8"),
        "i8": np.array(two, "int8"),
        "b": np.array([True, False]),
        "s": ["a", "b"],
    }
    texts = np.array([["a", "b"], ["", "国"]])
    recorded = Request.FromString(base64.b64decode(RECORDINGS["grpc_tensors_all_types"]["wire_b64"]))
    with pipeline_client(reply()) as (client, server):
        client.predict(feed, pack_tensor_format=True)
        array = np.arange(6, dtype="float32").reshape(2, 3)
        client.predict({"by": array}, pack_tensor_format=True, use_tensor_bytes=True)
        client.predict({"s": texts}, pack_tensor_format=True)
    assert server.seen[0] == Request(tensors=recorded.tensors[:12]).SerializeToString()
    assert server.seen[1] == Request(tensors=recorded.tensors[12:13]).SerializeToString()
    (own,) = Request.FromString(server.seen[2]).tensors  # the original had no form for an array of texts
    assert (own.elem_type, list(own.shape), list(own.str_data)) == (12, [2, 2], ["a", "b", "", "国"])


def test_arrays_without_tensors_travel_as_their_whole_repr() -> None:
    long = np.arange(2000, dtype="float32")
    with pipeline_client(reply()) as (client, server):
        client.predict({"x": long, "y": [1, 2], "z": np.array([np.float32(0.5), None], dtype=object)})
    sent = Request.FromString(server.seen[0])
    assert parse_value(sent.value[0]) == list(range(2000))
    assert list(sent.value[1:]) == ["array([1, 2])", "array([0.5, None], dtype=object)"]


def test_pipeline_client_future_and_errors_are_grpcs() -> None:
    invalid = refuse(grpc.StatusCode.INVALID_ARGUMENT)
    with pipeline_client(reply(), reply(8000, "bad"), invalid) as (client, _):
        assert client.predict({"0": "text"}, asyn=True).result().err_no == 0
        assert client.predict({"0": "text"}).err_no == 8000
        with pytest.raises(grpc.RpcError, match="not now"):
            client.predict({"0": "text"})
        with pytest.raises(TypeError, match="'0': int"):
            client.predict({"0": 1})
    with pytest.raises(RuntimeError, match="connect"):
        client.predict({"0": "text"})


def test_pipeline_client_retries_what_crosses_a_goaway() -> None:
    with pipeline_client(refuse(grpc.StatusCode.CANCELLED), reply()) as (client, server):
        assert client.predict({"0": "text"}).err_no == 0
    assert len(server.seen) == 2


def test_pipeline_client_sends_lists_of_several_lengths_as_numpy_1_printed_them() -> None:
    with pipeline_client(reply()) as (client, server):
        client.predict({"texts": [["a"], ["b", "c"]]})
        with pytest.raises(TypeError, match="'texts': a Tensor can't hold object"):
            client.predict({"texts": [["a"], ["b", "c"]]}, pack_tensor_format=True)
    printed = "array([list(['a']), list(['b', 'c'])], dtype=object)"
    assert Request.FromString(server.seen[0]).value == [printed]


@pytest.mark.parametrize(
    "statement",
    [
        "import client.pipeline_client",
        "import paddle_serving_client",
        "from client.values import parse_array; parse_array('array([1])')",
    ],
)
def test_without_numpy_a_client_says_what_to_install(statement: str) -> None:
    done = python("-c", f"import sys; sys.modules['numpy'] = None; {statement}")
    assert done.returncode == 1
    assert "is not installed" in done.stderr and "-m pip install numpy" in done.stderr.splitlines()[-1]

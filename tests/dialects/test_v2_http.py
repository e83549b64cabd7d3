"""KServe v2 over HTTP, asked with Triton's own client."""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as v2
from tritonclient.utils import InferenceServerException

from pipeline.config.config_file import Limits
from pipeline.dialects.kserve.models import KServeModel
from pipeline.dialects.kserve_v2.infer_request import parse_infer
from pipeline.dialects.triton_extensions.shared_memory import SharedMemory
from pipeline.models.tensor_spec import Signature
from tests.support import models
from tests.support.service_process import APPS, ServiceProcess, key_value, read_answer

ROWS = np.arange(32, dtype=np.int32).reshape(2, 16)
ONES = np.ones((2, 16), np.int32)


@pytest.fixture(scope="module")
def echo() -> Iterator[ServiceProcess]:
    """A key/value service that declares nothing."""
    with ServiceProcess(APPS / "echo.py", {"op": {"echo": {"batch_size": 8}}}) as service:
        yield service


@pytest.fixture(scope="module")
def classifier_service(model_folder: Path) -> Iterator[ServiceProcess]:
    conf = {"model_config": str(models.classifier(model_folder)), "device_type": 0}
    config = {"op": {"model": {"batch_size": 8, "local_service_conf": conf}}}
    with ServiceProcess(APPS / "model.py", config) as service:
        yield service


def client(service: ServiceProcess) -> v2.InferenceServerClient:
    return v2.InferenceServerClient(f"127.0.0.1:{service.http_port}")


def infer(service: ServiceProcess, *given: Any, **how: Any) -> v2.InferResult:
    with client(service) as asking:
        return asking.infer(*given, **how)


def tensor(name: str, array: np.ndarray, datatype: str, *, binary: bool = True) -> v2.InferInput:
    given = v2.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array, binary_data=binary)
    return given


def both(*, binary: bool = True) -> list[v2.InferInput]:
    return [
        tensor("INPUT0", ROWS, "INT32", binary=binary),
        tensor("INPUT1", ONES, "INT32", binary=binary),
    ]


def test_the_server_and_its_model_tell_what_they_are(triton: Callable[[str], ServiceProcess]) -> None:
    with client(triton("simple")) as asking:
        assert asking.is_server_live() and asking.is_server_ready() and asking.is_model_ready("simple", "1")
        assert not asking.is_model_ready("simple", "2") and not asking.is_model_ready("nope")
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/simple/ready"):
            checked = triton("simple").http(path)
            assert (checked.status, checked.body, checked.headers["content-type"]) == (200, b"", "text/plain")
        assert asking.get_server_metadata()["name"] == "triton"
        metadata = asking.get_model_metadata("simple")
        assert metadata["inputs"][1] == {"name": "INPUT1", "datatype": "INT32", "shape": [-1, 16]}
        assert asking.get_model_repository_index() == [{"name": "simple", "version": "1", "state": "READY"}]


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_inputs_and_outputs_are_binary_or_json_or_both(
    triton: Callable[[str], ServiceProcess], binary: bool
) -> None:
    wanted = [
        v2.InferRequestedOutput("OUTPUT1", binary_data=not binary),
        v2.InferRequestedOutput("OUTPUT0", binary_data=binary),
    ]
    inputs = [both(binary=binary)[0], both(binary=not binary)[1]]
    result = infer(triton("simple"), "simple", inputs, outputs=wanted, request_id="one")
    assert result.get_response()["id"] == "one"
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ROWS + 1)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), ROWS - 1)
    sizes = [output.get("parameters") for output in result.get_response()["outputs"]]
    assert sizes == ([{"binary_data_size": 128}, None] if binary else [None, {"binary_data_size": 128}])


def test_the_request_says_how_outputs_are_sent_that_it_does_not_list(
    triton: Callable[[str], ServiceProcess],
) -> None:
    one = {"shape": [1, 16], "datatype": "INT32", "data": list(range(16)), "parameters": None}
    inputs = [{"name": name, **one} for name in ("INPUT0", "INPUT1")]
    body = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    listed = {**body, "outputs": [{"name": "OUTPUT0", "parameters": None}]}
    page = "/v2/models/simple/infer"
    every = triton("simple").http(page, json.dumps(body))
    assert len(every.body) - int(every.headers["inference-header-content-length"]) == 2 * 64
    told = triton("simple").http(page, json.dumps(listed)).json["outputs"]
    assert [(output["name"], output["data"][:2]) for output in told] == [("OUTPUT0", [0, 2])]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_bodies_are_compressed_both_ways(triton: Callable[[str], ServiceProcess], encoding: str) -> None:
    how = {"request_compression_algorithm": encoding, "response_compression_algorithm": encoding}
    result = infer(triton("simple"), "simple", both(), **how)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ROWS + 1)


def test_texts_and_bytes_travel_as_bytes_tensors(triton: Callable[[str], ServiceProcess]) -> None:
    given = np.array([[b"\xff\x00", "straße".encode()], [b"", b"x" * 9000]], object)
    result = infer(triton("identity_string"), "identity_string", [tensor("INPUT0", given, "BYTES")])
    assert result.as_numpy("OUTPUT0").tolist() == given.tolist()


def test_a_large_tensor_comes_back_as_it_was(triton: Callable[[str], ServiceProcess]) -> None:
    given = np.random.default_rng(1).random((2, 5_000_000), np.float32)  # over a region of the shared memory
    result = infer(triton("identity_fp32"), "identity_fp32", [tensor("INPUT0", given, "FP32")])
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), given)


def test_a_key_value_service_takes_its_keys_as_tensors(echo: ServiceProcess) -> None:
    given = [
        tensor("number", np.array([b"21"], object), "BYTES"),
        tensor("text", np.array(["straße".encode()], object), "BYTES", binary=False),
    ]
    result = infer(echo, "test", given)
    assert result.as_numpy("doubled").tolist() == [b"42"]
    assert result.as_numpy("text").tolist() == ["straße".encode()]
    key_value_answer = echo.predict({"number": "21", "text": "straße"})
    assert key_value_answer["doubled"] == "42"


def test_an_app_that_unpacks_messages_is_given_one() -> None:
    with ServiceProcess(APPS / "packages.py", arguments=["web service"]) as service:
        body = {"inputs": [{"name": "words", "datatype": "BYTES", "shape": [1], "data": ["two one"]}]}
        answer = service.http("/v2/models/test/infer", json.dumps(body)).json
    told = {output["name"]: output["data"] for output in answer["outputs"]}
    assert told["words"] == ["[2 1]"] and told["from"][0].startswith("test/infer")


def test_a_model_op_is_asked_by_its_own_name_with_its_tensors(classifier_service: ServiceProcess) -> None:
    with client(classifier_service) as asking:
        metadata = asking.get_model_metadata("model")
        assert [spec["name"] for spec in metadata["inputs"]] == [
            "input_ids",
            "token_type_ids",
            "attention_mask",
        ]
        assert metadata["inputs"][0] == {"name": "input_ids", "datatype": "INT64", "shape": [-1, -1]}
        ids = np.array([[1, 2, 3], [4, 5, 6]])
        feeds = {"input_ids": ids, "token_type_ids": ids * 0, "attention_mask": ids * 0 + 1}
        given = [tensor(name, array, "INT64") for name, array in feeds.items()]
        logits = asking.infer("model", given).as_numpy("logits")
        by_key_value = classifier_service.predict({name: json.dumps(a.tolist()) for name, a in feeds.items()})
        np.testing.assert_allclose(logits, json.loads(by_key_value["logits"]), rtol=1e-5)


def test_a_bad_request_to_a_model_op_fails_alone(classifier_service: ServiceProcess) -> None:
    with pytest.raises(InferenceServerException, match="'input_ids' data-type is 'FP32'"):
        infer(
            classifier_service,
            "model",
            [
                tensor(name, np.ones((1, 3), np.float32), "FP32")
                for name in ("token_type_ids", "attention_mask", "input_ids")
            ],
        )
    assert classifier_service.http("/health/ready").status == 200


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ('{"inputs":[{"name":"INPUT0","shape":[1,1e3],"datatype":"INT32","data":[1]}]}', 500, "shape"),
        (
            '{"inputs":[{"name":"INPUT0","shape":[4611686018427387904,16],"datatype":"INT32",'
            '"parameters":{"binary_data_size":0}},'
            '{"name":"INPUT1","shape":[4611686018427387904,16],"datatype":"INT32","data":[]}]}',
            400,
            "to exceed maximum size",
        ),
        ("[" * 100_000, 413, "nests"),
        ('{"inputs":' + "[" * 100_000 + "]" * 100_000 + "}", 413, "nests"),
        (
            '{"inputs":[{"name":"INPUT0","shape":[1,16],"datatype":"INT32","data":'
            + "[" * 9000
            + "]" * 9000
            + '},{"name":"INPUT1","shape":[1,16],"datatype":"INT32","data":[]}]}',
            413,
            "nests",
        ),
        (
            '{"inputs":[{"name":"X","shape":[1],"datatype":"INT32","parameters":'
            '{"shared_memory_region":"r"}}]}',
            404,
            "'r'",
        ),
        ('{"inputs":[],"parameters":{"triton_x":1}}', 400, "reserved"),
        ('{"inputs":[],"parameters":[]}', 500, "parameters"),
        ('{"inputs":[1]}', 400, "no object"),
    ],
    ids=[
        "float-dim",
        "huge-dims",
        "deep",
        "deep-inputs",
        "deep-data",
        "shm",
        "reserved",
        "parameters",
        "number",
    ],
)
def test_what_can_t_be_read_is_refused_and_costs_nothing(
    triton: Callable[[str], ServiceProcess], body: str, status: int, words: str
) -> None:
    service = triton("simple")
    workers = service.worker_pids()
    answer = service.http("/v2/models/simple/infer", body)
    assert answer.status == status, answer
    assert words in answer.json["error"]
    assert service.worker_pids() == workers


def test_a_compressed_body_is_bounded_before_it_is_read() -> None:
    bomb = zlib.compress(b" " * 30_000_000, 9)
    with ServiceProcess(
        APPS / "triton.py", {"limits": {"body_bytes": 1 << 20}}, name="simple", env={"MODEL": "simple"}
    ) as service:
        answer = service.http("/v2/models/simple/infer", bomb, headers={"Content-Encoding": "deflate"})
        assert (answer.status, "decompressed" in answer.json["error"]) == (413, True)
        assert (
            service.http("/v2/models/simple/infer", b"x", headers={"Content-Encoding": "gzip"}).status == 400
        )


def test_a_body_over_the_limit_is_refused_in_the_form_of_v2(triton: Callable[[str], ServiceProcess]) -> None:
    service = triton("simple")
    with contextlib.closing(service.connection()) as connection:
        connection.putrequest("POST", "/v2/models/simple/infer")
        connection.putheader("Content-Length", str(1 << 40))
        connection.endheaders()
        answer = read_answer(connection)
    assert (answer.status, list(answer.json)) == (413, ["error"])


def test_a_large_compressed_answer_comes_back_as_it_was(triton: Callable[[str], ServiceProcess]) -> None:
    given = np.tile(np.arange(1000, dtype=np.float32), (8, 100))
    result = infer(
        triton("identity_fp32"),
        "identity_fp32",
        [tensor("INPUT0", given, "FP32")],
        response_compression_algorithm="gzip",
    )
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), given)


@pytest.mark.parametrize(
    ("encoding", "decompress"), [("gzip", gzip.decompress), ("deflate", zlib.decompress)]
)
def test_an_answer_is_compressed_as_it_says(
    triton: Callable[[str], ServiceProcess], encoding: str, decompress: Callable[[bytes], bytes]
) -> None:
    numbers = [1.0] * 50_000
    asked = {"inputs": [{"name": "INPUT0", "shape": [1, 50_000], "datatype": "FP32", "data": numbers}]}
    answer = triton("identity_fp32").http(
        "/v2/models/identity_fp32/infer", json.dumps(asked), headers={"Accept-Encoding": encoding}
    )
    assert answer.headers["content-encoding"] == encoding
    assert len(answer.body) < len(numbers) < len(decompress(answer.body))
    assert json.loads(decompress(answer.body))["outputs"][0]["data"] == numbers


def test_a_request_that_is_over_its_timeout_is_refused(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    body = {
        "inputs": [
            {"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "data": [77] * 16},
            {"name": "INPUT1", "shape": [1, 16], "datatype": "INT32", "data": [1] * 16},
        ],
        "parameters": {"timeout": 50_000, "priority": 1},
    }
    env = {"MODEL": "simple", "WAIT_FOR": str(gate)}
    with ServiceProcess(APPS / "triton.py", name="simple", env=env) as service:
        answer = service.http("/v2/models/simple/infer", json.dumps(body))
        assert (answer.status, answer.json) == (503, {"error": "Request timeout expired"})
        gate.touch()


def test_the_key_value_routes_stay_as_they_were(triton: Callable[[str], ServiceProcess]) -> None:
    answer = triton("simple").http("/simple/prediction", key_value({"0": "x"}))
    assert "err_no" in answer.json


def test_the_front_passes_json_elements_on_unread() -> None:
    body = b'{"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1,    2]}]}'
    find = functools.partial(SharedMemory("off").span, "")
    asked = parse_infer(body, None, KServeModel("m", "", Signature()), Limits(), find)
    assert bytes(asked.inputs["x"].data) == b"[1,    2]"

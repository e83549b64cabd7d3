"""docs/errors.md says whose mistake an error is: each of its rows, asked for over every endpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import grpc
import pytest

from client.protos.kserve_v2_pb2 import ModelInferRequest
from client.protos.pipeline_service_pb2 import Request, Response
from tests.support import onnx_models
from tests.support.service_process import APPS, PATIENCE_S, ROOT, RPC_METHOD, ServiceProcess, key_value

KEY = "alice-0123456789abcdef"
V2_METHOD = "/inference.GRPCInferenceService/ModelInfer"
MAX_CHARS = 500
LOGS = {"汇总": "sum", "堆栈": "traceback", "一行": "line"}
GARBLED = b"\xff{no message"
# By case, what is sent; of the others `how` is their name.
SENT: dict[str, Mapping[str, str]] = {
    "no_key": {"how": "well"},
    "unknown_model": {"how": "well"},
    "too_large": {"how": "x" * (MAX_CHARS + 1)},
    "missing_key": {"text": "a picture"},
    "missing_feed": {"ids": "[[1, 2]]"},
    "unequal": {"ids": "[[1], [2], [3]]", "image": json.dumps([[[[0] * 4] * 4] * 3] * 2)},
}
# What a client is told of its mistake: the field, what was expected and what was given.
TOLD = {
    "too_large": [f"{MAX_CHARS + 1} characters", "limits.text_chars"],
    "missing_key": ["'how'", "'text'"],
    "missing_feed": ["'image'", "float32 [-1, 3, 4, 4]"],
    "unequal": ["image [2, 3, 4, 4]", "ids [3, 1]"],
    "rank": ["'ids'", "(2,)", "int64 [-1, -1]"],
    "empty": ["'ids'", "(1, 0)", "no element"],
    "image": ["'image'", "(1, 3, 5, 5)", "float32 [-1, 3, 4, 4]"],
    "id": ["'ids'", "holds 8", "-8 to 7"],
    "number": ["'ids'", "float64", "int64"],
    "invalid": ["'how' is 'invalid'"],
    "product": ["not for sale"],
    "raises": ["a mistake of the app's author"],
    "returns": ["preprocess returned NoneType", "a feed dict"],
    "forgets": ["preprocess made a feed that lacks one", "'ids'"],
    "model": ["image [2, 3, 4, 4]", "ids [3, 2]"],
}


LOGGED: dict[str, str] = {}  # by case: the endpoint over which the worker logged it first


class Case(NamedTuple):
    """A row: what is told at the endpoints of HTTP, of v2, of v2 over gRPC, and by key/value's own number."""

    name: str
    http: int
    v2: int
    code: str
    err_no: int
    log: str

    @property
    def sent(self) -> Mapping[str, str]:
        return SENT.get(self.name, {"how": self.name})

    @property
    def key(self) -> str:
        return "" if self.name == "no_key" else KEY

    @property
    def model(self) -> str:
        return "other" if self.name == "unknown_model" else "test"


def rows(page: str) -> list[Case]:
    text = (ROOT / "docs" / page).read_text("utf-8")
    row = r"^\| `(\w+)` \| [^|]+ \| (\d+) \| (\d+) \| (\w+) \| (\d+) \| (\w+) \|$"
    return [
        Case(name, int(http), int(v2), code, int(err_no), LOGS.get(log, log))
        for name, http, v2, code, err_no, log in re.findall(row, text, re.M)
    ]


CASES = rows("errors.md")


class Told(NamedTuple):
    status: int | str
    text: str


def over_http(service: ServiceProcess, path: str, body: bytes | str, case: Case) -> Told:
    answer = service.http(path, body, headers={"X-API-Key": case.key} if case.key else {})
    return Told(answer.status, answer.body.decode())


def over_grpc(service: ServiceProcess, method: str, message: bytes, case: Case) -> bytes | Told:
    metadata = [("x-api-key", case.key)] if case.key else []
    with service.channel() as channel:
        try:
            answer: bytes = channel.unary_unary(method)(message, metadata=metadata, timeout=PATIENCE_S)
        except grpc.RpcError as exc:
            return Told(exc.code().name, exc.details() or "")
    return answer


def by_key_value(service: ServiceProcess, case: Case) -> Told:
    body = GARBLED if case.name == "malformed" else key_value(case.sent)
    return over_http(service, f"/{case.model}/prediction", body, case)


def by_v1(service: ServiceProcess, case: Case) -> Told:
    body = GARBLED if case.name == "malformed" else json.dumps({"instances": [case.sent]}).encode()
    return over_http(service, f"/v1/models/{case.model}:predict", body, case)


def by_v2(service: ServiceProcess, case: Case) -> Told:
    inputs = [
        {"name": name, "datatype": "BYTES", "shape": [1], "data": [value]}
        for name, value in case.sent.items()
    ]
    body = GARBLED if case.name == "malformed" else json.dumps({"inputs": inputs}).encode()
    return over_http(service, f"/v2/models/{case.model}/infer", body, case)


def by_v2_grpc(service: ServiceProcess, case: Case) -> Told:
    request = ModelInferRequest(model_name=case.model)
    for name, value in case.sent.items():
        tensor = request.inputs.add(name=name, datatype="BYTES", shape=[1])
        tensor.contents.bytes_contents.append(value.encode())
    message = GARBLED if case.name == "malformed" else request.SerializeToString()
    answer = over_grpc(service, V2_METHOD, message, case)
    return answer if isinstance(answer, Told) else Told("OK", "")


def by_pipeline_service(service: ServiceProcess, case: Case) -> Told:
    request = Request(name=case.model, key=list(case.sent), value=list(case.sent.values()))
    message = GARBLED if case.name == "malformed" else request.SerializeToString()
    answer = over_grpc(service, RPC_METHOD, message, case)
    if isinstance(answer, Told):
        return answer
    response = Response.FromString(answer)
    return Told(response.err_no, response.err_msg)


class Endpoint(NamedTuple):
    ask: Callable[[ServiceProcess, Case], Told]
    expected: Callable[[Case], int | str]


ENDPOINTS = {
    "http": Endpoint(by_key_value, lambda case: case.http),
    "grpc": Endpoint(by_pipeline_service, lambda case: case.code if case.name == "no_key" else case.err_no),
    "v1-http": Endpoint(by_v1, lambda case: case.http),
    "v2-http": Endpoint(by_v2, lambda case: case.v2),
    "v2-grpc": Endpoint(by_v2_grpc, lambda case: case.code),
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("faults")
    keys = folder / "keys"
    keys.write_text(f"alice:{KEY}\n")
    keys.chmod(0o600)
    conf = {"model_config": str(onnx_models.bare(folder, "captioned")), "thread_num": 1}
    config = {
        "dag": {"http_errors": "status"},
        "limits": {"text_chars": MAX_CHARS},
        "security": {"api_keys": str(keys)},
        "op": {"faulty": {"local_service_conf": conf}},
    }
    with ServiceProcess(APPS / "faults.py", config) as started:
        yield started


def test_both_languages_have_the_same_rows() -> None:
    assert len(CASES) == 19 and rows("errors_zh.md") == CASES


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_mistake_is_told_to_whose_it_is(service: ServiceProcess, case: Case, endpoint: str) -> None:
    before = service.log
    told = ENDPOINTS[endpoint].ask(service, case)
    assert told.status == ENDPOINTS[endpoint].expected(case), told.text
    text = told.text.replace('\\"', '"').replace("\\u0027", "'")
    assert [words for words in TOLD.get(case.name, []) if words not in text] == []
    assert "Traceback" not in told.text
    added = service.log.removeprefix(before)
    if case.log == "sum":
        assert "ERROR [faulty.0] request " not in added, added
    elif (
        LOGGED.setdefault(case.name, endpoint) == endpoint
    ):  # over further endpoints it is summed for a while
        assert "ERROR [faulty.0] request " in added, added
        assert ("Traceback (most recent call last)" in added) is (case.log == "traceback"), added


def test_refusals_and_repeated_errors_are_in_the_log_summed_by_kind_endpoint_and_client(
    service: ServiceProcess,
) -> None:
    """The last test of the module: the sums are told when the service ends."""
    for endpoint in ENDPOINTS.values():
        endpoint.ask(service, Case("invalid", 400, 400, "", 5000, "sum"))
        for _ in range(2):
            endpoint.ask(service, Case("raises", 500, 500, "", 10000, "traceback"))
    service.terminate()
    assert service.exit_code() == 0
    for endpoint in ENDPOINTS:
        kind = f"InvalidInput over {endpoint} from 127.0.0.1 (alice): "
        lines = [line for line in service.log.splitlines() if kind in line]
        assert " INFO [front] " in lines[0] and "'how' is 'invalid'" in lines[-1], lines
        assert " more in the last 10 s, the latest: " in lines[-1], lines
        assert f" ERROR [front] HookFailed over {endpoint} from 127.0.0.1 (alice): " in service.log

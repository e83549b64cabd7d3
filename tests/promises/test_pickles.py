"""A pickle that would leave a file, through every endpoint and in every field: none is ever loaded."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import pickle
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgpack
import numpy as np
import pytest

from client.protos.kserve_v2_pb2 import ModelInferRequest
from client.protos.pipeline_service_pb2 import Request
from tests.support.service_process import APPS, PATIENCE_S, RPC_METHOD, ServiceProcess

V2 = "/inference.GRPCInferenceService/"


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


@pytest.fixture(scope="module")
def mark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trap") / "sprung"


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "relay.py") as process:
        yield process


@pytest.fixture
def shared_file() -> Iterator[Path]:
    """A file of its own in this machine's shared memory."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="paddlewheel-test-") as file:
        yield Path(file.name)


def payloads(mark: Path) -> dict[str, bytes]:
    """The pickle itself, and in everything of ours and of NumPy's that could hold one."""
    trap = Trap(str(mark))
    objects, archive = io.BytesIO(), io.BytesIO()
    np.save(objects, np.array([trap], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.npy", objects.getvalue())
    pickles = {f"protocol {n}": pickle.dumps(trap, protocol=n) for n in (0, 2, 5)}
    inner = msgpack.ExtType(5, pickles["protocol 5"])  # as a worker's own value would have it
    return {
        **pickles,
        "npy": objects.getvalue(),
        "npz": archive.getvalue(),
        "npy header": b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(
            128
        )
        + pickles["protocol 2"],
        "value": msgpack.packb({"a": inner}),
        "extension": msgpack.packb(inner),
    }


def test_the_trap_works(tmp_path: Path) -> None:
    """What follows could fail: each pickle makes its file when it is loaded."""
    for name, payload in payloads(tmp_path / "mark").items():
        if name.startswith("protocol"):
            pickle.loads(payload).close()  # noqa: S301
            (tmp_path / "mark").unlink()
    np.load(io.BytesIO(payloads(tmp_path / "mark")["npy"]), allow_pickle=True)[0].close()
    assert (tmp_path / "mark").exists()


def http_bodies(payload: bytes) -> Iterator[tuple[str, bytes, dict[str, str]]]:
    """Path, body and headers."""
    texts = [payload.decode("latin-1"), base64.b64encode(payload).decode()]
    predict, infer = "/test/prediction", "/v2/models/test/infer"
    octets = {"Content-Type": "application/octet-stream"}
    for kind in ("application/octet-stream", "application/python-pickle", "application/x-npy"):
        for path in (predict, infer, "/v1/models/test:predict", "/v2/models/test/generate"):
            yield path, payload, {"Content-Type": kind}
    yield infer, payload, {**octets, "Inference-Header-Content-Length": "0"}
    for text in texts:
        tensor = {"name": text, "elem_type": 12, "shape": [1], "str_data": [text]}
        for body in (
            {"key": ["a", text], "value": [text, "b"]},
            {"key": ["a"], "value": ["b"], "name": text, "method": text, "clientip": text},
            {"tensors": [tensor]},
            {"tensors": [{"name": "a", "elem_type": 13, "byte_data": text}]},
            {"tensors": [{"name": "a", "elem_type": text, "shape": [text]}]},
            {"tensors": [{"name": "a", "elem_type": 0, "int64_data": [text], "lod": [text]}]},
        ):
            yield predict, json.dumps(body).encode(), {}
        one = {"name": "a", "shape": [1], "datatype": "BYTES", "data": [text]}
        for changed in (
            {}, {"name": text}, {"datatype": text}, {"shape": [text]}, {"parameters": {"a": text, text: 1}},
            {"data": None, "parameters": {"shared_memory_region": text, "shared_memory_byte_size": 9}},
        ):  # fmt: skip
            given = {key: value for key, value in {**one, **changed}.items() if value is not None}
            body = {"inputs": [given], "id": text, "parameters": {"a": text, text: "b"}}
            yield infer, json.dumps(body).encode(), {}
        outputs = [{"name": text, "parameters": {"classification": text}}]
        yield infer, json.dumps({"inputs": [one], "outputs": outputs}).encode(), {}
        region = {"key": text, "offset": 0, "byte_size": 64}
        for path in ("systemsharedmemory", "cudasharedmemory"):
            body = {**region, "raw_handle": {"b64": text}, "device_id": 0}
            yield f"/v2/{path}/region/{path}/register", json.dumps(body).encode(), {}
        yield "/v1/models/test:predict", json.dumps({"instances": [{"a": text}]}).encode(), {}
        coded = {"instances": [{"a": {"b64": base64.b64encode(payload).decode()}}]}
        yield "/v1/models/test:predict", json.dumps(coded).encode(), {}
        yield "/v2/models/test/generate", json.dumps({"a": text, "b": text}).encode(), {}
        yield "/v2/repository/models/test/load", json.dumps({"parameters": {"config": text}}).encode(), {}
        yield "/v2/logging", json.dumps({"log_file": text}).encode(), {}
    raw = len(payload).to_bytes(4, "little") + payload
    for datatype, data in (("BYTES", raw), ("UINT8", payload)):
        parameters = {"binary_data_size": len(data)}
        shape = [1] if datatype == "BYTES" else [len(data)]
        document = json.dumps(
            {"inputs": [{"name": "a", "shape": shape, "datatype": datatype, "parameters": parameters}]}
        ).encode()
        yield infer, document + data, {"Inference-Header-Content-Length": str(len(document))}


def pipeline_messages(payload: bytes) -> Iterator[bytes]:
    text = payload.decode("latin-1")
    yield payload
    yield Request(key=["a", text], value=[text, "b"], name="", method=text, clientip=text).SerializeToString()
    for elem_type in range(14):
        message = Request()
        tensor = message.tensors.add(name=text, elem_type=elem_type, shape=[1], byte_data=payload)
        tensor.str_data.append(text)
        yield message.SerializeToString()


def v2_messages(payload: bytes) -> Iterator[bytes]:
    text = payload.decode("latin-1")
    yield payload
    for datatype, data in (("BYTES", len(payload).to_bytes(4, "little") + payload), ("UINT8", payload)):
        raw = ModelInferRequest(model_name="test", id=text)
        raw.inputs.add(name=text, datatype=datatype, shape=[1 if datatype == "BYTES" else len(data)])
        raw.parameters[text].string_param = text
        raw.raw_input_contents.append(data)
        yield raw.SerializeToString()
    typed = ModelInferRequest(model_name="test")
    typed.inputs.add(name="a", datatype="BYTES", shape=[1]).contents.bytes_contents.append(payload)
    yield typed.SerializeToString()
    shared = ModelInferRequest(model_name="test")
    tensor = shared.inputs.add(name="a", datatype=text, shape=[1])
    tensor.parameters["shared_memory_region"].string_param = text
    yield shared.SerializeToString()


def call(channel: grpc.Channel, method: str, data: bytes, **more: Any) -> None:
    with contextlib.suppress(grpc.RpcError):
        channel.unary_unary(method)(data, timeout=PATIENCE_S, **more)


@pytest.mark.parametrize("form", payloads(Path("unused")))
def test_no_pickle_is_loaded_whatever_field_it_is_in(service: ServiceProcess, mark: Path, form: str) -> None:
    payload = payloads(mark)[form]
    workers = service.worker_pids()
    statuses = [
        service.http(path, body, headers=headers).status for path, body, headers in http_bodies(payload)
    ]
    with service.channel() as channel:
        for data in pipeline_messages(payload):
            call(channel, RPC_METHOD, data, metadata=[("trace-bin", payload)])
        for data in v2_messages(payload):
            call(channel, V2 + "ModelInfer", data)
            stream = channel.stream_stream(V2 + "ModelStreamInfer")
            with contextlib.suppress(grpc.RpcError):
                list(stream(iter([data]), timeout=PATIENCE_S))
    assert not mark.exists()
    assert 200 in statuses, "some of it is good input, and goes through both Ops"
    assert service.worker_pids() == workers
    assert "fault of ours" not in service.log
    assert service.predict({"a": "b"}) == {"count": "1"}


def test_a_pickle_in_shared_memory_is_bytes(service: ServiceProcess, mark: Path, shared_file: Path) -> None:
    payload = payloads(mark)["protocol 5"]
    raw = len(payload).to_bytes(4, "little") + payload
    shared_file.write_bytes(raw)
    region = {"key": "/" + shared_file.name, "offset": 0, "byte_size": len(raw)}
    told = service.http("/v2/systemsharedmemory/region/trap/register", json.dumps(region))
    assert told.status == 200, told
    parameters = {"shared_memory_region": "trap", "shared_memory_byte_size": len(raw)}
    one = {"name": "a", "shape": [1], "datatype": "BYTES", "parameters": parameters}
    answer = service.http("/v2/models/test/infer", json.dumps({"inputs": [one]}))
    assert answer.status in (200, 400), answer
    assert not mark.exists()

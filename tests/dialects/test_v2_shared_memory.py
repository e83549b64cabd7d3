"""Shared memory of KServe v2: tensors that clients leave in and find in files of /dev/shm."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as v2_grpc
import tritonclient.http as v2_http
from tritonclient.utils import InferenceServerException, deserialize_bytes_tensor, serialize_byte_tensor

from pipeline.dialects.kserve.refusals import KServeRefusal
from pipeline.dialects.triton_extensions.shared_memory import SharedMemory
from tests.support.service_process import APPS, PATIENCE_S, ServiceProcess, wait_until

NUMBERS = np.arange(16, dtype=np.int32).reshape(1, 16)
SHM = Path("/dev/shm")


class Asking:
    """A service, asked over one protocol with Triton's client; it leaves no file behind."""

    def __init__(self, service: ServiceProcess, protocol: Any) -> None:
        self.service = service
        self.v2 = protocol
        port = service.http_port if protocol is v2_http else service.rpc_port
        self.client = protocol.InferenceServerClient(f"127.0.0.1:{port}")
        self.files: list[Path] = []

    def file(self, data: bytes) -> Path:
        path = SHM / f"paddlewheel-test-{uuid.uuid4().hex}"
        path.write_bytes(data)
        self.files.append(path)
        return path

    def register(self, data: bytes, name: str, offset: int = 0) -> Path:
        """A file with the data from `offset` on, registered from there."""
        path = self.file(bytes(offset) + data)
        self.client.register_system_shared_memory(name, f"/{path.name}", len(data), offset)
        return path

    def input(self, name: str, region: str, size: int, offset: int = 0, **other: Any) -> Any:
        one = self.v2.InferInput(name, other.get("shape", [1, 16]), other.get("datatype", "INT32"))
        one.set_shared_memory(region, size, offset)
        return one

    def output(self, name: str, region: str, size: int, offset: int = 0) -> Any:
        one = self.v2.InferRequestedOutput(name)
        one.set_shared_memory(region, size, offset)
        return one

    def simple(self, outputs: Any = None, size: int = 64, offset: int = 0) -> Any:
        """Both inputs of `simple` from the region `in`."""
        given = [self.input(name, "in", size, offset) for name in ("INPUT0", "INPUT1")]
        return self.client.infer("simple", given, outputs=outputs)


@contextlib.contextmanager
def asking(service: ServiceProcess, protocol: Any) -> Iterator[Asking]:
    one = Asking(service, protocol)
    try:
        yield one
    finally:
        one.client.unregister_system_shared_memory()
        one.client.close()
        for path in one.files:
            path.unlink(missing_ok=True)


@pytest.fixture(params=[v2_http, v2_grpc], ids=["http", "grpc"])
def simple(triton: Callable[[str], ServiceProcess], request: pytest.FixtureRequest) -> Iterator[Asking]:
    with asking(triton("simple"), request.param) as one:
        yield one


def refusal(ask: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    with pytest.raises(InferenceServerException) as told:
        ask(*arguments, **named)
    return str(told.value.message())


def test_inputs_are_read_and_outputs_written_where_they_are_said_to_be(simple: Asking) -> None:
    simple.register(NUMBERS.tobytes(), "in", offset=40)
    out = simple.register(bytes(200), "out", offset=8)
    outputs = [simple.output("OUTPUT1", "out", 64, 100), simple.output("OUTPUT0", "out", 64)]
    result = simple.simple(outputs)
    written = out.read_bytes()
    assert np.array_equal(np.frombuffer(written[8:72], np.int32), 2 * NUMBERS[0])
    assert written[72:108] == bytes(36) and written[108:] == bytes(100)
    told = result.get_response(as_json=True) if simple.v2 is v2_grpc else result.get_response()
    assert {output["name"] for output in told["outputs"]} == {"OUTPUT0", "OUTPUT1"}
    assert not any("data" in output or "parameters" in output for output in told["outputs"])


def test_one_output_may_be_sent_and_another_written(simple: Asking) -> None:
    simple.register(NUMBERS.tobytes(), "in")
    out = simple.register(bytes(64), "out")
    sent = simple.v2.InferRequestedOutput("OUTPUT1")
    result = simple.simple([simple.output("OUTPUT0", "out", 64), sent])
    assert np.array_equal(result.as_numpy("OUTPUT1"), np.zeros((1, 16), np.int32))
    assert np.array_equal(np.frombuffer(out.read_bytes(), np.int32), 2 * NUMBERS[0])


def test_texts_lie_there_each_after_its_length(
    triton: Callable[[str], ServiceProcess], simple: Asking
) -> None:
    texts = np.array([["国足", ""], ["x" * 300, "\0"]], object)
    raw = serialize_byte_tensor(texts).item()
    with asking(triton("identity_string"), simple.v2) as one:
        one.register(raw, "in")
        out = one.register(bytes(1000), "out")
        given = one.input("INPUT0", "in", len(raw), shape=[2, 2], datatype="BYTES")
        one.client.infer("identity_string", [given], outputs=[one.output("OUTPUT0", "out", 1000)])
        answered = deserialize_bytes_tensor(out.read_bytes()[: len(raw)])
    assert [text.decode() for text in answered] == texts.ravel().tolist()


def test_a_large_tensor_goes_there_and_back(triton: Callable[[str], ServiceProcess], simple: Asking) -> None:
    numbers = np.random.default_rng(7).random((3, 700_000), np.float32)
    with asking(triton("identity_fp32"), simple.v2) as one:
        one.register(numbers.tobytes(), "in")
        out = one.register(bytes(numbers.nbytes + 1), "out")
        given = one.input("INPUT0", "in", numbers.nbytes, shape=[3, 700_000], datatype="FP32")
        outputs = [one.output("OUTPUT0", "out", numbers.nbytes, 1)]
        one.client.infer("identity_fp32", [given], outputs=outputs)
        assert out.read_bytes() == b"\0" + numbers.tobytes()


def test_a_streams_requests_may_use_it(triton: Callable[[str], ServiceProcess]) -> None:
    with asking(triton("simple"), v2_grpc) as one:
        one.register(NUMBERS.tobytes(), "in")
        out = one.register(bytes(64), "out")
        answers: queue.Queue[Any] = queue.Queue()
        one.client.start_stream(lambda result, error: answers.put((result, error)))
        given = [one.input(name, "in", 64) for name in ("INPUT0", "INPUT1")]
        for size in (16, 64):
            one.client.async_stream_infer("simple", given, outputs=[one.output("OUTPUT0", "out", size)])
        refused, answered = answers.get(timeout=PATIENCE_S), answers.get(timeout=PATIENCE_S)
        one.client.stop_stream()
        written = out.read_bytes()
    assert "(16 bytes) should be at least 64 bytes" in str(refused[1])
    assert answered[1] is None
    assert np.array_equal(np.frombuffer(written, np.int32), 2 * NUMBERS[0])


OFFSET = "Invalid offset for shared memory region: 'in'"
SIZE = "Invalid offset + byte size for shared memory region: 'in'"
UNSIGNED = "non-unsigned-integer as unsigned-integer"


@pytest.mark.parametrize(
    ("size", "offset", "over_http", "over_grpc"),
    [
        (64, 64, OFFSET, OFFSET),
        (64, 1, SIZE, SIZE),
        (64, -1, UNSIGNED, OFFSET),
        (-64, 0, UNSIGNED, SIZE),
        (1 << 62, 0, SIZE, SIZE),
        (64, (1 << 63) - 1, OFFSET, OFFSET),
        (32, 0, "Expected 64, got 32", "Expected 64, got 32"),
        (0, 0, "Expected 64, got 0", "Expected 64, got 0"),
    ],
)
def test_what_is_not_in_the_region_is_refused(
    simple: Asking, size: int, offset: int, over_http: str, over_grpc: str
) -> None:
    simple.register(NUMBERS.tobytes(), "in")
    told = over_http if simple.v2 is v2_http else over_grpc
    assert told in refusal(simple.simple, size=size, offset=offset)
    assert simple.simple().as_numpy("OUTPUT0")[0, 15] == 30


def test_a_file_that_became_shorter_is_refused_and_kills_nobody(simple: Asking) -> None:
    path = simple.register(NUMBERS.tobytes(), "in")
    os.truncate(path, 10)
    assert "Invalid offset + byte size for shared memory region 'in'" in refusal(simple.simple)
    os.truncate(path, 64)
    out = simple.register(bytes(64), "out")
    os.truncate(out, 10)
    assert "region 'out'" in refusal(simple.simple, [simple.output("OUTPUT0", "out", 64)])
    assert out.stat().st_size == 10
    assert simple.simple().as_numpy("OUTPUT0").sum() == 2 * (0 + 1 + 2)


def test_too_little_room_for_an_output_is_refused(simple: Asking) -> None:
    simple.register(NUMBERS.tobytes(), "in")
    out = simple.register(bytes(64), "out")
    told = refusal(simple.simple, [simple.output("OUTPUT0", "out", 16)])
    assert "shared memory size specified with the request for output 'OUTPUT0' (16 bytes)" in told
    assert out.read_bytes() == bytes(64)


def test_a_region_that_is_unregistered_under_a_request_stays_until_its_end(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    env = {"MODEL": "simple", "WAIT_FOR": str(gate)}
    with (
        ServiceProcess(APPS / "triton.py", name="simple", env=env) as service,
        asking(service, v2_grpc) as one,
    ):
        one.register(np.full(16, 77, np.int32).tobytes(), "in")
        out = one.register(bytes(64), "out")
        answers: queue.Queue[Any] = queue.Queue()
        given = [one.input(name, "in", 64) for name in ("INPUT0", "INPUT1")]
        outputs = [one.output("OUTPUT0", "out", 64)]
        one.client.async_infer("simple", given, lambda result, error: answers.put(error), outputs=outputs)
        wait_until(lambda: service.metric("paddlewheel_pending_requests") == 1, "the request runs")
        one.client.unregister_system_shared_memory("out")
        assert list(one.client.get_system_shared_memory_status("out").regions) == ["out"]
        told = refusal(one.simple, outputs)
        assert told == "Unable to find shared memory region: 'out'", "a new request doesn't find it"
        gate.touch()
        assert answers.get(timeout=PATIENCE_S) is None
        assert np.frombuffer(out.read_bytes(), np.int32).tolist() == [154] * 16
        told = refusal(one.client.get_system_shared_memory_status, "out")
        assert told == "Unable to find system shared memory region: 'out'"
        one.client.register_system_shared_memory("out", f"/{out.name}", 64)


@pytest.mark.parametrize(
    "key", ["", "/", "/..", "/a/../b", "../etc/hosts", "/sub/file", "/" + "x" * 300, "/\0"]
)
def test_a_key_is_one_element_of_a_path(simple: Asking, key: str) -> None:
    told = refusal(simple.client.register_system_shared_memory, "in", key, 64)
    assert told.startswith("Unable to open shared memory region")
    assert not simple.service.http("/v2/systemsharedmemory/status").json


def test_links_pipes_and_folders_are_no_shared_memory(simple: Asking, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(64))
    link, pipe = (SHM / f"paddlewheel-test-{uuid.uuid4().hex}" for _ in range(2))
    link.symlink_to(tmp_path / "file")
    os.mkfifo(pipe)
    simple.files += [link, pipe]
    for path in (link, pipe):
        told = refusal(simple.client.register_system_shared_memory, "in", f"/{path.name}", 64)
        assert told.startswith("Unable to open shared memory region")


def test_what_is_registered_twice_or_not_in_the_file_is_refused(simple: Asking) -> None:
    register = simple.client.register_system_shared_memory
    key = f"/{simple.register(bytes(64), 'in').name}"
    assert refusal(register, "in", key, 64) == "shared memory region 'in' already in manager"
    with pytest.raises(InferenceServerException) as twice:
        register("in", key, 64)
    assert twice.value.status() in ("400", "StatusCode.ALREADY_EXISTS")
    assert refusal(register, "again", key, 64).startswith(f"Invalid shared memory region: '{key}'")
    other = f"/{simple.file(bytes(64)).name}"
    for size, offset in ((65, 0), (64, 1), (0, 0), (1 << 63, 1 << 63)):
        told = refusal(register, "other", other, size, offset)
        assert told == "failed to register shared memory region 'other': invalid args"
    simple.client.unregister_system_shared_memory("in")
    register("again", key, 64)


def test_memory_is_bounded_before_it_is_allocated(triton: Callable[[str], ServiceProcess]) -> None:
    service = triton("identity_fp32")
    with asking(service, v2_http) as one:
        path = one.file(b"")
        os.truncate(path, 1 << 40)  # a hole: it takes no memory
        one.client.register_system_shared_memory("in", f"/{path.name}", 1 << 40)
        before = service.metric("paddlewheel_resident_bytes", process="front")
        given = one.input("INPUT0", "in", 1 << 40, shape=[1, 1 << 38], datatype="FP32")
        assert "limits.body_bytes" in refusal(one.client.infer, "identity_fp32", [given])
        assert service.metric("paddlewheel_resident_bytes", process="front") - before < 32 << 20


def test_nothing_stays_open_of_what_is_unregistered(simple: Asking) -> None:
    def opened() -> int:
        folder = Path(f"/proc/{simple.service.process.pid}/fd")
        return sum(
            "paddlewheel-test" in str(each.readlink()) for each in folder.iterdir() if each.is_symlink()
        )

    for number in range(8):
        simple.register(bytes(8), f"region{number}")
    assert opened() == 8
    simple.client.unregister_system_shared_memory("region3")
    assert opened() == 7
    simple.client.unregister_system_shared_memory("nobody's")
    simple.client.unregister_system_shared_memory()
    assert opened() == 0


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"shared_memory_region": 5}, "non-string as string"),
        ({"shared_memory_byte_size": "x"}, "Unable to parse 'shared_memory_byte_size'"),
        ({"shared_memory_offset": 1.5}, "Unable to parse 'shared_memory_offset'"),
        ({"binary_data_size": 64}, "But set 'binary_data_size' 'shared_memory_region'"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(
    triton: Callable[[str], ServiceProcess], parameters: dict[str, Any], told: str
) -> None:
    with asking(triton("simple"), v2_http) as one:
        one.register(NUMBERS.tobytes(), "in")
        where = {"shared_memory_region": "in", "shared_memory_byte_size": 64, **parameters}
        given = {"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "parameters": where}
        answer = one.service.http("/v2/models/simple/infer", json.dumps({"inputs": [given]}))
    assert answer.status in (400, 500) and told in answer.json["error"], answer


def test_an_output_in_shared_memory_is_neither_classes_nor_sent(simple: Asking) -> None:
    simple.register(NUMBERS.tobytes(), "in")
    output = simple.v2.InferRequestedOutput("OUTPUT0", class_count=2)
    with contextlib.suppress(InferenceServerException):  # gRPC's client refuses it itself
        output.set_shared_memory("in", 64)
        told = refusal(simple.simple, [output])
        assert "can't set both 'shared_memory_region' and 'classification'" in told


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    config = {"v2": {"shared_memory": False}}  # what YAML makes of `off`
    with ServiceProcess(APPS / "triton.py", config, name="simple", env={"MODEL": "simple"}) as service:
        for protocol in (v2_http, v2_grpc):
            one = Asking(service, protocol)
            told = refusal(one.client.register_system_shared_memory, "in", "/x", 64)
            assert told == "shared memory is not offered here: v2.shared_memory is off"
            assert "v2.shared_memory is off" in refusal(one.simple)
        assert service.http("/v2/systemsharedmemory/status").status == 403
        assert "system_shared_memory" not in service.http("/v2").json["extensions"]


def test_clients_of_other_machines_are_refused_unless_all_are_allowed() -> None:
    here = ("127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", "ipv4:127.0.0.1:500", "ipv6:%5B::1%5D:500")
    elsewhere = ("10.0.0.7", "::ffff:10.0.0.7", "ipv4:10.0.0.7:500", "ipv6:%5Bfe80::1%5D:500", "?", "")
    for peer in (*here, *elsewhere):
        SharedMemory("always").admit(peer)
    for peer in here:
        SharedMemory("loopback").admit(peer)
    for peer in elsewhere:
        with pytest.raises(KServeRefusal, match=r"v2\.shared_memory is loopback"):
            SharedMemory("loopback").admit(peer)


def test_a_file_of_another_user_than_the_servers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    path = SHM / f"paddlewheel-test-{uuid.uuid4().hex}"
    path.write_bytes(bytes(8))
    memory = SharedMemory("always")
    try:
        memory.register("own", path.name, 0, 8)
        memory.unregister()
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
        with pytest.raises(KServeRefusal, match="belong to the user of the server"):
            memory.register("foreign", path.name, 0, 8)
        assert memory.status() == []
    finally:
        path.unlink()

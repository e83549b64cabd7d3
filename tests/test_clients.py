"""The clients against real servers that answer, refuse, hang and break off as each test says."""

from __future__ import annotations

import base64
import json
import math
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import xml.etree.ElementTree
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from client.errors import (
    BadAnswer,
    ClientError,
    RequestRefused,
    RequestTimedOut,
    ServiceUnavailable,
    ServiceUnreachable,
    TooManyRequests,
)
from client.exchange import as_feed
from client.http_client import HttpClient
from client.load_report import histogram, percentile
from client.pipeline_client import PipelineClient
from client.protos.pipeline_service_pb2 import Request, Response
from client.retry import parse_retry_after, pause_s
from client.rpc_client import RpcClient
from client.values import parse_value

ROOT = Path(__file__).resolve().parent.parent
RECORDINGS = {
    line["case"]: line["request"]
    for line in map(json.loads, (ROOT / "tests/fixtures/clients.jsonl").read_text("utf-8").splitlines())
}
OUTPUTS = {
    "label": "array(['sports'], dtype='<U6')",
    "label_id": "array([3])",
    "confidence": "array([0.98], dtype=float32)",
}


def answer(err_no: int = 0, err_msg: str = "") -> bytes:
    outputs = {} if err_no else OUTPUTS
    document = {"err_no": err_no, "err_msg": err_msg, "key": list(outputs), "value": list(outputs.values())}
    return json.dumps({**document, "tensors": []}).encode()


# --- HTTP: each request takes the next step of a script, the last step repeats ---

Step = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HttpServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.seen_changed:
            self.server.seen.append((self.path, json.loads(body)))
            self.server.ports.append(self.client_address[1])
            self.server.seen_changed.notify_all()
            step = self.server.script.pop(0) if len(self.server.script) > 1 else self.server.script[0]
        step(self)

    def log_message(self, *args: object) -> None:
        pass


class HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, script: list[Step]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script = script
        self.seen: list[tuple[str, Any]] = []
        self.ports: list[int] = []
        self.seen_changed = threading.Condition()
        self.over = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def wait_for_requests(self, number: int) -> None:
        with self.seen_changed:
            assert self.seen_changed.wait_for(lambda: len(self.seen) >= number, timeout=30)


def respond(status: int = 200, body: bytes = answer(), *, close: bool = False, **headers: str) -> Step:
    def step(handler: Handler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        handler.close_connection = handler.close_connection or close

    return step


def hang(handler: Handler) -> None:
    handler.server.over.wait()
    handler.close_connection = True


def drip(handler: Handler) -> None:
    """A header that goes on for ever: each read gets something in time, the answer never ends."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    try:
        while not handler.server.over.wait(0.02):
            handler.wfile.write(b".")
    except OSError:
        handler.close_connection = True


def reset(handler: Handler) -> None:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True
    handler.rfile.close()
    handler.wfile.close()
    handler.connection.close()


def cut_off(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
    handler.close_connection = True


@contextmanager
def http_server(*script: Step) -> Iterator[HttpServer]:
    with HttpServer(list(script)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()
            thread.join()


# --- gRPC: the same, on raw bytes ---

RpcStep = Callable[[grpc.ServicerContext], bytes]


class RpcServer:
    def __init__(self, script: list[RpcStep]) -> None:
        self.script = script
        self.seen: list[bytes] = []
        self.over = threading.Event()
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        methods = {"inference": grpc.unary_unary_rpc_method_handler(self._inference)}
        service = "baidu.paddle_serving.pipeline_serving.PipelineService"
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _inference(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        with self._lock:
            self.seen.append(request)
            step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return step(context)

    def stop(self) -> None:
        self.over.set()
        self._server.stop(grace=None).wait()


def reply(err_no: int = 0, err_msg: str = "") -> RpcStep:
    outputs = {} if err_no else OUTPUTS
    response = Response(err_no=err_no, err_msg=err_msg, key=outputs.keys(), value=outputs.values())
    return lambda context: response.SerializeToString()


def refuse(code: grpc.StatusCode, pushback_ms: str | None = None) -> RpcStep:
    def step(context: grpc.ServicerContext) -> bytes:
        if pushback_ms is not None:
            context.set_trailing_metadata((("grpc-retry-pushback-ms", pushback_ms),))
        context.abort(code, "not now")
        raise AssertionError

    return step


@contextmanager
def rpc_server(*script: RpcStep) -> Iterator[RpcServer]:
    server = RpcServer(list(script))
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is bound and not listened on: connecting to it is refused."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


# --- what is sent, and what comes back ---


def test_http_answer_has_the_outputs_by_key() -> None:
    with http_server(respond()) as server, HttpClient(server.url) as client:
        found = client.predict("国足客场两球取胜")
    assert (found.err_no, found.err_msg, found.outputs) == (0, "", OUTPUTS)
    assert server.seen == [("/bert/prediction", {"key": ["0"], "value": ["国足客场两球取胜"]})]


def test_rpc_answer_has_the_outputs_by_key() -> None:
    with rpc_server(reply()) as server, RpcClient(server.address) as client:
        found = client.predict("国足客场两球取胜")
    assert (found.err_no, found.err_msg, found.outputs) == (0, "", OUTPUTS)
    sent = Request.FromString(server.seen[0])
    assert (sent.key, sent.value, sent.name, sent.method) == (
        ["0"],
        ["国足客场两球取胜"],
        "bert",
        "prediction",
    )


@pytest.mark.parametrize(
    ("inputs", "feed"),
    [
        ("text", {"0": "text"}),
        (["t1", "t2"], {"0": "t1", "1": "t2"}),
        ({"words": "text"}, {"words": "text"}),
    ],
    ids=["one-text", "texts", "mapping"],
)
def test_texts_are_numbered_and_mappings_kept(inputs: Any, feed: dict[str, str]) -> None:
    assert as_feed(inputs) == feed


def test_nothing_to_send_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="nothing to send"):
        as_feed([])
    with pytest.raises(TypeError, match="key 'x': int"):
        as_feed({"x": 1})  # type: ignore[dict-item]


def test_http_connection_is_kept_for_the_next_request() -> None:
    with http_server(respond()) as server, HttpClient(server.url) as client:
        for _ in range(3):
            client.predict("text")
    assert len(server.ports) == 3
    assert len(set(server.ports)) == 1


def test_a_connection_that_the_server_announced_to_close_is_not_used_again() -> None:
    last = respond(close=True, Connection="close")
    with http_server(last) as server, HttpClient(server.url, retries=0) as client:
        for _ in range(3):
            client.predict("text")
    assert len(set(server.ports)) == 3


# --- retries ---


def test_http_429_is_tried_again_after_its_retry_after() -> None:
    busy = respond(429, answer(3001, "busy"), Retry_After="0")
    with http_server(busy, busy, respond()) as server, HttpClient(server.url, retries=2) as client:
        assert client.predict("text").outputs == OUTPUTS
    assert len(server.seen) == 3


def test_a_retry_after_beyond_the_timeout_is_reported_at_once() -> None:
    busy = respond(429, answer(3001, "120 requests are pending"), Retry_After="60")
    with (
        http_server(busy) as server,
        HttpClient(server.url, timeout_s=20, retries=5) as client,
        pytest.raises(TooManyRequests, match="120 requests are pending") as caught,
    ):
        client.predict("text")
    assert (caught.value.retry_after_s, caught.value.err_no, caught.value.http_status) == (60, 3001, 429)
    assert len(server.seen) == 1


def test_503_that_lasts_is_unavailable_after_all_tries() -> None:
    down = respond(503, answer(3001, "stopping"), Retry_After="0")
    with (
        http_server(down) as server,
        HttpClient(server.url, retries=2) as client,
        pytest.raises(ServiceUnavailable, match="stopping"),
    ):
        client.predict("text")
    assert len(server.seen) == 3


@pytest.mark.parametrize("broken", [reset, cut_off], ids=["reset", "cut-off"])
def test_a_connection_that_breaks_off_is_tried_again(broken: Step) -> None:
    with http_server(broken, respond()) as server, HttpClient(server.url) as client:
        assert client.predict("text").outputs == OUTPUTS
    assert [body["value"] for _, body in server.seen] == [["text"], ["text"]]


def test_idle_connections_that_the_server_closed_cost_no_request() -> None:
    """More of them than there are retries: one broken shows that the others are, too."""
    together = threading.Barrier(4)

    def last_word(handler: Handler) -> None:
        together.wait(timeout=30)
        respond(close=True)(handler)

    script = [last_word] * 4 + [respond()]
    with http_server(*script) as server, HttpClient(server.url, retries=1) as client:
        with ThreadPoolExecutor(4) as threads:
            assert len(list(threads.map(client.predict, "abcd"))) == 4
        assert client.predict("e").outputs == OUTPUTS
    assert sorted(body["value"][0] for _, body in server.seen) == ["a", "b", "c", "d", "e"]


def test_errors_of_the_request_are_not_tried_again() -> None:
    for status in (200, 400):
        with (
            http_server(respond(status, answer(5000, "'0' is empty"))) as server,
            HttpClient(server.url) as client,
            pytest.raises(RequestRefused, match="'0' is empty") as caught,
        ):
            client.predict("")
        assert (caught.value.err_no, caught.value.http_status) == (5000, status)
        assert len(server.seen) == 1


@pytest.mark.parametrize("silent", [hang, drip], ids=["hangs", "drips"])
def test_http_timeout_bounds_the_whole_call(silent: Step) -> None:
    with (
        http_server(silent) as server,
        HttpClient(server.url, timeout_s=0.3) as client,
        pytest.raises(RequestTimedOut),
    ):
        client.predict("text")
        assert len(server.seen) == 1


def test_the_deadline_of_the_service_is_a_timeout_too() -> None:
    with (
        http_server(respond(504, answer(6000, "too late"))) as server,
        HttpClient(server.url) as client,
        pytest.raises(RequestTimedOut, match="too late"),
    ):
        client.predict("text")
    with (
        rpc_server(reply(6000, "too late")) as rpc,
        RpcClient(rpc.address) as rpc_client,
        pytest.raises(RequestTimedOut, match="too late"),
    ):
        rpc_client.predict("text")
    assert (len(server.seen), len(rpc.seen)) == (1, 1)


def test_another_programs_answer_is_told_apart() -> None:
    with (
        http_server(respond(404, b"<html>nginx</html>")) as server,
        HttpClient(server.url) as client,
        pytest.raises(BadAnswer, match="nginx"),
    ):
        client.predict("text")


def test_nobody_listening_is_unreachable(closed_port: int) -> None:
    clients = [
        HttpClient(f"http://127.0.0.1:{closed_port}", retries=1),
        RpcClient(f"127.0.0.1:{closed_port}", retries=1),
    ]
    for client in clients:
        with client, pytest.raises(ServiceUnreachable, match="is the service started"):
            client.predict("text")


@pytest.mark.parametrize(
    "code",
    [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED],
    ids=["unavailable", "cancelled", "exhausted"],
)
def test_rpc_call_that_a_stopping_or_busy_server_ends_is_tried_again(code: grpc.StatusCode) -> None:
    with rpc_server(refuse(code, "0"), reply()) as server, RpcClient(server.address) as client:
        assert client.predict("text").outputs == OUTPUTS
    assert len(server.seen) == 2
    assert server.seen[0] == server.seen[1]


def test_rpc_pushback_beyond_the_timeout_is_reported_at_once() -> None:
    busy = refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "60000")
    with (
        rpc_server(busy) as server,
        RpcClient(server.address, timeout_s=20) as client,
        pytest.raises(TooManyRequests) as caught,
    ):
        client.predict("text")
    assert (caught.value.retry_after_s, caught.value.http_status, len(server.seen)) == (60, None, 1)


def test_negative_rpc_pushback_forbids_the_retry() -> None:
    with (
        rpc_server(refuse(grpc.StatusCode.UNAVAILABLE, "-1")) as server,
        RpcClient(server.address) as client,
        pytest.raises(ServiceUnavailable),
    ):
        client.predict("text")
    assert len(server.seen) == 1


def test_rpc_timeout_and_refusal_are_typed() -> None:
    def silent(context: grpc.ServicerContext) -> bytes:
        server.over.wait()
        return b""

    with (
        rpc_server(silent) as server,
        RpcClient(server.address, timeout_s=0.3) as client,
        pytest.raises(RequestTimedOut),
    ):
        client.predict("text")
        server.over.set()
    with (
        rpc_server(reply(3002, "no service x")) as server,
        RpcClient(server.address, "x") as client,
        pytest.raises(RequestRefused, match="no service x") as caught,
    ):
        client.predict("text")
    assert (caught.value.err_no, caught.value.http_status, len(server.seen)) == (3002, None, 1)


def test_every_error_is_a_client_error() -> None:
    for kind in (ServiceUnreachable, RequestTimedOut, RequestRefused, TooManyRequests, ServiceUnavailable):
        assert issubclass(kind, ClientError)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("2", 2.0),
        (" 0 ", 0.0),
        ("Wed, 21 Oct 2026 07:28:05 GMT", 5.0),
        ("Wed, 21 Oct 2026 07:27:00 GMT", 0.0),
        ("soon", None),
        ("-1", None),
        (None, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header, datetime(2026, 10, 21, 7, 28, tzinfo=UTC)) == seconds


def test_pauses_grow_to_a_cap_and_never_undercut_the_service() -> None:
    assert [pause_s(tries, None, 0.999999) for tries in (1, 2, 3, 20)] == pytest.approx(
        [0.1, 0.2, 0.4, 5.0], 1e-3
    )
    assert pause_s(3, None, 0.0) == pytest.approx(0.2)
    assert pause_s(1, 7.0, 0.0) == 7.0
    assert pause_s(1, 7.0, 0.5) > 7.0
    assert pause_s(5, 0.0, 0.5) == 0.0


# --- values ---


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("array([3])", [3]),
        ("array([0.98], dtype=float32)", [0.98]),
        ("array(['sports', 'it\\'s'], dtype='<U6')", ["sports", "it's"]),
        ("array([[1, 2],\n       [3, 4]], dtype=int32)", [[1, 2], [3, 4]]),
        ("array([-1.5e-05,        inf,       -inf])", [-1.5e-05, math.inf, -math.inf]),
        ("array(['nan', '[x]'], dtype='<U3')", ["nan", "[x]"]),
        ("array([ True, False])", [True, False]),
        ("array([1.+2.j, 0.-1.j])", [1 + 2j, -1j]),
        ("array([], shape=(0, 3), dtype=float32)", []),
        ("array(7)", 7),
        ("array([0, ..., 9])", "array([0, ..., 9])"),
        ("array([__import__('os').getcwd()])", "array([__import__('os').getcwd()])"),
        ("array(" + "[" * 5000 + "]" * 5000 + ")", "array(" + "[" * 5000 + "]" * 5000 + ")"),
        ("array([1, 2", "array([1, 2"),
        ("sports", "sports"),
        ("", ""),
    ],
    ids=lambda value: str(value)[:30],
)
def test_printed_arrays_become_lists_and_texts_stay(text: str, value: object) -> None:
    assert parse_value(text) == value


def test_nan_is_read_as_nan() -> None:
    found = parse_value("array([1., nan])")
    assert isinstance(found, list)
    assert found[0] == 1.0
    assert isinstance(found[1], float)
    assert math.isnan(found[1])


# --- PipelineClient ---


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
        client.predict({"cmd": "ids", "clientip": "1.1.1.1"}, log_id=7)
    assert server.seen[0] == base64.b64decode(RECORDINGS["grpc_logid_max"]["wire_b64"])
    sent = Request.FromString(server.seen[1])
    assert (sent.key, sent.logid, sent.clientip) == (["cmd"], 7, "1.1.1.1")
    assert "logid" in feed


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
    recorded = Request.FromString(base64.b64decode(RECORDINGS["grpc_tensors_all_types"]["wire_b64"]))
    with pipeline_client(reply()) as (client, server):
        client.predict(feed, pack_tensor_format=True)
        array = np.arange(6, dtype="float32").reshape(2, 3)
        client.predict({"by": array}, pack_tensor_format=True, use_tensor_bytes=True)
    assert server.seen[0] == Request(tensors=recorded.tensors[:12]).SerializeToString()
    assert server.seen[1] == Request(tensors=recorded.tensors[12:13]).SerializeToString()


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


# --- the scripts ---


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_scripts_print_text_label_and_confidence() -> None:
    with http_server(respond()) as server, rpc_server(reply()) as rpc:
        over_http = run("client/http_client.py", "--url", server.url, "国足 [red] :car: 取胜")
        over_rpc = run("client/rpc_client.py", "--address", rpc.address, "国足 [red] :car: 取胜")
    for result in (over_http, over_rpc):
        assert result.returncode == 0, result.stderr
        for part in ("国足 [red] :car: 取胜", "sports", "0.980"):
            assert part in result.stdout


def test_scripts_print_the_raw_answer_as_json() -> None:
    with rpc_server(reply()) as rpc:
        result = run("client/rpc_client.py", "--address", rpc.address, "--json", "text")
    assert json.loads(result.stdout) == {"err_no": 0, "err_msg": "", "outputs": OUTPUTS}


def test_script_without_a_service_says_so(closed_port: int) -> None:
    result = run(
        "client/http_client.py", "--url", f"http://127.0.0.1:{closed_port}", "--retries", "0", "text"
    )
    assert result.returncode == 1
    assert "ServiceUnreachable: nothing listens at" in result.stderr


def test_script_goes_on_in_the_projects_environment_when_its_own_lacks_grpc(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "client", tmp_path / "client", ignore=shutil.ignore_patterns("__pycache__"))
    script = tmp_path / "client/rpc_client.py"
    without = run("-S", script, "text")
    assert without.returncode == 1
    assert "make setup" in without.stderr
    interpreter = tmp_path / ".venv/bin/python"
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text('#!/bin/sh\necho "$@"\n')
    interpreter.chmod(0o755)
    assert run("-S", script, "text").stdout.split() == ["-S", str(script), "text"]


# --- the load test ---


def test_load_prints_rate_and_percentiles_and_draws_the_plot(tmp_path: Path) -> None:
    plot = tmp_path / "latency.svg"
    with http_server(respond()) as server:
        result = run(
            *("-m", "client.load", "--url", server.url, "--threads", "3", "--loops", "5", "--rows", "2"),
            *("--plot", plot),
        )
    assert result.returncode == 0, result.stderr
    assert len(server.seen) == 1 + 3 * 5
    assert all(len(body["value"]) == 2 for _, body in server.seen[1:])
    for part in ("15 in", "answered/s", "p50", "p90", "p99", "max", "█"):
        assert part in result.stdout
    root = xml.etree.ElementTree.parse(plot).getroot()
    assert len(root.findall("{http://www.w3.org/2000/svg}circle")) == 15


def test_load_counts_errors_by_kind_and_exits_1() -> None:
    down = refuse(grpc.StatusCode.UNAVAILABLE)
    with rpc_server(reply(), reply(), down, reply(5000, "no"), reply()) as server:
        result = run("-m", "client.load", "--rpc", server.address, "--threads", "1", "--loops", "4")
    assert result.returncode == 1
    assert "ServiceUnavailable (err_no 3001)" in result.stdout
    assert "RequestRefused (err_no 5000)" in result.stdout
    assert len(server.seen) == 5


def test_interrupted_load_prints_what_it_measured() -> None:
    script = [respond()] * 30 + [hang]
    with http_server(*script) as server:
        command = [
            sys.executable,
            "-m",
            "client.load",
            "--url",
            server.url,
            "--threads",
            "2",
            "--seconds",
            "600",
        ]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            server.wait_for_requests(32)
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "29 in" in output


def test_percentiles_are_nearest_rank() -> None:
    hundred = [float(number) for number in range(1, 101)]
    assert [percentile(hundred, percent) for percent in (50, 90, 99, 100)] == [50, 90, 99, 100]
    assert percentile([7.0], 50) == 7.0


def test_histogram_holds_every_latency_once() -> None:
    latencies = [0.0, 0.5, 1.0, 2.0, 2.0, 1000.0]
    assert sum(bin.size for bin in histogram(latencies)) == len(latencies)
    assert [bin.size for bin in histogram([3.0, 3.0])] == [2]

"""HTTP and gRPC servers that answer, refuse, hang and break off as a script of steps says.

Each request takes the next step; the last step repeats.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc

from client.protos.pipeline_service_pb2 import Response
from tests.support.service_process import PATIENCE_S

OUTPUTS = {
    "label": "array(['sports'], dtype='<U6')",
    "label_id": "array([3])",
    "confidence": "array([0.98], dtype=float32)",
}


def answer(err_no: int = 0, err_msg: str = "") -> bytes:
    outputs = {} if err_no else OUTPUTS
    document = {"err_no": err_no, "err_msg": err_msg, "key": list(outputs), "value": list(outputs.values())}
    return json.dumps({**document, "tensors": []}).encode()


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
            self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
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
        self.headers: list[dict[str, str]] = []
        self.seen_changed = threading.Condition()
        self.over = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def wait_for_requests(self, number: int) -> None:
        with self.seen_changed:
            assert self.seen_changed.wait_for(lambda: len(self.seen) >= number, PATIENCE_S)


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

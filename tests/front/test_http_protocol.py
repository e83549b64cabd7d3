"""What the HTTP port makes of bytes: limits, broken and slow requests, connections that are used again."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import re
import select
import socket
from collections.abc import Iterator

import pytest

from tests.support.going_on import going_on
from tests.support.http_endpoint import GOOD, LIMITS, endpoint
from tests.support.raw_answers import received_until
from tests.support.service_process import APPS, PATIENCE_S, ServiceProcess, key_value, read_answer

FLOOD = 900  # requests that a server reads at once, and whose answers the kernel takes at once


@pytest.fixture(scope="module", params=["status", "original"])
def service(request: pytest.FixtureRequest) -> Iterator[ServiceProcess]:
    with endpoint(request.param) as process:
        yield process


@pytest.fixture(autouse=True)
def goes_on(service: ServiceProcess) -> Iterator[None]:
    with going_on(service):
        yield


def exchange(service: ServiceProcess, *chunks: bytes) -> bytes:
    """Send raw bytes; everything the server says until it closes."""
    with socket.create_connection(("127.0.0.1", service.http_port), timeout=10) as client:
        for chunk in chunks:
            client.sendall(chunk)
        received = b""
        while data := client.recv(65536):
            received += data
        return received


def parsed(raw: bytes) -> tuple[int, dict[str, str], dict[str, object]]:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert len(body) == int(headers["content-length"])
    return int(first.split()[1]), headers, json.loads(body)


def post(*headers: str, path: str = "/test/prediction") -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: test", *headers, "", ""]).encode()


@pytest.mark.parametrize("size", [LIMITS["body_bytes"] + 1, 50 * LIMITS["body_bytes"]])
def test_a_body_over_the_limit_is_413_even_to_a_client_that_sends_all_before_it_reads(
    service: ServiceProcess, size: int
) -> None:
    answer = service.http("/test/prediction", b"x" * size)
    assert (answer.status, answer.json["err_no"]) == (413, 5000)
    assert "100000 bytes" in answer.json["err_msg"]
    assert answer.headers["connection"] == "close"


def test_a_chunked_body_over_the_limit_is_413(service: ServiceProcess) -> None:
    chunk = b"%x\r\n%b\r\n" % (60_000, b"x" * 60_000)
    raw = exchange(service, post("Transfer-Encoding: chunked"), chunk, chunk, b"0\r\n\r\n")
    code, headers, answer = parsed(raw)
    assert (code, headers["connection"], answer["err_no"]) == (413, "close", 5000)


def test_who_is_refused_is_not_asked_for_the_body(service: ServiceProcess) -> None:
    """Not even who sends a part of it without waiting for that."""
    raw = exchange(service, post("Expect: 100-continue", "Transfer-Encoding: chunked") + b"no size\r\n")
    assert parsed(raw)[0] == 400
    assert "Traceback" not in service.log


def test_a_chunked_body_is_read(service: ServiceProcess) -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (GOOD[:5], GOOD[5:]))
    raw = exchange(service, post("Transfer-Encoding: chunked", "Connection: close"), chunks, b"0\r\n\r\n")
    assert parsed(raw)[2]["err_no"] == 0


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\r\n\r\nhello\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /test/prediction HTTP/1.1\r\nHost test\r\n\r\n",
        post("Content-Length: -1"),
        post("Content-Length: many"),
        post("Content-Length: " + "9" * 30),
        post("Content-Length: " + "9" * 5000),
        post("Content-Length: 2", "Content-Length: 3"),
        post("Content-Length: 2", "Transfer-Encoding: chunked"),
        post("Transfer-Encoding: chunked") + b"no number\r\n",
        post("Content-Length: 2", path="http://[") + b"{}",
    ],
    ids=[
        "TLS", "words", "HTTP/2", "no colon", "negative length", "length of letters", "length over 64 bits",
        "length of 5000 digits", "two lengths", "length and chunks", "no chunk", "no URL",
    ],
)  # fmt: skip
def test_what_is_no_http_is_400_with_err_no_and_the_connection_closed(
    service: ServiceProcess, request_bytes: bytes
) -> None:
    code, headers, answer = parsed(exchange(service, request_bytes))
    assert code in (400, 413)
    assert headers["connection"] == "close"
    assert answer["err_no"] == 5000
    assert answer["err_msg"]


def test_a_body_longer_than_its_content_length_is_refused(service: ServiceProcess) -> None:
    code, headers, answer = parsed(exchange(service, post("Content-Length: 2") + GOOD))
    assert (code, headers["connection"], answer["err_no"]) == (400, "close", 8000)


def test_a_body_shorter_than_its_content_length_is_408(service: ServiceProcess) -> None:
    code, headers, answer = parsed(exchange(service, post("Content-Length: 500"), GOOD))
    assert (code, headers["connection"]) == (408, "close")
    assert "body did not arrive" in str(answer["err_msg"])


@pytest.mark.parametrize("start", [b"P", b"POST /test/prediction HTTP/1.1\r\nHost: te"])
def test_slow_headers_are_408(service: ServiceProcess, start: bytes) -> None:
    code, headers, answer = parsed(exchange(service, start))
    assert (code, headers["connection"]) == (408, "close")
    assert "headers did not arrive" in str(answer["err_msg"])
    assert answer["err_no"] == 5000


def test_slow_headers_of_a_second_request_are_408(service: ServiceProcess) -> None:
    raw = exchange(service, post(f"Content-Length: {len(GOOD)}") + GOOD + b"POST /te")
    first, second = raw.split(b"HTTP/1.1 ")[1:]
    assert (first[:3], second[:3]) == (b"200", b"408")


def test_a_connection_without_a_word_is_left_alone(service: ServiceProcess) -> None:
    """It costs nothing, and clients keep idle connections in a pool."""
    idle = http.client.HTTPConnection("127.0.0.1", service.http_port)
    with socket.create_connection(("127.0.0.1", service.http_port)) as silent, contextlib.closing(idle):
        idle.request("POST", "/test/prediction", GOOD)
        assert read_answer(idle).status == 200
        exchange(service, b"P")  # ends when a time limit has passed
        exchange(service, b"P")
        idle.request("POST", "/test/prediction", GOOD)
        assert read_answer(idle).status == 200
        silent.sendall(post(f"Content-Length: {len(GOOD)}") + GOOD)
        assert silent.recv(12) == b"HTTP/1.1 200"


def test_too_many_headers_are_431(service: ServiceProcess) -> None:
    raw = exchange(service, post(*(f"X-{i}: 1" for i in range(20)), "Content-Length: 2") + b"{}")
    code, headers, answer = parsed(raw)
    assert (code, headers["connection"], answer["err_no"]) == (431, "close", 5000)
    assert "more than 20" in str(answer["err_msg"])


def test_as_many_headers_as_allowed_are_read(service: ServiceProcess) -> None:
    more = [f"X-{i}: 1" for i in range(17)]
    raw = exchange(service, post(*more, "Connection: close", f"Content-Length: {len(GOOD)}") + GOOD)
    assert parsed(raw)[2]["err_no"] == 0


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"], ids=["endless", "complete"])
def test_headers_of_too_many_bytes_are_431(service: ServiceProcess, end: bytes) -> None:
    head = b"POST /test/prediction HTTP/1.1\r\nHost: test\r\nX: " + b"x" * 9000
    code, headers, answer = parsed(exchange(service, head + end))
    assert (code, headers["connection"], answer["err_no"]) == (431, "close", 5000)
    assert "8192 bytes" in str(answer["err_msg"])


@pytest.mark.parametrize("start", [b"0\r\nX: ", b"2;"], ids=["trailer", "extension of a chunk"])
def test_an_endless_line_between_and_after_chunks_is_431(service: ServiceProcess, start: bytes) -> None:
    raw = b""
    with socket.create_connection(("127.0.0.1", service.http_port), timeout=10) as client:
        client.sendall(post("Transfer-Encoding: chunked") + b"%x\r\n%b\r\n" % (len(GOOD), GOOD) + start)
        while not select.select([client], [], [], 0)[0]:
            client.sendall(b"x" * 3000)
        while data := client.recv(65536):
            raw += data
    code, headers, answer = parsed(raw)
    assert (code, headers["connection"], answer["err_no"]) == (431, "close", 5000)


def test_short_chunks_do_not_count_as_headers(service: ServiceProcess) -> None:
    body = key_value({"number": "3", **{f"more {i}": "x" * 900 for i in range(20)}})
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    raw = exchange(service, post("Transfer-Encoding: chunked", "Connection: close"), chunks, b"0\r\n\r\n")
    assert parsed(raw)[2]["err_no"] == 0


def test_a_body_after_headers_in_pieces_does_not_count_as_headers(service: ServiceProcess) -> None:
    body = key_value({"number": "3", "text": "x" * 900, **{f"more {i}": "x" * 900 for i in range(60)}})
    head = post("Connection: close", f"Content-Length: {len(body)}")
    with socket.create_connection(("127.0.0.1", service.http_port), timeout=10) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(head[:-2])
        client.sendall(head[-2:] + body)
        assert client.recv(12) == b"HTTP/1.1 200"


def test_100_continue_is_said_before_the_body(service: ServiceProcess) -> None:
    with socket.create_connection(("127.0.0.1", service.http_port), timeout=10) as client:
        client.sendall(post("Expect: 100-continue", f"Content-Length: {len(GOOD)}"))
        assert client.recv(100).startswith(b"HTTP/1.1 100")
        client.sendall(GOOD)
        assert client.recv(12) == b"HTTP/1.1 200"


def test_pipelined_requests_are_answered_in_order(service: ServiceProcess) -> None:
    bodies = [key_value({"number": str(i)}) for i in range(5)]
    heads = [post(f"Content-Length: {len(body)}") for body in bodies]
    last = post("Connection: close", f"Content-Length: {len(GOOD)}") + GOOD
    raw = exchange(service, b"".join(map(bytes.__add__, heads, bodies)) + last)
    answers = [json.loads(part[part.index(b"{") :]) for part in raw.split(b"HTTP/1.1 ")[1:]]
    assert [answer["value"][1] for answer in answers] == ["0", "2", "4", "6", "8", "42"]


def test_any_number_of_pipelined_requests_is_answered(service: ServiceProcess) -> None:
    live = b"GET /health/live HTTP/1.1\r\nHost: test\r\n\r\n"
    last = post("Connection: close", f"Content-Length: {len(GOOD)}") + GOOD
    raw = exchange(service, live * 3000 + last)
    assert raw.count(b'{"live":true}') == 3000
    assert b'"42"' in raw[raw.rindex(b"HTTP/1.1 200") :]


def test_a_flood_of_requests_leaves_other_work_its_turn(service: ServiceProcess) -> None:
    """Such as a prediction, which the server takes in one turn of its loop and hands over in a later one."""
    live, metrics = (
        b"GET %b HTTP/1.1\r\nHost: test\r\n\r\n" % path for path in (b"/health/live", b"/metrics")
    )
    assert service.predict({"number": "21"})["doubled"] == "42"
    handed_over = service.metric("paddlewheel_op_queue_seconds_count")
    with connected(service) as flooding, connected(service) as asking:
        with service.stopped():
            flooding.sendall(live * FLOOD + metrics)
            asking.sendall(post(f"Content-Length: {len(GOOD)}") + GOOD)
        flooding.shutdown(socket.SHUT_WR)
        raw = b"".join(iter(lambda: flooding.recv(65536), b""))
    assert raw.count(b'{"live":true}') == FLOOD
    counts = re.findall(rb"^paddlewheel_op_queue_seconds_count\S* (\S+)$", raw, re.MULTILINE)
    assert sum(map(float, counts)) == handed_over + 1, "the prediction had to wait for the end of the flood"


NOWHERE = b"GET /nowhere HTTP/1.1\r\nHost: test\r\n\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n"
END_OF_METRICS = b"\npaddlewheel_log_lines_dropped_total"


def refused(page: bytes) -> float:
    """How many requests were refused for their path, as a page of metrics says it."""
    counts = re.findall(rb'^paddlewheel_requests_total\{.*err_no="3002".*\} (\S+)$', page, re.MULTILINE)
    return sum(map(float, counts))


def test_of_pipelined_requests_one_begins_in_each_turn(service: ServiceProcess) -> None:
    """So the first request of another connection does not wait for the second of this one."""
    before = refused(service.http("/metrics").body)
    with connected(service) as pipelining, connected(service) as asking:
        with service.stopped():
            pipelining.sendall(b"GET /health/live HTTP/1.1\r\nHost: test\r\n\r\n" + METRICS)
            asking.sendall(NOWHERE)
        page = received_until(pipelining, END_OF_METRICS)
    assert refused(page) == before + 1


def test_requests_for_metrics_share_a_rendering() -> None:
    config = {"limits": {"metrics_interval_s": 0.5}}
    with ServiceProcess(APPS / "echo.py", config) as service, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(service)) for _ in range(20)]
        for client in clients:
            client.sendall(NOWHERE + METRICS)
        pages = [received_until(client, END_OF_METRICS) for client in clients]
        counts = {refused(page) for page in pages}
        assert len(counts) <= 3 and max(counts) == len(clients)


@contextlib.contextmanager
def connected(service: ServiceProcess) -> Iterator[socket.socket]:
    """A connection that was answered once, with room for the answers to a flood."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_000_000)
        client.settimeout(PATIENCE_S)
        client.connect(("127.0.0.1", service.http_port))
        client.sendall(b"GET /health/live HTTP/1.1\r\nHost: test\r\n\r\n")
        assert client.recv(65536).endswith(b'{"live":true}')
        yield client


def test_100_continue_waits_for_the_answer_before_it(service: ServiceProcess) -> None:
    first = post(f"Content-Length: {len(GOOD)}") + GOOD
    second = post("Expect: 100-continue", "Connection: close", f"Content-Length: {len(GOOD)}")
    with socket.create_connection(("127.0.0.1", service.http_port), timeout=10) as client:
        client.sendall(first + second)
        received = received_until(client, b"HTTP/1.1 100")
        assert received.startswith(b"HTTP/1.1 200")
        client.sendall(GOOD)
        assert client.recv(12) == b"HTTP/1.1 200"


def test_a_request_to_upgrade_is_answered_as_if_it_did_not_ask(service: ServiceProcess) -> None:
    """Java's HttpClient asks for h2c with its first request, and sends more on the same connection."""
    connection = http.client.HTTPConnection("127.0.0.1", service.http_port, timeout=10)
    with contextlib.closing(connection):
        for _ in range(2):
            headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAM"}
            connection.request("POST", "/test/prediction", GOOD, headers)
            assert read_answer(connection).json["err_no"] == 0


@pytest.mark.parametrize(
    "connection", ["Connection: Upgrade, close", "Connection: Upgrade\r\nConnection: close"]
)
def test_a_request_to_upgrade_and_to_close_is_closed(service: ServiceProcess, connection: str) -> None:
    raw = exchange(service, post(connection, "Upgrade: h2c", f"Content-Length: {len(GOOD)}"), GOOD)
    code, headers, answer = parsed(raw)
    assert (code, headers["connection"], answer["err_no"]) == (200, "close", 0)


def test_an_upgrade_in_http_1_0_is_ignored(service: ServiceProcess) -> None:
    """RFC 9110 section 7.8. The connection is closed as for any client of HTTP/1.0."""
    head = post("Connection: Upgrade", "Upgrade: h2c", f"Content-Length: {len(GOOD)}")
    code, headers, answer = parsed(exchange(service, head.replace(b"HTTP/1.1", b"HTTP/1.0"), GOOD))
    assert (code, headers["connection"], answer["err_no"]) == (200, "close", 0)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /test/prediction HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 400),
        (post("Host: other"), 400),
        (post("Host: test"), 400),
        (post().replace(b"Host: test", b"Host: a b"), 400),
        (post().replace(b"Host: test", b"Host: a/b"), 400),
        (post().replace(b"Host: test", b"Host: a:port"), 400),
        (post().replace(b"Host: test", b"Host: http://a"), 400),
        (post().replace(b"Host: test", b"Host: [::1"), 400),
        (post("Host: other").replace(b"HTTP/1.1", b"HTTP/1.0"), 400),
        (b"GET /health/live\r\n\r\n", 505),
        (b"GET /health/live HTTP/0.9\r\n\r\n", 505),
        (b"GET /health/live HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"GET /health/live HTTP/3.0\r\nHost: a\r\n\r\n", 505),
        (post("Transfer-Encoding: gzip, chunked"), 501),
        (post("Transfer-Encoding: gzip", "Transfer-Encoding: chunked"), 501),
        (post("Transfer-Encoding: chunked, chunked"), 400),
        (post("Transfer-Encoding: chunked").replace(b"HTTP/1.1", b"HTTP/1.0"), 400),
    ],
)
def test_what_no_server_may_serve_is_refused_on_its_headers(
    service: ServiceProcess, request_bytes: bytes, status: int
) -> None:
    """RFC 9112 sections 2.3, 3.2 and 6.1; the connection ends, for what follows can't be understood."""
    code, headers, answer = parsed(exchange(service, request_bytes))
    assert (code, headers["connection"], answer["err_no"]) == (status, "close", 5000)


@pytest.mark.parametrize(
    "host", ["test", "test:80", "127.0.0.1:9", "[::1]:9", "[::ffff:1.2.3.4]", "", "a_b.c:"]
)
def test_a_host_of_any_kind_is_served(service: ServiceProcess, host: str) -> None:
    raw = exchange(
        service, f"GET /health/live HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    )
    assert parsed(raw)[2] == {"live": True}


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_a_later_version_of_http_1_is_read_as_1_1(service: ServiceProcess, version: str) -> None:
    request = f"GET /health/live HTTP/{version}\r\nHost: a\r\nConnection: close\r\n\r\n"
    assert parsed(exchange(service, request.encode()))[2] == {"live": True}


@pytest.mark.parametrize("path", ["/test/prediction", "/v1/models/test:predict"])
def test_a_compressed_body_is_415_where_it_is_not_decoded(service: ServiceProcess, path: str) -> None:
    answer = service.http(path, gzip.compress(GOOD), headers={"Content-Encoding": "gzip"})
    assert (answer.status, answer.headers["accept-encoding"]) == (415, "identity")
    assert "Content-Encoding" in answer.body.decode()
    assert service.http(path, GOOD, headers={"Content-Encoding": "identity"}).status != 415


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/test/prediction", "POST"),
        ("DELETE", "/metrics", "GET, HEAD"),
        ("PUT", "/v1/models", "GET, HEAD"),
        ("GET", "/v1/models/test:predict", "POST"),
        ("GET", "/v2/models/test/infer", "POST"),
        ("PUT", "/v2/health/live", "GET, HEAD"),
        ("GET", "/v2/repository/models/test/load", "POST"),
    ],
)
def test_405_says_what_is_allowed(service: ServiceProcess, method: str, path: str, allowed: str) -> None:
    answer = service.http(path, method=method)
    assert (answer.status, answer.headers["allow"]) == (405, allowed)


PAGES = ("/health/live", "/health/ready", "/metrics", "/overview.json", "/docs", "/v2/health/live")


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("framing", ["Content-Length: 90000", "Transfer-Encoding: chunked"])
def test_the_body_of_a_post_to_a_page_is_not_read(service: ServiceProcess, path: str, framing: str) -> None:
    """The answer comes before the body does."""
    with socket.create_connection(("127.0.0.1", service.http_port), timeout=10) as client:
        client.sendall(post(framing, path=path))
        received = received_until(client, b"}")
    assert received.startswith(b"HTTP/1.1 405") and b"allow: GET, HEAD\r\n" in received


@pytest.mark.parametrize("framing", ["Content-Length: 90000", "Transfer-Encoding: chunked"])
def test_a_page_is_asked_for_without_a_body(service: ServiceProcess, framing: str) -> None:
    with socket.create_connection(("127.0.0.1", service.http_port), timeout=10) as client:
        client.sendall(post(framing, path="/metrics").replace(b"POST", b"GET"))
        assert received_until(client, b"}").startswith(b"HTTP/1.1 413")
    small = exchange(
        service, post("Content-Length: 2", "Connection: close", path="/").replace(b"POST", b"GET"), b"{}"
    )
    assert small.startswith(b"HTTP/1.1 200")


def test_http_1_0_is_answered_and_closed(service: ServiceProcess) -> None:
    raw = exchange(
        service, b"POST /test/prediction HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(GOOD), GOOD)
    )
    assert parsed(raw)[2]["err_no"] == 0

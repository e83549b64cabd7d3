"""`python -m client.load`: what it sends, measures, prints and draws."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from client.load_report import histogram, percentile
from tests.support.command_line import python
from tests.support.scripted_servers import Handler, hang, http_server, refuse, reply, respond, rpc_server
from tests.support.service_process import APPS, PATIENCE_S, ROOT, ServiceProcess

OVER_RPC = ("grpc", "v2-grpc")
V2 = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a wheel"]}]}
BODIES = {
    "http": {"key": ["text"], "value": ["a wheel"]},
    "grpc": {"name": "test", "method": "prediction", "key": ["text"], "value": ["a wheel"]},
    "v1-http": {"instances": [{"text": "a wheel"}]},
    "v2-http": V2,
    "v2-grpc": {
        "model_name": "test",
        "inputs": [
            {"name": "text", "datatype": "BYTES", "shape": ["1"], "contents": {"bytes_contents": ["YQ=="]}}
        ],
    },
}


@pytest.fixture(scope="module")
def capitals() -> Iterator[ServiceProcess]:
    config = {"dag": {"http_errors": "status"}, "op": {"capitals": {"concurrency": 1}}}
    with ServiceProcess(APPS / "dialects.py", config) as service:
        yield service


def load(service: ServiceProcess, endpoint: str, *options: object) -> subprocess.CompletedProcess[str]:
    where = ("--rpc", service.rpc_address) if endpoint in OVER_RPC else ("--url", service.url)
    asked = ("--door", endpoint, "--service", "test", "--threads", "2", "--loops", "3")
    return python("-m", "client.load", *where, *asked, *options)


def counted(service: ServiceProcess, endpoint: str, err_no: str = "ok") -> float:
    return service.metric("paddlewheel_requests_total", door=endpoint, err_no=err_no)


@pytest.mark.parametrize("endpoint", BODIES)
def test_texts_are_sent_under_any_key_at_every_endpoint(capitals: ServiceProcess, endpoint: str) -> None:
    before = counted(capitals, endpoint)
    result = load(capitals, endpoint, "--as", "text")
    assert result.returncode == 0, result.stdout + result.stderr
    assert counted(capitals, endpoint) == before + 1 + 6


@pytest.mark.parametrize("endpoint", BODIES)
def test_bodies_of_a_file_are_sent_as_they_are_at_every_endpoint(
    capitals: ServiceProcess, endpoint: str, tmp_path: Path
) -> None:
    bodies = tmp_path / "bodies.jsonl"
    bodies.write_text(f"{json.dumps(BODIES[endpoint])}\n" * 2, "utf-8")
    before = counted(capitals, endpoint)
    result = load(capitals, endpoint, "--bodies", bodies)
    assert result.returncode == 0, result.stdout + result.stderr
    assert counted(capitals, endpoint) == before + 1 + 6


@pytest.mark.parametrize("endpoint", ["v1-http", "v2-http", "v2-grpc"])
def test_rows_of_texts_are_the_rows_of_a_batch(capitals: ServiceProcess, endpoint: str) -> None:
    result = load(capitals, endpoint, "--rows", "3")
    assert result.returncode == 0, result.stdout
    assert "texts a request: 3" in result.stdout


@pytest.mark.parametrize("endpoint", BODIES)
def test_a_refusal_at_any_endpoint_is_an_error_of_its_kind(
    capitals: ServiceProcess, endpoint: str, tmp_path: Path
) -> None:
    (tmp_path / "texts").write_text("a wheel\nfail\n")
    result = load(capitals, endpoint, "--as", "text", "--texts", tmp_path / "texts")
    assert result.returncode == 1
    told = {"v1-http": "HTTP 400", "v2-http": "HTTP 400", "v2-grpc": "err_no 5000"}.get(endpoint, "err_no 51")
    assert f"RequestRefused ({told})" in result.stdout


def test_headers_and_files_of_a_folder_are_sent_to_any_path(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.json").write_text(json.dumps({"number": number}))
    with http_server(respond()) as server:
        result = python(
            *("-m", "client.load", "--url", server.url, "--threads", "1", "--loops", "2"),
            *("--path", "/own/path", "--bodies", tmp_path, "--header", "Content-Type: image/jpeg"),
            *("--header", "X-Own: 1"),
        )
    assert result.returncode == 0, result.stderr
    assert server.seen[1:] == [("/own/path", {"number": 0}), ("/own/path", {"number": 1})]
    assert {(head["content-type"], head["x-own"]) for head in server.headers} == {("image/jpeg", "1")}


def test_at_a_rate_requests_are_begun_when_they_are_due_and_timed_from_then() -> None:
    def slowly(handler: Handler) -> None:
        handler.server.over.wait(0.3)
        respond()(handler)

    with http_server(respond(), slowly, respond()) as server:
        result = python(
            *("-m", "client.load", "--url", server.url, "--threads", "1", "--loops", "4", "--rate", "50"),
        )
    assert result.returncode == 0, result.stderr
    assert "50 requests/s" in result.stdout and "4 in" in result.stdout
    late = re.search(r"begun late: take more --threads\D*(\d)", result.stdout)
    # The first request is late, too, if its thread got no core in time.
    assert late and late[1] in ("3", "4"), result.stdout
    p50 = re.search(r"p50\D*([\d.]+) ms", result.stdout)
    assert p50 and float(p50[1]) > 200, "what waits for a slow answer counts as slow"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--rate", "0"], "0 is no rate"),
        (["--door", "v2-http", "--rpc", "127.0.0.1:1"], "--door v2-http is over HTTP; give --url"),
        (["--door", "grpc", "--url", "http://x:1"], "--door grpc is over gRPC; give --rpc"),
        (["--door", "v2-grpc", "--path", "/x"], "--path is for HTTP"),
        (["--bodies", "none.jsonl"], "none.jsonl"),
        (["--bodies", "x", "--as", "text"], "--bodies are sent as they are"),
        (["--as", "a", "--as", "b"], "--as is given 2 times for 1 texts a request"),
        (["--as", "a", "--rows", "2"], "give --as 2 times"),
        (["--header", "no colon"], "is not of the form 'Name: value'"),
        (["--header", "A: 1\nB: 2"], "is not of the form 'Name: value'"),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, list) else "",
)
def test_options_that_do_not_go_together_are_refused_in_a_sentence(options: list[str], told: str) -> None:
    result = python("-m", "client.load", *options)
    assert result.returncode == 2
    assert told in result.stderr and "Traceback" not in result.stderr


def test_load_prints_rate_and_percentiles_and_draws_the_plot(tmp_path: Path) -> None:
    plot = tmp_path / "latency.svg"
    with http_server(respond()) as server:
        result = python(
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


def test_a_text_of_the_file_ends_with_a_line_feed_alone(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("国足\u2028取胜\u0085吗\r\n\n春茶\n", "utf-8")
    with http_server(respond()) as server:
        result = python(
            *("-m", "client.load", "--url", server.url, "--threads", "1", "--loops", "3", "--rows", "1"),
            *("--texts", tmp_path / "texts.txt"),
        )
    assert result.returncode == 0, result.stderr
    sent = {text for _, body in server.seen for text in body["value"]}
    assert sent == {"国足\u2028取胜\u0085吗", "春茶"}


def test_load_counts_errors_by_kind_and_exits_1() -> None:
    down = refuse(grpc.StatusCode.UNAVAILABLE)
    with rpc_server(reply(), reply(), down, reply(5000, "no"), reply()) as server:
        result = python("-m", "client.load", "--rpc", server.address, "--threads", "1", "--loops", "4")
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
            output, _ = process.communicate(timeout=PATIENCE_S)
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

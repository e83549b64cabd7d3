"""`python -m client.load`: what it sends, measures, prints and draws."""

from __future__ import annotations

import signal
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import grpc

from client.load_report import histogram, percentile
from tests.support.command_line import python
from tests.support.scripted_servers import hang, http_server, refuse, reply, respond, rpc_server
from tests.support.service_process import ROOT


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

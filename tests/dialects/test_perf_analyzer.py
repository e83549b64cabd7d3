"""Triton's perf_analyzer asks the demo's model as it stands, and what it reports of the server is true."""

from __future__ import annotations

import base64
import ctypes
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.perf_analyzer import FOLDER, LEVELS, Analyzer, examine, levels_in
from bench.running import ROOT, default_config, running_service
from tests.support.service_process import ServiceProcess


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with running_service(ROOT / "web_service.py", default_config(1)) as started:
        yield started


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_the_statistics_that_it_reports_are_true(service: ServiceProcess, protocol: str) -> None:
    levels, flaws = examine(Analyzer(), service, 500, protocol)
    assert [level.concurrency for level in levels] == list(range(1, LEVELS + 1))
    assert not flaws


# What the test above believes:

REPORT = """\
*** Measurement Settings ***
  Batch size: 1

Request concurrency: 1
  Client:
    Request count: 3043
    Throughput: 1010.78 infer/sec
    Avg latency: 985 usec (standard deviation 4090 usec)
    p50 latency: 686 usec
    Avg gRPC time: 973 usec ((un)marshal request/response 4 usec + response wait 968 usec)
  Server:
    Inference count: 3044
    Execution count: 3044
    Successful request count: 3044
    Avg request latency: 355 usec (overhead 8 usec + queue 5 usec + compute input 38 usec + compute infer \
300 usec + compute output 4 usec)

Request concurrency: 2
  Failed to obtain stable measurement.
"""


def test_a_level_is_read_with_the_figures_of_both_sides() -> None:
    (level,) = levels_in(REPORT)
    assert (level.concurrency, level.sent, level.counted, level.executions) == (1, 3043, 3044, 3044)
    assert (level.per_s, level.latency_us, level.server_us) == (1010.78, 985, 355)
    assert (level.queue_us, level.input_us, level.infer_us, level.output_us) == (5, 38, 300, 4)
    assert not list(level.flaws())


def test_figures_that_can_not_be_true_are_told() -> None:
    (level,) = levels_in(REPORT)
    assert "3043 requests sent and 3100 counted" in list(level._replace(counted=3100).flaws())
    assert "0 executions of 3044 requests" in list(level._replace(executions=0).flaws())
    for wrong in (level._replace(infer_us=400), level._replace(server_us=2000), level._replace(infer_us=0)):
        assert len(list(wrong.flaws())) == 1


# The library that the program needs (docker/libb64.c):


@given(st.binary(max_size=40), st.integers(0, 40), st.integers(0, 60))
def test_base64_in_two_blocks_is_that_of_python(data: bytes, cut: int, code_cut: int) -> None:
    library = ctypes.CDLL(str(FOLDER / "libb64.so.0d"))

    def through(step: str, blocks: list[bytes]) -> bytes:
        state, out = ctypes.create_string_buffer(12), ctypes.create_string_buffer(100)
        getattr(library, f"base64_init_{step}state")(state)
        block = getattr(library, f"base64_{step}_block")
        written = b""
        for each in blocks:
            length = block(each, len(each), out, state)
            written += out.raw[:length]
        if step == "encode":
            length = library.base64_encode_blockend(out, state)
            written += out.raw[:length]
        return written

    code = through("encode", [data[:cut], data[cut:]])
    assert code == base64.b64encode(data) + b"\n"
    assert through("decode", [code[:code_cut], code[code_cut:]]) == data

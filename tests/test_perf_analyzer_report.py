"""What bench.perf_analyzer reads in a report of Triton's program, and which figures it does not believe."""

from __future__ import annotations

from bench.perf_analyzer import levels_in

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

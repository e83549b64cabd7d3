"""bench.cpu_by_part: threads are told apart, and their CPU time is divided into parts that add up."""

from __future__ import annotations

import os
import threading
import time

from rich.table import Table

from bench.cpu_by_part import FRONT, INSTANCE, OTHER, Figures, build_cpu_table, build_wait_table
from bench.instrumented_service import Inside
from bench.processes import ThreadUse, read_threads

LOAD = Figures(
    requests=1000,
    seconds=2.0,
    threads={
        FRONT: ThreadUse(0.050, 0.020, 0.1, 1500),
        OTHER: ThreadUse(0.002, 0.001),
        INSTANCE: ThreadUse(0.300, 0.010, 0.4, 200),
    },
    counts={FRONT: 3, OTHER: 2, INSTANCE: 2},
    inside=Inside(60_000_000, 190_000_000, 125, 125, 1000),
    blocked={"recvfrom": 30},
    samples=300,
)


def cells(table: Table) -> list[list[str]]:
    return [list(row) for row in zip(*(column.cells for column in table.columns), strict=True)]


def test_the_parts_of_a_request_add_up_to_all_of_it() -> None:
    ((connections, name, per_s, busy, *parts, total),) = cells(
        build_cpu_table({(20, "ours"): LOAD}, "a title")
    )
    assert (connections, name, per_s, busy) == ("20", "ours", "500", "0.19")
    assert parts == ["50", "20", "3", "50", "60", "190", "10"]
    assert sum(map(int, parts)) == int(total) == 383


def test_loads_of_one_subject_are_added_up() -> None:
    ((*_, total),) = cells(build_cpu_table({(20, "ours"): Figures() + LOAD + LOAD}, "a title"))
    assert total == "383"


def test_the_time_of_a_thread_is_divided_into_running_waiting_and_blocking() -> None:
    front, instance = cells(build_wait_table({(20, "ours"): LOAD}))
    assert front[2:7] == [FRONT, "4%", "5%", "91%", "1.50"]
    assert instance[2:] == [INSTANCE, "8%", "10%", "82%", "0.20", "8.0", "recvfrom 10%"]


def test_a_thread_that_computes_is_told_from_one_that_waits() -> None:
    ends, computed = threading.Event(), threading.Event()

    def compute() -> None:
        until = time.thread_time() + 0.2
        while time.thread_time() < until:
            pass
        computed.set()
        ends.wait()

    before = read_threads([os.getpid()])
    running = [threading.Thread(target=target) for target in (compute, ends.wait)]
    for thread in running:
        thread.start()
    computed.wait()
    uses = read_threads([os.getpid()])
    ends.set()
    for thread in running:
        thread.join()
    computing, waiting = (uses[os.getpid(), thread.native_id].since(ThreadUse()) for thread in running)
    assert computing.user_s + computing.kernel_s >= 0.2
    assert waiting.user_s + waiting.kernel_s < 0.1
    assert {process for process, _ in before} == {os.getpid()}

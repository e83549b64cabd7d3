"""What hooks keep on `self`: the request's own, with an overridden `process` as well."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.service_process import APPS, ServiceProcess, wait_until

BATCH_SIZE = 8
HELD = 0  # the number of that request
MODES = pytest.mark.parametrize("threads", [True, False], ids=["threads", "processes"])
SIZES = pytest.mark.parametrize("batch_size", [1, BATCH_SIZE])


def keeping(batch_size: int, *, kind: str = "keeping", threads: bool = False, **op: Any) -> ServiceProcess:
    config = {"dag": {"is_thread_op": threads}, "op": {"keeping": {"batch_size": batch_size, **op}}}
    batched = "yes" if batch_size > 1 else "no"
    return ServiceProcess(APPS / "keeping.py", config, env={"KIND": kind, "BATCHED": batched})


def told(answer: dict[str, Any]) -> dict[str, Any]:
    """What the request's postprocess has found on `self`."""
    assert answer["err_no"] == 0, answer
    found: dict[str, Any] = json.loads(answer["value"][0])
    return found


def request(number: int, **more: str) -> dict[str, str]:
    return {"number": str(number), **more}


def together(
    service: ServiceProcess, requests: Sequence[dict[str, str]], folder: Path
) -> list[dict[str, Any]]:
    """The answers to requests that were handed over together; one that kept them waiting may be with them."""
    gate = folder / f"gate {len(list(folder.iterdir()))}"
    return service.ask_together(requests, request(HELD, gate=str(gate)), gate)


@MODES
@SIZES
def test_every_two_hooks_of_a_request_agree_while_others_run_beside_it(
    batch_size: int, threads: bool
) -> None:
    requests = [request(n, **({"mark": f"mark of {n}"} if n % 3 else {})) for n in range(1, 301)]
    with keeping(batch_size, threads=threads, concurrency=2) as service, ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(service.ask, requests))
    batches = set()
    for asked, answer in zip(requests, answers, strict=True):
        found, number = told(answer), int(asked["number"])
        assert (found["number"], found["doubled"]) == (number, [2 * number])
        assert number in found["batch"], "process and postprocess are of one batch"
        assert found["seen"] == found["batch"][-1], "process sees what the last request's preprocess has set"
        own = asked.get("mark") if batch_size > 1 else None
        assert found["mark"] == (own or f"process of {found['batch'][-1]}")
        batches.add(tuple(found["batch"]))
    assert max(map(len, batches)) == 1 if batch_size == 1 else max(map(len, batches)) > 1
    assert sum(map(len, batches)) == len(requests), "each request ran once"


def test_one_object_serves_all_hooks_of_a_request_where_nothing_is_batched(tmp_path: Path) -> None:
    with keeping(1) as service:
        widths = {1: "1", 2: "2,1,3", 3: "1", 4: "3,2,1", 5: "1"}
        requests = [request(n, mark="own", widths=many) for n, many in widths.items()]
        answers = together(service, requests, tmp_path)
    for (number, many), answer in zip(widths.items(), answers, strict=True):
        found = told(answer)
        assert (found["batch"], found["seen"]) == ([number], number)
        assert found["mark"] == f"process of {number}"
        assert found["widths"] == [int(width) for width in many.split(",")], "of all feeds, in their order"


def test_what_process_sets_never_replaces_what_the_requests_own_hook_has_set(tmp_path: Path) -> None:
    """Nor where that is the very value that init_op has set."""
    marks = {1: "of 1", 2: "none", 3: None, 4: "process of 5", 5: None}
    requests = [request(n, **({} if mark is None else {"mark": mark})) for n, mark in marks.items()]
    with keeping(BATCH_SIZE) as service:
        found = [told(answer) for answer in together(service, requests, tmp_path)]
    (batch,) = {tuple(one["batch"]) for one in found}
    assert {*batch} - {HELD} == {1, 2, 3, 4, 5}
    by_process = f"process of {batch[-1]}"
    assert [one["mark"] for one in found] == ["of 1", None, by_process, "process of 5", by_process]


def test_a_batch_that_fails_is_run_again_in_parts_which_see_nothing_of_it(tmp_path: Path) -> None:
    requests = [request(n, action="fail" if n == 5 else "") for n in range(1, 9)]
    with keeping(BATCH_SIZE) as service:
        answers = together(service, requests, tmp_path)
    for number, answer in enumerate(answers, 1):
        if number == 5:
            assert (answer["err_no"], "does not take this" in answer["err_msg"]) == (10000, True)
            continue
        found = told(answer)
        assert found["doubled"] == [2 * number]
        assert number in found["batch"] and 5 not in found["batch"]
        assert found["seen"] == found["batch"][-1]


def test_several_batches_of_one_dispatch_see_nothing_of_each_other(tmp_path: Path) -> None:
    """Feeds of two widths make two batches; a mini-batch has one of each, and the state of its last."""
    widths = ["1", "2", "1,2", "2,1", "1", "2", "2,1,2"]
    requests = [request(n, widths=many) for n, many in enumerate(widths, 1)]
    with keeping(BATCH_SIZE) as service:
        answers = together(service, requests, tmp_path)
    for number, (answer, many) in enumerate(zip(answers, widths, strict=True), 1):
        found = told(answer)
        assert found["doubled"] == [2 * number] * len(many.split(","))
        assert found["widths"] == [int(many[-1])], "of one run"
        mates = {n for n, other in enumerate(widths, 1) if many[-1] in other.split(",")}
        assert {number} <= set(found["batch"]) <= mates | {HELD}
        assert found["seen"] == found["batch"][-1]


@MODES
@SIZES
def test_the_next_try_after_a_timeout_begins_anew(batch_size: int, threads: bool, tmp_path: Path) -> None:
    mark = tmp_path / "stalled"
    stalls = request(1, action="stall_once", argument=str(mark))
    op = {"concurrency": 2, "timeout": 1000, "retry": 30}
    with keeping(batch_size, threads=threads, **op) as service, ThreadPoolExecutor(8) as pool:
        wait_until(lambda: service.metric("paddlewheel_op_ready_instances") == 2, "both are ready")
        stalled = pool.submit(service.ask, stalls)
        wait_until(Path(f"{mark}.gate.waiting").exists, "the first try stalls")
        others = list(pool.map(service.ask, [request(n) for n in range(2, 40)]))
        found = told(stalled.result())
        Path(f"{mark}.gate").touch()
        others += pool.map(service.ask, [request(n) for n in range(40, 80)])
    assert (found["number"], found["seen"], 1 in found["batch"]) == (1, found["batch"][-1], True)
    for number, answer in enumerate(others, 2):
        found = told(answer)
        assert (found["number"], found["doubled"]) == (number, [2 * number])
        assert number in found["batch"]


@MODES
def test_the_try_after_a_crash_begins_anew(threads: bool, tmp_path: Path) -> None:
    requests = [request(n, **dying(n, tmp_path)) for n in range(1, 41)]
    op = {"concurrency": 2}
    with keeping(BATCH_SIZE, threads=threads, **op) as service, ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(service.ask, requests))
    for number, answer in enumerate(answers, 1):
        found = told(answer)
        assert (found["number"], found["doubled"]) == (number, [2 * number])
        assert number in found["batch"] and found["seen"] == found["batch"][-1]


def dying(number: int, folder: Path) -> dict[str, str]:
    """All have the argument: process takes that of the last in its batch."""
    return {"argument": str(folder / "died"), "action": "die_once" if number == 20 else ""}


@pytest.mark.parametrize("kind", ["pre", "post", "both"])
@SIZES
def test_beside_batch_wise_hooks_process_hands_on_what_it_sets_and_leaves_nothing_behind(
    kind: str, batch_size: int, tmp_path: Path
) -> None:
    requests = [request(n, widths=str(1 + n % 2)) for n in range(1, 9)]
    with keeping(batch_size, kind=kind) as service:
        answers = together(service, requests, tmp_path)
        last = told(service.ask(request(9)))
    found = [told(answer) for answer in answers]
    for number, one in enumerate(found, 1):
        assert one["doubled"] == [2 * number]
        assert number in one["batch"] and one["widths"] == [1 + number % 2]
        if kind == "post":
            assert one["seen"] == one["batch"][-1]
        else:
            assert number in one["handed_over"], "of this dispatch, not of the one before"
    assert (max(len(one["batch"]) for one in found) > 1) == (batch_size > 1)
    assert last["batch"] == [9]
    if kind != "pre":
        assert last["answers"] == 11, "what postprocess_batch itself sets stays on the Op that all share"

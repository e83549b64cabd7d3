"""Everyone gets the answer to what they asked, whatever dies, leaves or fails beside them."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from client.protos.pipeline_service_pb2 import Request, Response
from tests.support.service_process import APPS, PATIENCE_S, ServiceProcess, key_value, wait_until

CLIENTS = 20
MISHAPS = [
    {"preprocess": "surrogate"},
    {"preprocess": "numpy number"},
    {"preprocess": "huge number"},
    {"preprocess": "unspeakable"},
    {"preprocess": "interrupting"},
    {"preprocess": "traceless"},
    {"preprocess": "statusless"},
    {"postprocess": "surrogate"},
    {"postprocess": "numpy number"},
    {"postprocess": "unspeakable"},
    {"postprocess": "interrupting"},
    {"process": "ragged", "rows": "5"},
    {"process": "list"},
    {"process": "list", "rows": "5"},
    {"process": "nothing"},
    {"process": "nothing", "rows": "5"},
    {"process": "scalar", "rows": "5"},
    {"process": "raise"},
    {"process": "code", "rows": "5"},
    {"answer": "number"},
    {"answer": "list"},
]


@pytest.fixture(scope="module", params=[True, False], ids=["threads", "processes"])
def pair(request: pytest.FixtureRequest) -> Iterator[ServiceProcess]:
    """Two instances, in one process or in one each, and room for batches."""
    config = {"dag": {"is_thread_op": request.param}, "op": {"echo": {"concurrency": 2, "batch_size": 8}}}
    with ServiceProcess(APPS / "echo.py", config) as service:
        yield service


@pytest.fixture(scope="module", params=["single", "batch"])
def mishaps(request: pytest.FixtureRequest) -> Iterator[ServiceProcess]:
    config = {"op": {"mishap": {"batch_size": 8, "max_batch_rows": 2, "auto_batching_timeout": 2000}}}
    with ServiceProcess(APPS / "mishaps.py", config, arguments=[request.param]) as service:
        yield service


def wait_for_restarts(service: ServiceProcess, number: float) -> None:
    """Until so many workers were replaced and both instances are ready."""

    def done() -> bool:
        if service.metric("paddlewheel_op_restarts_total") < number:  # first: a death is counted at once
            return False
        return service.http("/health/ready").json["ops"]["echo"]["ready"] == 2

    wait_until(done, f"there were {number:g} restarts", on_timeout=lambda: service.log)


def leave_early(service: ServiceProcess, number: int) -> None:
    """Send a request and go away without its answer."""
    body = key_value({"number": str(number)})
    head = f"POST /test/prediction HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", service.http_port)) as client:
        client.sendall(head + body)


def test_20_clients_get_their_own_answers_while_clients_leave_and_workers_are_killed(
    pair: ServiceProcess,
) -> None:
    over = threading.Event()
    numbers = itertools.count(1)
    kills_wanted = 2
    answered = [0] * CLIENTS

    def ask(endpoint: int) -> list[object]:
        wrong: list[object] = []
        with pair.channel() as channel:
            infer = channel.unary_unary("/baidu.paddle_serving.pipeline_serving.PipelineService/inference")
            while not over.is_set():
                number = next(numbers)
                inputs = {"number": str(number), "text": f"of {number}"}
                if endpoint % 2:
                    message = Request(key=list(inputs), value=list(inputs.values()))
                    reply = Response.FromString(infer(message.SerializeToString(), timeout=PATIENCE_S))
                    keys, values, err_no = reply.key, reply.value, reply.err_no
                else:
                    answer = pair.ask(inputs)
                    keys, values, err_no = answer["key"], answer["value"], answer["err_no"]
                got = dict(zip(keys, values, strict=True))
                mine = {"number": str(number), "doubled": str(2 * number), "text": f"of {number}"}
                answered[endpoint] += 1
                if err_no or got.items() & mine.items() != mine.items():
                    wrong.append((number, err_no, got))
                if answered[endpoint] % 7 == 0:
                    leave_early(pair, next(numbers))
        return wrong

    def wait_for_answers() -> None:
        """Until each client has the answer to what it asks now, lest two deaths are blamed on a request.

        What a killed worker had begun runs once more, alone, in the one that is killed next.
        """
        before = list(answered)
        wait_until(
            lambda: (
                all(now > then for now, then in zip(answered, before, strict=True))
                or any(client.done() for client in clients)
            ),
            "each client has an answer",
            on_timeout=lambda: pair.log,
        )

    wait_for_restarts(pair, 0)
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(ask, endpoint) for endpoint in range(CLIENTS)]
        try:
            for kill in range(kills_wanted):
                pair.kill_worker(kill % len(pair.worker_pids()))
                wait_for_restarts(pair, kill + 1)
                wait_for_answers()
        finally:
            over.set()
        wrong = [one for client in clients for one in client.result()]
    assert wrong == []
    assert min(answered) > 0
    assert pair.metric("paddlewheel_op_restarts_total") == kills_wanted


def test_all_workers_killed_at_once_cost_nobody_an_answer(pair: ServiceProcess) -> None:
    """What was running on one must not be called poison because the next was dead already, too."""
    over = threading.Event()

    def ask(number: int) -> list[object]:
        wrong = []
        while not over.is_set():
            answer = pair.ask({"number": str(number)})
            if answer["err_no"] or answer["value"][1] != str(2 * number):
                wrong.append(answer)
        return wrong

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(ask, number) for number in range(CLIENTS)]
        try:
            before = pair.metric("paddlewheel_op_restarts_total")
            victims = pair.worker_pids()
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
            wait_for_restarts(pair, before + len(victims))
        finally:
            over.set()
        assert [wrong for client in clients for wrong in client.result()] == []


@pytest.fixture(scope="module")
def one() -> Iterator[ServiceProcess]:
    """One worker, and room for batches of 16."""
    with ServiceProcess(APPS / "echo.py", {"op": {"echo": {"batch_size": 16}}}) as service:
        yield service


def outputs(answer: dict[str, Any]) -> dict[str, str]:
    assert answer["err_no"] == 0, answer
    return dict(zip(answer["key"], answer["value"], strict=True))


def test_workers_interrupt_nobody_and_have_their_share_of_the_cores(pair: ServiceProcess) -> None:
    front = pair.process.pid
    for worker in pair.worker_pids():
        assert os.sched_getscheduler(worker) == os.SCHED_BATCH
        assert os.getpriority(os.PRIO_PROCESS, worker) == os.getpriority(os.PRIO_PROCESS, front)
    assert os.sched_getscheduler(front) == os.SCHED_OTHER


def test_what_preprocess_sets_on_self_is_the_requests_own_and_what_init_op_set_is_shared(
    one: ServiceProcess, tmp_path: Path
) -> None:
    requests = [{"number": str(i), "text": f"text {i}"} for i in range(12)]
    held = {"action": "wait", "argument": str(tmp_path / "gate")}
    answers = [outputs(answer) for answer in one.ask_together(requests, held, tmp_path / "gate")]
    assert [answer["number"] for answer in answers] == [str(i) for i in range(12)]
    assert [answer["text"] for answer in answers] == [f"text {i}" for i in range(12)]
    ((rows, seen),) = {(int(answer["rows"]), int(answer["seen"])) for answer in answers}
    assert rows in (12, 13)  # the second of the two that held the worker may be among them
    assert seen == 14


def together(service: ServiceProcess, requests: list[dict[str, str]]) -> list[dict[str, object]]:
    """The answers to requests that fill a batch of 8, held back until it is full."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(service.ask, requests))


@pytest.mark.parametrize("mishap", MISHAPS, ids=lambda m: "-".join([*m, *m.values()]))
def test_a_mishap_fails_its_own_request_alone_and_costs_no_worker(
    mishaps: ServiceProcess, mishap: dict[str, str]
) -> None:
    workers = mishaps.worker_pids()
    answers = together(mishaps, [{"rows": "1"}] * 3 + [mishap] + [{"rows": "3"}] * 4)
    failed = answers.pop(3)
    assert all(answer["err_no"] == 0 for answer in answers), answers
    assert mishaps.worker_pids() == workers
    assert "worker" not in str(failed["err_msg"])
    assert failed["err_no"] != 0
    assert failed["err_msg"]


def test_the_apps_own_errors_keep_their_numbers(mishaps: ServiceProcess) -> None:
    answers = together(
        mishaps,
        [{"preprocess": "own class"}, {"postprocess": "own class"}, {"preprocess": "numpy number"}]
        + [{"rows": "1"}] * 5,
    )
    assert [answer["err_no"] for answer in answers] == [77, 77, 52, 0, 0, 0, 0, 0]
    assert answers[0]["err_msg"] == "short and stout"


def test_an_error_in_process_is_traced_to_its_requests_by_halves(one: ServiceProcess, tmp_path: Path) -> None:
    requests = [{"number": str(i), "action_in_process": "raise" if i in (4, 9) else ""} for i in range(12)]
    held = {"action": "wait", "argument": str(tmp_path / "gate")}
    answers = one.ask_together(requests, held, tmp_path / "gate")
    assert [i for i, answer in enumerate(answers) if answer["err_no"]] == [4, 9]
    assert "the engine does not take this" in answers[4]["err_msg"]


def test_queued_requests_of_clients_that_left_are_dropped(one: ServiceProcess, tmp_path: Path) -> None:
    gate, service = tmp_path / "gate", one
    before = int(service.predict({"number": "1"})["seen"])
    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(service.predict, {"action": "wait", "argument": str(gate)})
        wait_until(Path(f"{gate}.waiting").exists, "the worker is busy")
        more = pool.submit(service.predict, {"action": "wait", "argument": str(gate)})
        wait_until(lambda: service.metric("paddlewheel_pending_requests") == 2, "nothing more leaves early")
        with service.channel() as channel, contextlib.ExitStack() as stack:
            infer = channel.unary_unary("/baidu.paddle_serving.pipeline_serving.PipelineService/inference")
            call = infer.future(Request(key=["number"], value=["7"]).SerializeToString())
            body = key_value({"number": "8"})
            client = stack.enter_context(socket.create_connection(("127.0.0.1", service.http_port)))
            head = f"POST /test/prediction HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            wait_until(lambda: service.metric("paddlewheel_pending_requests") == 4, "all four are admitted")
            call.cancel()
            client.close()
            wait_until(lambda: service.metric("paddlewheel_pending_requests") == 2, "two have left")
            assert call.code() == grpc.StatusCode.CANCELLED
        gate.touch()
        held.result(), more.result()
        assert service.predict({"number": "9"})["seen"] == str(before + 3)


def test_large_answers_of_one_dispatch_are_whole_and_each_its_own_clients(
    one: ServiceProcess, tmp_path: Path
) -> None:
    requests = [{"number": str(i), "text": chr(ord("a") + i) * 700_000} for i in range(8)]
    gate = tmp_path / "gate"
    answers = one.ask_together(requests, {"action": "wait", "argument": str(gate)}, gate)
    for request, answer in zip(requests, answers, strict=True):
        values = outputs(answer)
        assert int(values["rows"]) >= len(requests)
        assert (values["number"], values["text"]) == (request["number"], request["text"])

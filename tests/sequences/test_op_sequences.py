"""Sequences of an app's own Ops: `sequence = True`, `self.sequence`, `start` and `end`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.service_process import APPS, ServiceProcess

CONFIG = {"dag": {"http_errors": "status"}, "op": {"total": {"concurrency": 2, "batch_size": 8}}}
Ask = Callable[..., "float | str"]
START, END = {"sequence_start": True}, {"sequence_end": True}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ended") / "sequences"


@pytest.fixture(scope="module")
def service(ended: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "totals.py", CONFIG, env={"ENDED": str(ended)}) as service:
        yield service


def over_key_value(service: ServiceProcess, number: float, **keys: Any) -> float | str:
    answer = service.ask({"number": str(number), **{key: str(value) for key, value in keys.items()}})
    return answer["err_msg"] or _read_total(answer["value"])


def over_rpc(service: ServiceProcess, number: float, **keys: Any) -> float | str:
    answer = service.rpc({"number": str(number), **{key: str(value) for key, value in keys.items()}})
    return answer.err_msg or _read_total(answer.value)


def over_v1(service: ServiceProcess, number: float, **keys: Any) -> float | str:
    body = {"instances": [{"number": [number]}], "parameters": keys}
    answer = service.http("/v1/models/test:predict", json.dumps(body)).json
    return str(answer["error"]) if "error" in answer else float(answer["predictions"][0]["total"][0])


def _read_total(values: Sequence[str]) -> float:
    return float(values[0].partition("[")[2].partition("]")[0])  # key/value prints an array as Python does


ENDPOINTS = {"key_value": over_key_value, "rpc": over_rpc, "v1": over_v1}


@pytest.fixture(params=ENDPOINTS)
def ask(request: pytest.FixtureRequest, service: ServiceProcess) -> Ask:
    return partial(ENDPOINTS[request.param], service)


def test_hooks_find_the_values_of_the_sequence_and_end_runs_once(ask: Ask, ended: Path) -> None:
    ended.unlink(missing_ok=True)
    totals = [ask(5, sequence_id="a", **START), ask(70, sequence_id="b", **START)]
    totals += [ask(1, sequence_id=key) for key in ("a", "b", "a")]
    totals += [ask(2, sequence_id="a", **END), ask(1, sequence_id="b", **END)]
    assert totals == [5, 70, 6, 71, 7, 9, 72]
    assert ended.read_text().splitlines() == ["a 9", "b 72"]


def test_a_request_that_belongs_to_no_sequence_is_refused(ask: Ask) -> None:
    assert "must specify the START flag" in str(ask(1, sequence_id="unknown"))
    assert ask(1, sequence_id="ends", **START, **END) == 1
    assert "must specify the START flag" in str(ask(1, sequence_id="ends", **END))
    assert [ask(4, sequence_id="starts", **START) for _ in range(2)] == [4, 4]
    assert "must specify a non-zero or non-empty correlation ID" in str(ask(1))
    assert "has more than 128 bytes" in str(ask(1, sequence_id="é" * 65, **START))
    assert "sequence_start is 'perhaps'; send true or false" in str(
        ask(1, sequence_id="a", sequence_start="perhaps")
    )


def test_an_id_of_another_type_is_refused(service: ServiceProcess) -> None:
    for key, kind in ((1.5, "float"), (True, "bool"), (["a"], "list")):
        message = over_v1(service, 1, sequence_id=key, sequence_start=True)
        assert f"sequence_id is a {kind}; send a number, or a text of at most 128 bytes" in str(message)
    assert over_v1(service, 1, sequence_id=7, **START) == 1
    assert "for sequence 7 " in str(over_key_value(service, 1, sequence_id=7))  # the text is another id


def test_a_failed_request_changes_nothing_and_a_value_that_cannot_be_kept_is_named(
    service: ServiceProcess,
) -> None:
    assert over_key_value(service, 3, sequence_id="fails", **START) == 3
    assert "a negative number" in str(over_key_value(service, -1, sequence_id="fails"))
    message = over_key_value(service, 99, sequence_id="fails")
    assert "[total] self.sequence['thing'] can't be kept: a object can't be passed on" in str(message)
    assert over_key_value(service, 1, sequence_id="fails", **END) == 4


def test_values_survive_the_death_of_their_worker_and_requests_at_once_run_in_order(
    service: ServiceProcess,
) -> None:
    def run(key: int) -> list[float | str]:
        if key == 4:
            service.kill_worker()
        flags = [{"sequence_start": not number} for number in range(10)]
        return [over_v1(service, key, sequence_id=key, **each) for each in flags]

    with ThreadPoolExecutor(8) as clients:
        totals = list(clients.map(run, range(1, 9)))
        assert totals == [[key * n for n in range(1, 11)] for key in range(1, 9)]
        over_v1(service, 50, sequence_id=50, **START)
        together = clients.map(lambda _: over_v1(service, 50, sequence_id=50), range(8))
        assert sorted(together, key=float) == [50 * n for n in range(2, 10)]


def test_batch_wise_hooks_find_the_values_in_each_request(ended: Path) -> None:
    env = {"ENDED": str(ended), "TOTALS": "batch"}
    with ServiceProcess(APPS / "totals.py", CONFIG, env=env) as service, ThreadPoolExecutor(6) as clients:

        def run(key: int) -> list[float | str]:
            flags = [{"sequence_start": not n, "sequence_end": n == 5} for n in range(6)]
            return [over_key_value(service, key, sequence_id=key, **each) for each in flags]

        assert list(clients.map(run, range(1, 7))) == [[key * n for n in range(1, 7)] for key in range(1, 7)]
        assert service.metric("paddlewheel_sequences", op="total") == 0

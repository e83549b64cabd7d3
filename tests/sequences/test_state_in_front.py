"""Sequences of models that declare their state: the front keeps it between two requests."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.support.repository_process import RepositoryProcess
from tests.support.sequence_models import Infer, first, protocols, write_controls, write_ensemble, write_sum
from tests.support.service_process import wait_until

IDLE_US = 200_000
FROM_FILE = 'initial_state { name: "file" data_type: TYPE_FP32 dims: [ 1 ] data_file: "seven" }'
SHOWN = 'output [ { name: "NEXT" data_type: TYPE_FP32 dims: [ 1 ] } ]'


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    folder = tmp_path_factory.mktemp("sequences")
    write_sum(folder, more="instance_group [ { count: 2 kind: KIND_CPU } ]")
    write_sum(folder, "short", idle_us=IDLE_US)
    write_sum(folder, "more")
    write_ensemble(folder, "sum", "more")
    seven = write_sum(folder, "seven", initial=FROM_FILE, more=SHOWN, strategy="direct { }") / "initial_state"
    seven.mkdir()
    (seven / "seven").write_bytes(np.float32(7).tobytes())
    for datatype in ("UINT64", "INT32", "STRING"):
        write_controls(folder, datatype)
    with RepositoryProcess(folder) as process:
        yield process


@pytest.fixture(params=["http", "grpc"])
def infer(request: pytest.FixtureRequest, service: RepositoryProcess) -> Iterator[Infer]:
    with protocols(service) as (over_http, over_grpc):
        yield over_http if request.param == "http" else over_grpc


def test_each_request_gets_the_state_of_the_one_before(infer: Infer) -> None:
    start, end = {"sequence_start": True}, {"sequence_end": True}
    answers = [
        first(infer("sum", 1, sequence_id=5, **start)),
        first(infer("sum", 10, sequence_id="5", **start)),
    ]
    answers += [first(infer("sum", 2, sequence_id=key)) for key in (5, "5", 5, "5")]
    answers += [first(infer("sum", 3, sequence_id=key, **end)) for key in (5, "5")]
    assert answers == [1, 10, 3, 12, 5, 14, 8, 17]


def test_start_resets_the_state_of_a_live_sequence(infer: Infer) -> None:
    answers = [
        first(infer("sum", 4, sequence_id=6, sequence_start=start)) for start in (True, False, True, False)
    ]
    assert answers == [4, 8, 4, 8]


def test_an_initial_state_comes_from_a_file_and_a_declared_output_shows_the_next(infer: Infer) -> None:
    answer = infer("seven", 1, sequence_id=1, sequence_start=True, sequence_end=True)
    assert (first(answer), first(answer, "NEXT")) == (8, 8)
    assert infer("sum", 1, sequence_id=7, sequence_start=True).as_numpy("NEXT") is None


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            "sum",
            {"sequence_id": 900},
            "inference request for sequence 900 to model 'sum' must specify the START",
        ),
        ("sum", {}, "to model 'sum' must specify a non-zero or non-empty correlation ID"),
        ("sum", {"sequence_id": "", "sequence_start": True}, "non-zero or non-empty correlation ID"),
        ("sum", {"sequence_id": "é" * 65, "sequence_start": True}, "has more than 128 bytes"),
        (
            "controls_uint64",
            {"sequence_id": "a", "sequence_start": True},
            "is a number .*, and 'a' is a text",
        ),
        ("controls_int32", {"sequence_id": 1 << 40, "sequence_start": True}, "TYPE_INT32, which can't hold"),
    ],
)
def test_a_request_that_belongs_to_no_sequence_is_refused(
    infer: Infer, model: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InferenceServerException, match=message) as raised:
        infer(model, 1, **options)
    assert raised.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")


def test_two_rows_are_no_request_of_a_sequence(infer: Infer) -> None:
    with pytest.raises(InferenceServerException, match="must specify batch-size 1 due to requirements"):
        infer("sum", [1, 2], sequence_id=8, sequence_start=True)


def test_a_sequence_ends_once(infer: Infer) -> None:
    assert first(infer("sum", 1, sequence_id=9, sequence_start=True, sequence_end=True)) == 1
    with pytest.raises(InferenceServerException, match=r"for sequence 9 .* must specify the START flag"):
        infer("sum", 1, sequence_id=9, sequence_end=True)


def test_a_model_gets_start_end_ready_and_the_id(infer: Infer) -> None:
    for model, datatype, key in (
        ("controls_uint64", np.uint64, (1 << 63) - 1),
        ("controls_int32", np.int32, 31),
        ("controls_string", object, "camera 3"),
    ):
        for flags in ((True, False), (False, False), (False, True)):
            answer = infer(model, 1, sequence_id=key, sequence_start=flags[0], sequence_end=flags[1])
            told = [first(answer, name) for name in ("STARTED", "ENDED", "READIED")]
            assert told == [flags[0], flags[1], 1]
            assert answer.as_numpy("ID").dtype == datatype
            assert first(answer, "ID") == (key.encode() if isinstance(key, str) else key)


def test_an_idle_sequence_expires(service: RepositoryProcess, infer: Infer) -> None:
    assert first(infer("short", 1, sequence_id=3, sequence_start=True)) == 1
    wait_until(lambda: service.metric("paddlewheel_sequences", op="short:1") == 0, "it expires")
    with pytest.raises(InferenceServerException, match=r"ends after 0.2 s without a request"):
        infer("short", 1, sequence_id=3)
    assert service.metric("paddlewheel_sequence_bytes", op="short:1") == 0
    assert service.metric("paddlewheel_sequences_expired_total", op="short:1") >= 1


def test_each_step_of_an_ensemble_keeps_its_state_of_the_sequence(
    service: RepositoryProcess, infer: Infer
) -> None:
    options = [{"sequence_start": not number, "sequence_end": number == 3} for number in range(4)]
    assert [first(infer("both", 1, sequence_id=70, **each)) for each in options] == [1, 3, 6, 10]
    assert first(infer("both", 1, sequence_id=70, sequence_start=True)) == 1
    assert first(infer("both", 1, sequence_id=71, sequence_start=True)) == 1
    with pytest.raises(InferenceServerException, match="must specify batch-size 1"):
        infer("both", [1, 1], sequence_id=70)
    assert first(infer("both", 2, sequence_id=70, sequence_end=True)) == 4
    assert first(infer("both", 1, sequence_id=71, sequence_end=True)) == 3


def test_a_killed_worker_changes_no_state(service: RepositoryProcess) -> None:
    with protocols(service) as (_, infer), ThreadPoolExecutor(8) as clients:

        def run(key: int) -> list[float]:
            answers = []
            for number in range(20):
                if number == 4 * key:
                    service.kill_worker(key % 2)
                options = {
                    "sequence_id": 1000 + key,
                    "sequence_start": not number,
                    "sequence_end": number == 19,
                }
                answers.append(first(infer("sum", key, **options)))
            return answers

        expected = [[key * number for number in range(1, 21)] for key in range(1, 9)]
        assert list(clients.map(run, range(1, 9))) == expected

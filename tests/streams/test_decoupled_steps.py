"""Decoupled models as steps of ensembles, and called by other Python models."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from tests.support.answer_streams import (
    get_text,
    get_texts,
    infer,
    list_final,
    open_stream,
    request,
    write_tells,
)
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import wait_until
from tests.support.triton_repository import write_model


@pytest.mark.parametrize("way", ["count", "in_thread"])
def test_each_answer_of_a_step_runs_through_the_steps_behind_it(channel: grpc.Channel, way: str) -> None:
    answers = infer(channel, request("ensemble_first", f"{way} 3", "a", empty_final=True))
    assert get_texts(answers) == ["<0>", "<1>", "<2>", ""]
    assert list(list_final(answers)) == [False, False, False, True]
    assert {answer.infer_response.model_name for answer in answers} == {"ensemble_first"}


def test_a_decoupled_step_may_be_the_last(channel: grpc.Channel) -> None:
    assert get_texts(infer(channel, request("ensemble_last", "return count 3"))) == ["0", "1", "2"]
    assert get_texts(infer(channel, request("ensemble_last", "return count 0"))) == []


def test_a_decoupled_step_behind_another_answers_each_of_its_answers_in_order(channel: grpc.Channel) -> None:
    texts = get_texts(infer(channel, request("ensemble_twice", "count 3")))
    assert texts == ["<1.0>", "<2.0>", "<2.1>"]


def test_an_error_behind_a_decoupled_step_ends_the_request(channel: grpc.Channel) -> None:
    texts = get_texts(infer(channel, request("ensemble_first", "count 9")))
    assert texts[-1].endswith("no threes")
    assert texts[:-1] == ["<0>", "<1>", "<2>"][: len(texts) - 1]
    texts = get_texts(infer(channel, request("ensemble_first", "fail_second")))
    assert texts[-1].endswith("the second fails")


def test_a_client_of_an_ensemble_that_leaves_cancels_its_steps(channel: grpc.Channel, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    call = open_stream(channel, [request("ensemble_first", f"gated {gate}")])
    assert get_text(next(call)) == "<0>"
    call.cancel()
    wait_until(lambda: Path(f"{gate}.cancelled").exists(), "the model is told")


TEXTS = """
input { name: "X" data_type: TYPE_STRING dims: 1 }
output { name: "Y" data_type: TYPE_STRING dims: 1 }
"""
HELD = """
import time
from pathlib import Path


class TritonPythonModel:
    def execute(self, requests):
        while not Path("GATE").exists():
            time.sleep(0.01)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy())])
            for request in requests
        ]
"""


@pytest.mark.parametrize("limit", [1, 3])
def test_an_ensemble_processes_as_many_answers_at_a_time_as_it_allows(tmp_path: Path, limit: int) -> None:
    answers, gate = 100, tmp_path / "gate"
    repository = write_tells(tmp_path / "models")
    write_model(repository, "held", f'backend: "python"{TEXTS}', HELD.replace("GATE", str(gate)))
    steps = "".join(
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "X" value: "{source}" }} '
        f'output_map {{ key: "Y" value: "{result}" }} }}\n'
        for model, source, result in (("tells", "X", "between"), ("held", "between", "Y"))
    )
    config = f'platform: "ensemble"{TEXTS}ensemble_scheduling {{ max_inflight_requests: {limit} {steps} }}'
    write_model(repository, "both", config).joinpath("1").mkdir(exist_ok=True)
    with RepositoryProcess(repository) as process, process.channel() as channel:
        call = open_stream(channel, [request("both", f"count {answers}")])
        wait_until(
            lambda: process.http("/v2/models/tells/stats").json["model_stats"][0]["execution_count"] == 1,
            "the front has all answers of the first step",
        )
        assert process.metric("paddlewheel_op_queue_length", op="held:1") < limit
        gate.touch()
        assert get_texts(call) == list(map(str, range(answers)))


DECOUPLED_CALL = (
    "Model tells is using the decoupled. The current BLS request call doesn't support models using the "
    "decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls "
    "for decoupled models."
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("exec count 3", "0 1 2"),
        ("async_exec count 2", "0 1"),
        ("exec count 0", ""),
        ("exec fail_second", "0 the second fails 2"),
        ("alone count 1", f"Model tells - Error when running inference: {DECOUPLED_CALL}"),
        ("cancel in_thread 100000", "7"),
    ],
)
def test_a_model_iterates_over_the_answers_of_another(channel: grpc.Channel, text: str, answer: str) -> None:
    assert get_texts(infer(channel, request("asks", text))) == [answer]


def test_decoupled_steps_beside_each_other_and_other_backends_are_refused(
    models: RepositoryProcess, tmp_path: Path
) -> None:
    tensors = 'input { name: "X" data_type: TYPE_STRING dims: 1 }\n'
    tensors += 'output { name: "Y" data_type: TYPE_STRING dims: -1 }'
    decoupled = "model_transaction_policy { decoupled: true }"
    code = "class TritonPythonModel:\n    def execute(self, requests):\n        return None\n"
    write_model(tmp_path, "source", f'backend: "python"\n{tensors}\n{decoupled}', code)
    write_model(tmp_path, "native", f'backend: "identity"\n{tensors}\n{decoupled}').joinpath("1").mkdir(
        exist_ok=True
    )
    steps = [
        f'step {{ model_name: "source" model_version: -1 input_map {{ key: "X" value: "X" }} '
        f'output_map {{ key: "Y" value: "{name}" }} }}'
        for name in "YZ"
    ]
    beside = f'platform: "ensemble"\n{tensors}\noutput {{ name: "Z" data_type: TYPE_STRING dims: -1 }}\n'
    beside += f"ensemble_scheduling {{ {' '.join(steps)} }}"
    write_model(tmp_path, "beside", beside).joinpath("1").mkdir(exist_ok=True)
    with RepositoryProcess(tmp_path, arguments=["--strict-readiness=false"]) as process:
        process.wait_for_log("steps 1 and 2 are decoupled, and neither gets the other's outputs")
        process.wait_for_log("models of the backend 'identity' send one response to each request")

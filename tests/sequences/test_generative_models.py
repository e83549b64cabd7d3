"""Generative sequences: a Python model runs a request in steps, and requests of any age share a batch."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from client.protos.kserve_v2_pb2 import ModelInferRequest, ModelStreamInferResponse
from tests.support.answer_streams import get_text, get_texts, infer, list_final, open_stream, request
from tests.support.repository_process import RepositoryProcess
from tests.support.sequence_models import control
from tests.support.service_process import wait_until
from tests.support.triton_repository import write_model

START = control("START", "START", "int32_false_true: [ 0, 1 ]")
CORRID = control("CORRID", "CORRID", "data_type: TYPE_UINT64")
TENSORS = """
backend: "python"
max_batch_size: 4
input { name: "X" data_type: TYPE_STRING dims: 1 }
output { name: "Y" data_type: TYPE_STRING dims: 1 }
"""
ITERATIVE = f"{TENSORS}sequence_batching {{ iterative_sequence: true control_input [ {START}, {CORRID} ] }}\n"
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
# "steps N" answers after each of N steps; "joined" steps on until another request shares the batch.
MODEL = """
RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def response(text):
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([[text]], dtype=object))])


class TritonPythonModel:
    def initialize(self, args):
        self.steps = {}

    def execute(self, requests):
        answers = [self.step(request, len(requests)) for request in requests]
        return None if self.decoupled else answers

    def step(self, request, size):
        start, key = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy().item() for name in ("START", "CORRID")
        )
        assert request.correlation_id() == key and request.flags() == start
        if start:
            assert key not in self.steps
            self.steps[key] = 0
        self.steps[key] += 1
        text = pb_utils.get_input_tensor_by_name(request, "X").as_numpy().item().decode()
        way, _, rest = text.partition(" ")
        return getattr(self, way)(request, self.steps[key], size, rest)
"""
STREAMING = f"""{MODEL}
    decoupled = True

    def steps_(self, request, step, size, rest):
        sender = request.get_response_sender()
        if step == int(rest):
            del self.steps[request.correlation_id()]
            sender.send(response(str(step)), FINAL)
            return
        sender.send(response(str(step)))
        request.set_release_flags(RESCHEDULE)

    def joined(self, request, step, size, rest):
        sender = request.get_response_sender()
        if step == 1:
            sender.send(response("begun"))
        if size > 1:
            sender.send(response(f"batch of {{size}}"), FINAL)
        else:
            request.set_release_flags(RESCHEDULE)

    def late(self, request, step, size, rest):
        sender = request.get_response_sender()
        if step == 1:
            request.set_release_flags(RESCHEDULE)
            self.sender, self.request = sender, request
            return
        errors = []
        for call in (lambda: self.sender.send(response("late")), lambda: self.request.set_release_flags(2)):
            try:
                call()
            except pb_utils.TritonModelException as exc:
                errors.append(str(exc))
        sender.send(response("; ".join(errors)), FINAL)
"""
SINGLE = f"""{MODEL}
    decoupled = False

    def steps_(self, request, step, size, rest):
        if step == int(rest):
            return response(f"{{step}} steps")
        request.set_release_flags(RESCHEDULE)

    def both(self, request, step, size, rest):
        request.set_release_flags(RESCHEDULE)
        return response("too early")

    def fails(self, request, step, size, rest):
        if step == 2:
            raise ValueError("no third step")
        request.set_release_flags(RESCHEDULE)
"""
SUMS = f"""{MODEL}
    decoupled = True

    def execute(self, requests):
        for request in requests:
            start, key = request.flags() & 1, request.correlation_id()
            text = pb_utils.get_input_tensor_by_name(request, "X").as_numpy().item()
            self.steps[key] = len(text) + (0 if start else self.steps[key])
            sender = request.get_response_sender()
            sender.send(response(str(self.steps[key])))
            sender.send(response("end"), FINAL)
"""
PLAIN = """
class TritonPythonModel:
    def execute(self, requests):
        requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    folder = tmp_path_factory.mktemp("generative")
    write_model(folder, "streaming", ITERATIVE + DECOUPLED, STREAMING)
    write_model(folder, "single", ITERATIVE, SINGLE)
    write_model(folder, "plain", TENSORS, PLAIN)
    write_model(
        folder,
        "sums",
        f"{TENSORS}sequence_batching {{ max_sequence_idle_microseconds: 600000000 }}\n{DECOUPLED}",
        SUMS,
    )
    with RepositoryProcess(folder) as process:
        yield process


@pytest.fixture
def channel(service: RepositoryProcess) -> Iterator[grpc.Channel]:
    with service.channel() as channel:
        yield channel


def ask(model: str, text: str, sequence_id: int = 0, *, start: bool = False) -> ModelInferRequest:
    message = request(model, text, empty_final=model == "streaming")
    message.inputs[0].shape[:] = [1, 1]
    if sequence_id:
        message.parameters["sequence_id"].int64_param = sequence_id
        message.parameters["sequence_start"].bool_param = start
    return message


def test_each_step_of_a_request_sends_an_answer(channel: grpc.Channel) -> None:
    answers = infer(channel, ask("streaming", "steps_ 5"))
    assert get_texts(answers) == ["1", "2", "3", "4", "5"]
    assert list(list_final(answers)) == [False] * 4 + [True]


def test_a_request_with_an_id_is_a_sequence_of_its_own(channel: grpc.Channel) -> None:
    for _ in range(2):  # the end of the request has ended the first sequence
        assert get_texts(infer(channel, ask("streaming", "steps_ 2", 7, start=True))) == ["1", "2"]
    (error,) = get_texts(infer(channel, ask("streaming", "steps_ 2", 7)))
    assert "must specify the START flag" in error


def test_a_model_with_one_response_answers_after_its_last_step(service: RepositoryProcess) -> None:
    for steps in (1, 40):
        assert generate(service, f"steps_ {steps}")["Y"] == f"{steps} steps"
    assert "no third step" in generate(service, "fails")["error"]
    assert "Expected a None object" in generate(service, "both")["error"]
    assert "iterative_sequence: true" in generate(service, "x", "plain")["error"]
    assert service.metric("paddlewheel_sequences", op="single:1") == 0


def generate(service: RepositoryProcess, text: str, model: str = "single") -> dict[str, str]:
    answer: dict[str, str] = service.http(f"/v2/models/{model}/generate", json.dumps({"X": text})).json
    return answer


def test_a_new_request_joins_the_batch_of_one_that_goes_on(channel: grpc.Channel) -> None:
    first = open_stream(channel, [ask("streaming", "joined")])
    assert get_text(next(first)) == "begun"
    second = open_stream(channel, [ask("streaming", "joined")])
    assert get_text(next(second)) == "begun"
    assert [get_texts(first), get_texts(second)] == [["batch of 2"], ["batch of 2"]]


def test_a_client_that_leaves_frees_its_slot(service: RepositoryProcess, channel: grpc.Channel) -> None:
    for _ in range(5):  # more than the instance has slots
        left = open_stream(channel, [ask("streaming", "joined")])
        assert get_text(next(left)) == "begun"
        left.cancel()
        wait_until(
            lambda: service.metric("paddlewheel_sequences", op="streaming:1") == 0, "the sequence ends"
        )
    assert get_texts(infer(channel, ask("streaming", "steps_ 1"))) == ["1"]


def test_a_rescheduled_request_is_released(channel: grpc.Channel) -> None:
    (text,) = get_texts(infer(channel, ask("streaming", "late")))
    assert "Response sender has been closed" in text
    assert "until execute returns" in text


def test_each_request_of_a_sequence_may_have_several_answers(channel: grpc.Channel) -> None:
    calls = [ask("sums", text, 11, start=text == "ab") for text in ("ab", "abc", "a")]
    assert [get_texts(infer(channel, call)) for call in calls] == [["2", "end"], ["5", "end"], ["6", "end"]]


def test_a_dead_worker_ends_the_requests_under_way(service: RepositoryProcess, channel: grpc.Channel) -> None:
    call = open_stream(channel, [ask("streaming", "joined")])
    assert get_text(next(call)) == "begun"
    names = {Path(f"/proc/{pid}/comm").read_text().strip(): pid for pid in service.worker_pids()}
    os.kill(names["streaming:1.0"], signal.SIGKILL)
    errors = collect_errors(call)
    assert "worker" in errors or "the instance that kept its state" in errors
    service.wait_until_ready(every_instance=True)
    assert get_texts(infer(channel, ask("streaming", "steps_ 3"))) == ["1", "2", "3"]


def collect_errors(call: Iterator[ModelStreamInferResponse]) -> str:
    return " ".join(answer.error_message for answer in call)

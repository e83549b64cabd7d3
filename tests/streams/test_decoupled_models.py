"""Decoupled Python models: any number of answers to a request, over gRPC and as server-sent events."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.support.answer_streams import (
    get_text,
    get_texts,
    infer,
    list_final,
    numbers_request,
    open_stream,
    request,
)
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import PATIENCE_S, HttpAnswer, wait_until


@pytest.mark.parametrize("way", ["count", "in_thread"])
@pytest.mark.parametrize("answers", [0, 1, 3])
def test_a_request_has_as_many_answers_as_the_model_sends(
    channel: grpc.Channel, way: str, answers: int
) -> None:
    responses = infer(channel, request("tells", f"{way} {answers}", "a"))
    assert get_texts(responses) == list(map(str, range(answers)))
    assert not any(list_final(responses))
    assert {response.infer_response.id for response in responses} <= {"a"}


def test_a_client_may_ask_for_an_empty_final_response(channel: grpc.Channel) -> None:
    *_, final = responses = infer(channel, request("tells", "count 2", "a", empty_final=True))
    assert list(list_final(responses)) == [False, False, True]
    assert (final.infer_response.model_name, final.infer_response.id) == ("tells", "a")
    assert not final.infer_response.outputs


def test_the_last_response_may_carry_the_final_flag(channel: grpc.Channel) -> None:
    responses = infer(channel, request("tells", "last text", empty_final=True))
    assert (get_texts(responses), list(list_final(responses))) == (["text"], [True])


def test_an_error_response_is_one_of_the_answers(channel: grpc.Channel) -> None:
    responses = infer(channel, request("tells", "fail_second", "a"))
    assert get_texts(responses) == ["0", "the second fails", "2"]
    assert responses[1].infer_response.id == "a"


def test_a_model_that_raises_after_three_answers_ends_with_its_error(channel: grpc.Channel) -> None:
    *texts, error = get_texts(infer(channel, request("tells", "raise_after 3")))
    assert texts == ["0", "1", "2"]
    assert "ValueError: no more of them" in error
    assert get_texts(infer(channel, request("tells", "count 1"))) == ["0"]


def test_a_response_after_the_final_flag_is_an_error_of_the_model_alone(
    models: RepositoryProcess, channel: grpc.Channel, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    assert get_texts(infer(channel, request("tells", f"late {told}"))) == ["0"]
    wait_until(lambda: told.exists() and "has been closed" in told.read_text(), "the model is told")
    wait_until(lambda: "after TRITONSERVER_RESPONSE_COMPLETE_FINAL" in models.log, "the log tells")
    assert get_texts(infer(channel, request("tells", "count 1"))) == ["0"]


def test_wrong_arguments_of_send_are_errors_of_the_model(channel: grpc.Channel) -> None:
    (text,) = get_texts(infer(channel, request("tells", "wrong")))
    assert "must be provided when the response flags is set to zero" in text
    assert "Unsupported response flags" in text
    assert "takes an InferenceResponse, not str" in text


def test_a_dropped_sender_ends_its_request(channel: grpc.Channel) -> None:
    first, error = get_texts(infer(channel, request("tells", "drop")))
    assert first == "0"
    assert "dropped the response sender" in error


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("tells", "execute neither called get_response_sender"),
        ("returns", "execute function must return None"),
    ],
)
def test_an_execute_that_can_answer_nobody_is_an_error(channel: grpc.Channel, model: str, error: str) -> None:
    (text,) = get_texts(infer(channel, request(model, "ignore")))
    assert error in text


def test_an_execute_that_is_a_coroutine_answers_while_others_run(channel: grpc.Channel) -> None:
    requests = [request("coroutine", f"count {number}", str(number)) for number in (1, 3, 2)]
    answers = infer(channel, *requests)
    by_id = Counter(answer.infer_response.id for answer in answers if not answer.error_message)
    assert by_id == {"1": 1, "3": 3, "2": 2}
    assert [text for text in get_texts(answers) if "two are too few" in text]


def test_fifty_streams_have_their_answers_in_order(channel: grpc.Channel) -> None:
    def ask(client: int) -> list[int]:
        model = ("repeat", "square")[client % 2]
        numbers = [client] if client % 2 else [*range(client)]
        answers = infer(channel, numbers_request(model, numbers, str(client)))
        assert {answer.infer_response.id for answer in answers} <= {str(client)}
        return [int(np.frombuffer(a.infer_response.raw_output_contents[0], "<i4")[0]) for a in answers]

    with ThreadPoolExecutor(50) as clients:
        answers = list(clients.map(ask, range(50)))
    assert answers == [[client] * client if client % 2 else [*range(client)] for client in range(50)]


def test_answers_to_requests_of_one_call_are_sent_as_they_come(channel: grpc.Channel, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    call = open_stream(
        channel, [request("tells", f"gated {gate}", "slow"), request("tells", "count 2", "fast")]
    )
    early = [next(call) for _ in range(3)]
    assert Counter(answer.infer_response.id for answer in early) == {"slow": 1, "fast": 2}
    gate.touch()
    assert get_texts(call) == ["1"]


def test_one_answer_a_request_is_required_elsewhere(models: RepositoryProcess, channel: grpc.Channel) -> None:
    message = request("tells", "count 1").SerializeToString()
    with pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(message, timeout=PATIENCE_S)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "decoupled transaction policy" in refused.value.details()
    tensor = {"name": "X", "shape": [1], "datatype": "BYTES", "data": ["count 1"]}
    answer = models.http("/v2/models/tells/infer", json.dumps({"inputs": [tensor]}))
    assert answer.status == 501
    assert "HTTP end point doesn't support models with decoupled" in answer.json["error"]


@pytest.mark.parametrize(("answers", "error"), [(0, True), (1, False), (2, True)])
def test_generate_takes_exactly_one_answer(models: RepositoryProcess, answers: int, error: bool) -> None:
    answer = generate(models, "tells", f"count {answers}", "generate")
    if error:
        assert "exactly 1 response" in answer.json["error"]
    else:
        assert answer.json["Y"] == "0"


def generate(models: RepositoryProcess, model: str, text: str, action: str = "generate_stream") -> HttpAnswer:
    return models.http(f"/v2/models/{model}/{action}", json.dumps({"X": text}))


def list_events(answer: HttpAnswer) -> list[dict[str, str]]:
    *events, rest = answer.body.decode().split("\n\n")
    assert rest == ""
    return [json.loads(event.removeprefix("data: ")) for event in events]


@pytest.mark.parametrize("answers", [0, 1, 3])
def test_generate_stream_sends_an_event_for_each_answer(models: RepositoryProcess, answers: int) -> None:
    answer = generate(models, "tells", f"count {answers}")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert [event["Y"] for event in list_events(answer)] == list(map(str, range(answers)))


def test_an_error_behind_the_first_event_is_an_event(models: RepositoryProcess) -> None:
    events = list_events(generate(models, "tells", "fail_second"))
    assert [event.get("Y") or event["error"] for event in events] == ["0", "the second fails", "2"]
    *_, last = list_events(generate(models, "tells", "raise_after 3"))
    assert "no more of them" in last["error"]


def test_an_error_before_the_first_event_has_its_status(models: RepositoryProcess) -> None:
    answer = generate(models, "tells", "raise_after 0")
    assert answer.status == 500
    assert "no more of them" in answer.json["error"]


@pytest.mark.parametrize("way", ["return", "thread"])
def test_a_model_that_is_not_decoupled_may_send_its_response(
    models: RepositoryProcess, channel: grpc.Channel, way: str
) -> None:
    (answer,) = infer(channel, request("single", f"{way} text", empty_final=True))
    assert (get_text(answer), *list_final([answer])) == ("text", True)
    assert generate(models, "single", f"{way} text", "generate").json["Y"] == "text"


@pytest.mark.parametrize(
    ("way", "answer"),
    [
        ("twice", "text"),
        ("none", "Non-decoupled model cannot send complete final before sending a response"),
        ("nothing", "dropped the response sender"),
    ],
)
def test_a_model_that_is_not_decoupled_sends_one_response(
    channel: grpc.Channel, way: str, answer: str
) -> None:
    (text,) = get_texts(infer(channel, request("single", f"{way} text")))
    assert answer in text

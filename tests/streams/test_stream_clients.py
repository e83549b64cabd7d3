"""Clients of streams that leave or read slowly, and workers that die: only their own streams notice."""

from __future__ import annotations

import contextlib
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from tests.support.answer_streams import get_text, get_texts, infer, open_stream, request, write_tells
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import PATIENCE_S, wait_until

MANY = 2000  # answers of 100 KB: far more than the buffers between a model and its client hold


def test_a_client_that_leaves_cancels_its_request(channel: grpc.Channel, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    call = open_stream(channel, [request("tells", f"gated {gate}")])
    assert get_text(next(call)) == "0"
    call.cancel()
    wait_until(lambda: Path(f"{gate}.cancelled").exists(), "the model is told")
    wait_until(lambda: Path(f"{gate}.cancelled").read_text() == "True", "the sender is told")
    assert get_texts(infer(channel, request("tells", "count 2"))) == ["0", "1"]


def test_a_client_of_events_that_leaves_cancels_its_request(
    models: RepositoryProcess, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    connection = models.connection()
    with contextlib.closing(connection):
        body = json.dumps({"X": f"gated {gate}"})
        connection.request("POST", "/v2/models/tells/generate_stream", body)
        assert b'"Y":"0"' in connection.getresponse().readline()
    wait_until(lambda: Path(f"{gate}.cancelled").exists(), "the model is told")


def test_a_model_that_is_not_decoupled_is_told_of_a_client_that_leaves(
    channel: grpc.Channel, tmp_path: Path
) -> None:
    cancelled = tmp_path / "cancelled"
    call = open_stream(channel, [request("single", f"wait {cancelled}")])
    wait_until(Path(f"{cancelled}.waiting").exists, "the model waits")
    assert get_texts(infer(channel, request("single", "return text"))) == ["text"], "the other instance"
    call.cancel()
    wait_until(cancelled.exists, "the model is told")


def test_a_client_that_does_not_read_ends_and_others_are_answered(
    models: RepositoryProcess, channel: grpc.Channel
) -> None:
    with models.channel() as slow:
        call = open_stream(slow, [request("tells", f"flood {MANY}", "slow")])
        assert len(get_text(next(call))) == 100_000
        assert get_texts(infer(channel, request("tells", "count 2"))) == ["0", "1"]
        *_, last = call
        assert "the client has not read" in last.error_message
    assert models.metric("paddlewheel_op_restarts_total", op="tells:1") == 0


def test_a_client_of_events_that_does_not_read_delays_no_other(models: RepositoryProcess) -> None:
    body = json.dumps({"X": f"flood {MANY}"}).encode()
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", models.http_port))
        head = "POST /v2/models/tells/generate_stream HTTP/1.1\r\nhost: a\r\n"
        head += f"content-length: {len(body)}\r\n\r\n"
        slow.sendall(head.encode() + body)
        assert slow.recv(100)
        with models.channel() as channel:
            assert get_texts(infer(channel, request("tells", "count 2"))) == ["0", "1"]


def test_a_client_that_reads_gets_all_of_many_answers(channel: grpc.Channel) -> None:
    call = open_stream(channel, [request("tells", "count 10000")])
    assert [get_text(answer) for answer in call] == list(map(str, range(10000)))


def test_a_stream_with_answers_ends_with_its_worker(models: RepositoryProcess, channel: grpc.Channel) -> None:
    first, error = get_texts(infer(channel, request("tells", "die_after 1")))
    assert first == "0"
    assert "killed by SIGKILL" in error and "has answers already" in error
    assert get_texts(infer(channel, request("tells", "count 1"))) == ["0"]


def test_a_request_without_an_answer_runs_again_when_its_worker_dies(
    channel: grpc.Channel, tmp_path: Path
) -> None:
    texts = get_texts(infer(channel, request("tells", f"die_after 0 {tmp_path / 'died'}")))
    assert texts == ["after a death"]


def test_streams_end_before_their_worker_is_replaced_and_before_a_stop(tmp_path: Path) -> None:
    arguments = ["--model-control-mode=explicit", "--load-model=tells"]
    gates = [tmp_path / "gate", tmp_path / "other"]
    with RepositoryProcess(write_tells(tmp_path / "models"), arguments=arguments) as process:
        (worker,) = process.worker_pids()
        with process.channel() as channel, ThreadPoolExecutor(1) as pool:
            call = open_stream(channel, [request("tells", f"gated {gates[0]}")])
            assert get_text(next(call)) == "0"
            with (tmp_path / "models/tells/1/model.py").open("a") as file:
                file.write("# another version of the file\n")
            loading = pool.submit(process.http, "/v2/repository/models/tells/load", b"{}")
            wait_until(lambda: len(process.worker_pids()) == 2, "a new worker starts")
            wait_until(lambda: get_texts(infer(channel, request("tells", "count 1"))) == ["0"], "it serves")
            gates[0].touch()
            assert get_texts(call) == ["1"]
            assert loading.result().status == 200
            wait_until(lambda: worker not in process.worker_pids(), "the old worker leaves")
            call = open_stream(channel, [request("tells", f"gated {gates[1]}")])
            assert get_text(next(call)) == "0"
            process.terminate()
            process.wait_for_log("Stopping")
            gates[1].touch()
            assert get_texts(call) == ["1"]
        assert process.exit_code() == 0


def test_a_client_that_wants_errors_as_a_status_gets_unavailable(channel: grpc.Channel) -> None:
    call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    message = request("tells", "die_after 1").SerializeToString()
    answers = call(iter([message]), timeout=PATIENCE_S, metadata=[("triton_grpc_error", "true")])
    with pytest.raises(grpc.RpcError) as ended:
        list(answers)
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE

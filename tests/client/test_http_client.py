"""HttpClient against servers that answer, refuse, hang and break off."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from client.errors import BadAnswer, RequestRefused, RequestTimedOut, ServiceUnavailable, TooManyRequests
from client.http_client import HttpClient
from tests.support.scripted_servers import (
    OUTPUTS,
    Handler,
    Step,
    answer,
    cut_off,
    drip,
    hang,
    http_server,
    reset,
    respond,
)
from tests.support.service_process import PATIENCE_S


def test_http_answer_has_the_outputs_by_key() -> None:
    with http_server(respond()) as server, HttpClient(server.url) as client:
        found = client.predict("国足客场两球取胜")
    assert (found.err_no, found.err_msg, found.texts) == (0, "", OUTPUTS)
    assert server.seen == [("/bert/prediction", {"key": ["0"], "value": ["国足客场两球取胜"]})]


def test_an_answer_has_arrays_where_they_were_sent() -> None:
    with http_server(respond()) as server, HttpClient(server.url) as client:
        outputs = client.predict("text").outputs
    assert isinstance(outputs["label_id"], np.ndarray) and isinstance(outputs["confidence"], np.ndarray)
    assert outputs["label_id"].tolist() == [3]
    assert (outputs["confidence"].dtype, outputs["label"][0]) == (np.float32, "sports")


def test_http_connection_is_kept_for_the_next_request() -> None:
    with http_server(respond()) as server, HttpClient(server.url) as client:
        for _ in range(3):
            client.predict("text")
    assert len(server.ports) == 3
    assert len(set(server.ports)) == 1


def test_a_connection_that_the_server_announced_to_close_is_not_used_again() -> None:
    last = respond(close=True, Connection="close")
    with http_server(last) as server, HttpClient(server.url, retries=0) as client:
        for _ in range(3):
            client.predict("text")
    assert len(set(server.ports)) == 3


def test_http_429_is_tried_again_after_its_retry_after() -> None:
    busy = respond(429, answer(3001, "busy"), Retry_After="0")
    with http_server(busy, busy, respond()) as server, HttpClient(server.url, retries=2) as client:
        assert client.predict("text").texts == OUTPUTS
    assert len(server.seen) == 3


def test_a_retry_after_beyond_the_timeout_is_reported_at_once() -> None:
    busy = respond(429, answer(3001, "120 requests are pending"), Retry_After="60")
    with (
        http_server(busy) as server,
        HttpClient(server.url, timeout_s=20, retries=5) as client,
        pytest.raises(TooManyRequests, match="120 requests are pending") as caught,
    ):
        client.predict("text")
    assert (caught.value.retry_after_s, caught.value.err_no, caught.value.http_status) == (60, 3001, 429)
    assert len(server.seen) == 1


def test_503_that_lasts_is_unavailable_after_all_tries() -> None:
    down = respond(503, answer(3001, "stopping"), Retry_After="0")
    with (
        http_server(down) as server,
        HttpClient(server.url, retries=2) as client,
        pytest.raises(ServiceUnavailable, match="stopping"),
    ):
        client.predict("text")
    assert len(server.seen) == 3


@pytest.mark.parametrize("broken", [reset, cut_off], ids=["reset", "cut-off"])
def test_a_connection_that_breaks_off_is_tried_again(broken: Step) -> None:
    with http_server(broken, respond()) as server, HttpClient(server.url) as client:
        assert client.predict("text").texts == OUTPUTS
    assert [body["value"] for _, body in server.seen] == [["text"], ["text"]]


def test_idle_connections_that_the_server_closed_cost_no_request() -> None:
    """More of them than there are retries: one broken shows that the others are, too."""
    together = threading.Barrier(4)

    def last_word(handler: Handler) -> None:
        together.wait(PATIENCE_S)
        respond(close=True)(handler)

    script = [last_word] * 4 + [respond()]
    with http_server(*script) as server, HttpClient(server.url, retries=1) as client:
        with ThreadPoolExecutor(4) as threads:
            assert len(list(threads.map(client.predict, "abcd"))) == 4
        assert client.predict("e").texts == OUTPUTS
    assert sorted(body["value"][0] for _, body in server.seen) == ["a", "b", "c", "d", "e"]


def test_errors_of_the_request_are_not_tried_again() -> None:
    for status in (200, 400):
        with (
            http_server(respond(status, answer(5000, "'0' is empty"))) as server,
            HttpClient(server.url) as client,
            pytest.raises(RequestRefused, match="'0' is empty") as caught,
        ):
            client.predict("")
        assert (caught.value.err_no, caught.value.http_status) == (5000, status)
        assert len(server.seen) == 1


@pytest.mark.parametrize("silent", [hang, drip], ids=["hangs", "drips"])
def test_http_timeout_bounds_the_whole_call(silent: Step) -> None:
    with (
        http_server(silent) as server,
        HttpClient(server.url, timeout_s=1.0) as client,
        pytest.raises(RequestTimedOut),
    ):
        client.predict("text")
    assert len(server.seen) == 1


def test_another_programs_answer_is_told_apart() -> None:
    with (
        http_server(respond(404, b"<html>nginx</html>")) as server,
        HttpClient(server.url) as client,
        pytest.raises(BadAnswer, match="nginx"),
    ):
        client.predict("text")

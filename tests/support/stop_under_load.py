"""Clients over HTTP that ask on while their service stops."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

from tests.support.service_process import PATIENCE_S, ServiceProcess, key_value, read_answer


def assert_no_request_is_lost(service: ServiceProcess, clients: int, before: int) -> None:
    """Stop an echo service that `clients` ask; each keeps its connection until it is told to close.

    before: answers that each client has when the stop begins.
    """
    begun = threading.Barrier(clients + 1)

    def ask(number: int) -> tuple[int, list[object]]:
        answered, wrong = 0, []
        while True:
            connection = service.connection()
            with contextlib.closing(connection):
                try:
                    connection.connect()
                except ConnectionRefusedError:
                    return answered, wrong
                told_to_close = False
                while not told_to_close:
                    connection.request("POST", "/test/prediction", key_value({"number": str(number)}))
                    answer = read_answer(connection)
                    if answer.status != HTTPStatus.OK or answer.json["value"][1] != str(2 * number):
                        wrong.append(answer)
                    answered += 1
                    told_to_close = answer.headers.get("connection") == "close"
                    if answered == before:
                        begun.wait(PATIENCE_S)

    with ThreadPoolExecutor(clients) as pool:
        asked = [pool.submit(ask, number) for number in range(clients)]
        begun.wait(PATIENCE_S)
        service.terminate()
        results = [each.result() for each in asked]
    assert [wrong for _, some in results for wrong in some] == []
    assert min(answered for answered, _ in results) >= before
    assert service.exit_code() == 0

"""Every recorded request of Paddle Serving 0.9, sent to apps written for it: answers as recorded.

What equals: the HTTP status, the JSON document or message with the order of its keys and the contents of its
strings. What need not: headers, the texts of refusals (their status and err_no must), ids of processes and
requests, the digits of another model, and what `DIFFERENCES` lists.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from client.protos.pipeline_service_pb2 import Request, Response
from tests.support import models
from tests.support.recordings import RECORDINGS
from tests.support.service_process import (
    APPS,
    PATIENCE_S,
    ROOT,
    HttpAnswer,
    ServiceProcess,
    read_answer,
    wait_until,
)

MIGRATION = ROOT / "docs" / "migration.md"
FETCH = "linear_27.tmp_1"  # what the recorded classifier calls its output
BIG_TEXT = "a" * 5_242_880  # of the requests that are recorded by their length alone
TRUNCATED = "...TRUNCATED"
VARYING = {"data_id", "pid", "concurrency_idx"}


class Difference(NamedTuple):
    """What we answer instead, and why; docs/migration.md has a row that names the case."""

    status: int | str
    err_no: int
    reason: str


NOTHING_GIVEN = "a message without key, value and tensors is refused before the first Op, with a valid body"
NO_PROFILE = "timings are metrics; strangers can't ask for internals"
PLAIN_RESULT = "a hook's plain dict is taken as its result"

DIFFERENCES = {
    ("bert_service", "empty_body"): Difference(200, 8000, NOTHING_GIVEN),
    ("bert_service", "empty_object"): Difference(200, 8000, NOTHING_GIVEN),
    ("bert_service", "null_body"): Difference(200, 8000, NOTHING_GIVEN),
    ("bert_service", "grpc_empty_request"): Difference("OK", 8000, NOTHING_GIVEN),
    ("bert_service", "method_override_get"): Difference(400, 8000, "no header changes a request's method"),
    ("bert_service", "gzip_request_body"): Difference(
        415, 8000, "a client can learn that it must not compress"
    ),
    ("bert_service", "profile_key"): Difference(200, 10000, NO_PROFILE),
    ("bert_service", "grpc_profile"): Difference("OK", 10000, NO_PROFILE),
    ("probe", "ids_profile"): Difference(200, 0, NO_PROFILE),
    ("probe", "echo_profile_key_visible_to_op"): Difference(200, 0, NO_PROFILE),
    ("probe", "mixed2"): Difference(200, 7000, "half an answer looks like an answer"),
    ("probe", "pre_wrong_arity"): Difference(200, 0, PLAIN_RESULT),
    ("probe", "post_wrong_arity"): Difference(200, 0, PLAIN_RESULT),
    ("probe", "respsize 5000000"): Difference(200, 0, "the limit of 4 MB was its gateway's"),
}


class Outcome(NamedTuple):
    """An answer on either protocol. `document` is None for what is no answer of the service."""

    status: int | str
    document: dict[str, Any] | None
    length: int


@pytest.fixture(scope="module")
def services(
    model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], ServiceProcess]]:
    """The running service for a recording's `app`, each started once."""
    running: dict[str, ServiceProcess] = {}
    model = with_fetch_alias(
        models.classifier(model_folder), tmp_path_factory.mktemp("bert") / "model", FETCH
    )
    with contextlib.ExitStack() as stack:

        def service(app: str) -> ServiceProcess:
            if app not in running:
                running[app] = stack.enter_context(started(app, model))
            return running[app]

        yield service


def started(app: str, model: Path) -> ServiceProcess:
    """A service as the recording's `app` describes it, e.g. "dag-jump (no model, is_thread_op True)"."""
    name, _, details = app.partition(" (")
    name = name.removesuffix("_service")
    config: dict[str, Any] = {"dag": {"is_thread_op": "is_thread_op True" in details}}
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'compat'}"}
    if name == "probe":
        config["op"] = {"probe": {"concurrency": 2}}
    if name == "bert":
        conf = {
            "client_type": "local_predictor",
            "model_config": str(model / "serving_server"),
            "device_type": 0,
        }
        config["op"] = {"bert": {"local_service_conf": conf}}
    if name.startswith("dag-"):
        name, _, env["DAG"] = name.partition("-")
    script = APPS / "wire" / f"{name}.py"
    return ServiceProcess(script, config, name=name, arguments=("{config}",), env=env)


def with_fetch_alias(model: Path, target: Path, alias: str) -> Path:
    shutil.copytree(model, target)
    for file in target.rglob("*.prototxt"):
        file.write_text(file.read_text().replace('alias_name: "logits"', f'alias_name: "{alias}"'))
    return target


def same_line(row: dict[str, Any]) -> str:
    return f"{row['app'].split(' (')[0]}-{row['case']}"


@pytest.mark.parametrize("row", RECORDINGS, ids=same_line)
def test_the_answer_is_the_recorded_one(
    row: dict[str, Any], services: Callable[[str], ServiceProcess]
) -> None:
    service = services(row["app"])
    expected, answered = recorded(row), replayed(row, service)
    difference = DIFFERENCES.get(line_name(row))
    if difference is not None:
        assert answered.document is not None
        ours = answered.status, answered.document["err_no"]
        assert ours == (difference.status, difference.err_no), answered.document
        assert comparable(answered, row) != comparable(expected, row), "no longer different: take the row out"
        return
    assert comparable(answered, row) == comparable(expected, row)
    if "body_len" in row["response"]:
        assert answered.length == row["response"]["body_len"]


@pytest.mark.parametrize("app", ["bert_service", "probe"])
def test_no_recorded_request_costs_a_worker_or_anybody_else_s_answer(
    app: str, services: Callable[[str], ServiceProcess]
) -> None:
    """All of them at once, and good ones among them, each with an answer of its own."""
    rows = [row for row in RECORDINGS if row["app"].startswith(app)]
    service = services(rows[0]["app"])
    wait_until(lambda: service.http("/health/ready").status == 200, "every instance runs")
    workers = service.worker_pids()
    good = [
        {"0": "a" * number} if app == "bert_service" else {"cmd": "echo", "n": str(number)}
        for number in range(1, 41)
    ]
    alone = [service.predict(inputs) for inputs in good]
    assert len({json.dumps(answer) for answer in alone}) > 30
    over = threading.Event()

    def ask_until_over(start: int) -> list[Any]:
        wrong = []
        for number in itertools.count(start):
            if over.is_set():
                return wrong
            number %= len(good)
            answer = service.predict(good[number])
            if answer != alone[number]:
                wrong.append((good[number], answer))
        return wrong

    with ThreadPoolExecutor(12) as pool:
        asking = [pool.submit(ask_until_over, start) for start in range(4)]
        try:
            for _ in pool.map(lambda row: replayed(row, service), rows):
                pass
        finally:
            over.set()
        assert [wrong for one in asking for wrong in one.result()] == []
    assert service.worker_pids() == workers


def test_every_difference_is_a_case_of_the_recordings_and_named_in_the_migration_guide() -> None:
    assert set(DIFFERENCES) <= {line_name(row) for row in RECORDINGS}
    if MIGRATION.exists():
        guide = MIGRATION.read_text("utf-8")
        assert [case for _, case in DIFFERENCES if f"`{case.split()[0]}`" not in guide] == []


def line_name(row: dict[str, Any]) -> tuple[str, str]:
    """What `DIFFERENCES` is looked up by; the lines of one case are told apart by their size."""
    case = row["case"]
    if case == "respsize":
        case += " " + json.loads(row["request"]["body"])["value"][1]
    return row["app"].split(" (")[0], case


# Both sides --------------------------------------------------------------------------------------------


def recorded(row: dict[str, Any]) -> Outcome:
    response = row["response"]
    if row["request"]["proto"] == "grpc":
        length = response.get("message_len", 0)
        return Outcome(response["grpc_status"], response.get("message"), length)
    body = response["body"]
    if TRUNCATED in body:
        kept = json.loads(body.removesuffix(TRUNCATED) + '"]}')
        return Outcome(response["status"], kept, response["body_len"])
    document = json.loads(body) if body.startswith("{") else None
    return Outcome(response["status"], document, len(body.encode()))


def replayed(row: dict[str, Any], service: ServiceProcess) -> Outcome:
    if row["request"]["proto"] == "grpc":
        return over_grpc(row["request"], service)
    answer = over_http(row["request"], service)
    document = answer.json if answer.body.startswith(b"{") else None
    if document and "err_no" in document:
        assert list(document) == ["err_no", "err_msg", "key", "value", "tensors"]
    return Outcome(answer.status, document, len(answer.body.decode()))


def over_http(request: dict[str, Any], service: ServiceProcess) -> HttpAnswer:
    if "body_b64" in request:
        body = base64.b64decode(request["body_b64"])
    elif "body_len" in request:
        body = json.dumps({"key": ["0"], "value": [BIG_TEXT]}).encode()
        assert len(body) == request["body_len"]
    else:
        body = (request["body"] or "").encode()
    connection = HTTPConnection("127.0.0.1", service.http_port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request(request["method"], request["path"], body, request["headers"])
        return read_answer(connection)


def over_grpc(request: dict[str, Any], service: ServiceProcess) -> Outcome:
    if "wire_b64" in request:
        data = base64.b64decode(request["wire_b64"])
    elif "message" in request:
        data = Request(key=["0"], value=[BIG_TEXT]).SerializeToString()
        assert len(data) == request["message"]["len"]
    else:
        data = b""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{service.rpc_port}", options) as channel:
        try:
            answer = channel.unary_unary(request["method"])(data, timeout=PATIENCE_S)
        except grpc.RpcError as exc:
            return Outcome(exc.code().name, None, 0)
    message = Response.FromString(answer)
    document = {
        "err_no": message.err_no,
        "err_msg": message.err_msg,
        "key": list(message.key),
        "value": list(message.value),
        "tensors": list(message.tensors),
    }
    return Outcome("OK", document, len(answer))


# What is compared --------------------------------------------------------------------------------------


def comparable(outcome: Outcome, row: dict[str, Any]) -> Any:
    """The part of an answer that must equal."""
    if "message_len" in row["response"]:
        return outcome.status, outcome.length
    document = outcome.document
    if not isinstance(outcome.status, str) and outcome.status != 200:
        return (outcome.status,)
    if document is None:
        return (outcome.status,)
    err_no = document["err_no"]
    if err_no:
        message = document["err_msg"] if 50 <= err_no < 100 or err_no > 100_000 else "any"
        return outcome.status, err_no, message, document["key"], document["value"]
    if document["key"] == [FETCH]:
        return outcome.status, err_no, document["key"], [form(text) for text in document["value"]]
    pairs = list(zip(document["key"], document["value"], strict=True))
    if TRUNCATED in row["response"].get("body", ""):
        kept = len(recorded(row).document["value"][0])
        pairs = [(key, value[:kept]) for key, value in pairs]
    return outcome.status, err_no, [(key, "" if key in VARYING else value) for key, value in pairs]


def form(text: str) -> tuple[int, bool]:
    """Of a printed array of probabilities, float32 and of two axes: its rows, and whether each sums to 1."""
    printed = re.fullmatch(r"array\((\[\[.*\]\]),\s+dtype=float32\)", text, re.DOTALL)
    assert printed, text
    rows = json.loads(re.sub(r"\.(?!\d)", ".0", printed[1]))
    return len(rows), all(abs(sum(row) - 1) < 1e-3 for row in rows)

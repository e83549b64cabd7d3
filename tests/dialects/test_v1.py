"""KServe v1, the plain-JSON endpoint."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import models
from tests.support.service_process import APPS, HttpAnswer, ServiceProcess, wait_until

GOOD = {"numbers": [1, 2], "words": ["a", "b"]}


@pytest.fixture(scope="module")
def services() -> Iterator[Callable[[str], ServiceProcess]]:
    """The service of each declaration, started once."""
    running: dict[str, ServiceProcess] = {}
    with contextlib.ExitStack() as stack:

        def service(declared: str) -> ServiceProcess:
            if declared not in running:
                started = ServiceProcess(
                    APPS / "rows.py",
                    {"limits": {"json_depth": 8, "kserve_rows": 2}},
                    env={"DECLARED": declared},
                )
                running[declared] = stack.enter_context(started)
            return running[declared]

        yield service


@pytest.fixture
def rows(services: Callable[[str], ServiceProcess]) -> ServiceProcess:
    return services("rows")


def predict(service: ServiceProcess, body: Any, model: str = "test") -> HttpAnswer:
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    return service.http(f"/v1/models/{model}:predict", text)


def test_instances_are_rows_and_predictions_too(rows: ServiceProcess) -> None:
    given = [{"numbers": [1, 2], "words": ["国足", "b"]}, {"words": ["c", ""], "numbers": [30, 40]}]
    assert predict(rows, {"instances": given}).json == {
        "predictions": [
            {"sum": 3, "rows": 2, "words": ["国足", "b"]},
            {"sum": 70, "rows": 2, "words": ["c", ""]},
        ]
    }


def test_columns_are_answered_as_columns(rows: ServiceProcess) -> None:
    columns = {"numbers": [[1, 2], [30, 40]], "words": [["a"], ["b"]]}
    assert predict(rows, {"inputs": columns, "signature_name": "serving_default"}).json == {
        "outputs": {"sum": [3, 70], "rows": [2, 2], "words": [["a"], ["b"]]}
    }


def test_bytes_travel_as_base64(rows: ServiceProcess) -> None:
    instance = {"numbers": [1, 2], "words": [{"b64": "/wA="}, {"b64": "5Zu96Laz"}]}
    (prediction,) = predict(rows, {"instances": [instance]}).json["predictions"]
    assert prediction["words"] == [{"b64": "/wA="}, "国足"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"instances": []}, "no instance"),
        ({"instances": [GOOD] * 5}, "5 instances were sent; the model takes at most 4"),
        ({"instances": [GOOD, {"numbers": [1, 2]}]}, "instance 1 lacks the field 'words'"),
        ({"instances": [{**GOOD, "more": 1}]}, "instance 0 has a field 'more'"),
        ({"instances": [GOOD, 3]}, "$[1]"),
        (
            {"instances": [GOOD, {**GOOD, "numbers": [1, 2, 3]}]},
            "instance 1, field 'numbers' has the shape [3]",
        ),
        (
            {"instances": [{**GOOD, "numbers": [[1], [2, 3]]}]},
            "instance 0, field 'numbers' has lists of unequal",
        ),
        ({"instances": [{**GOOD, "numbers": 1}]}, "instance 0, field 'numbers' is a number; it takes INT32"),
        (
            {"instances": [GOOD, {**GOOD, "numbers": [1, 2.5]}]},
            "instance 1, field 'numbers' holds the number 2.5",
        ),
        (
            {"instances": [GOOD, {**GOOD, "numbers": [1, 1 << 40]}]},
            "holds the number 1099511627776; it takes INT32",
        ),
        (
            {"instances": [GOOD, {**GOOD, "numbers": [True, 1]}]},
            "instance 1, field 'numbers' holds true or false",
        ),
        ({"instances": [{**GOOD, "numbers": [None, 1]}]}, "field 'numbers' holds null"),
        (
            {"instances": [GOOD, {**GOOD, "words": ["a"]}]},
            "field 'words' has the shape [1], instance 0 has [2]",
        ),
        ({"instances": [{**GOOD, "words": ["a", 1]}]}, "field 'words' holds the number 1; it takes text"),
        ({"instances": [{**GOOD, "words": [{"b64": "?"}, "a"]}]}, "'b64' is no base64"),
        ({"inputs": {"numbers": [[1, 2]], "words": []}}, "unequal numbers of rows: numbers 1, words 0"),
        ({"inputs": {"numbers": [[1, 2]]}}, "'inputs' lacks the field 'words'"),
        ({"instances": [GOOD], "inputs": {}}, "either 'instances' or 'inputs'"),
        ({"instances": [GOOD], "parameters": {"a": [1]}}, "parameter 'a' has invalid type"),
        ({"instances": [GOOD], "instance": []}, "unknown field `instance`"),
        ({}, "either 'instances' or 'inputs'"),
        ("", "can't be read"),
        ('{"instances": [', "can't be read"),
        ('{"instances": [{"numbers": [1, 2], "words": ["\\ud800"]}]}', "can't be read"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:40],
)
def test_a_bad_body_is_told_instance_and_field_and_shown_a_valid_one(
    rows: ServiceProcess, body: Any, words: str
) -> None:
    workers = rows.worker_pids()
    answer = predict(rows, body)
    error = answer.json["error"]
    assert answer.status == 400 and words in error, error
    _, _, valid = error.partition("a valid body: ")
    assert json.loads(valid) == {"instances": [{"numbers": [1, 1], "words": ["国足", "取胜"]}]}
    assert predict(rows, valid).status == 200
    assert rows.worker_pids() == workers


def test_where_a_valid_body_would_be_long_its_fields_are_named(
    services: Callable[[str], ServiceProcess],
) -> None:
    service = services("wide")
    error = predict(service, {"instances": [{"threshold": 1}]}).json["error"]
    assert error.endswith("; the fields of an instance are image, threshold"), error
    good = {"image": [0] * 100, "threshold": 0.5}
    assert predict(service, {"instances": [good]}).json == {"predictions": [{"threshold": 0.5}]}


def test_size_and_depth_are_bounded(rows: ServiceProcess) -> None:
    deep = predict(rows, '{"instances": [{"numbers": ' + "[" * 20 + "]" * 20 + "}]}")
    assert (deep.status, "limits.json_depth is 8" in deep.json["error"]) == (413, True)
    for many in (
        '{"instances": [' + "1," * 300_000 + "1]}",
        '{"instances": [{' + '"a":1,' * 300_000 + '"b":1}]}',
    ):
        answer = predict(rows, many)
        assert (answer.status, "more than 262144 instances" in answer.json["error"]) == (413, True)
    assert predict(rows, {"instances": [{**GOOD, "words": ["," * 300_000, "x"]}]}).status == 200


def test_tensors_without_rows_are_one_instance(services: Callable[[str], ServiceProcess]) -> None:
    service = services("whole")
    answer = predict(service, {"instances": [{"ratio": [1, -2.5], "exact": True}]})
    assert answer.json == {"predictions": [{"ratio": [None, None], "exact": [True]}]}
    assert predict(service, {"inputs": {"ratio": [1, 0], "exact": [False]}}).json["outputs"]["exact"] == [
        False
    ]
    two = predict(service, {"instances": [{"ratio": [1, 2], "exact": True}] * 2})
    assert (two.status, "2 instances were sent" in two.json["error"]) == (400, True)
    for number, told in (("1e60", "1e+60"), ("1" + "0" * 400, "1000")):
        wide = predict(service, '{"instances": [{"ratio": [1, N], "exact": true}]}'.replace("N", number))
        assert (wide.status, f"'ratio' holds the number {told}" in wide.json["error"]) == (400, True), wide


def test_a_service_that_declares_nothing_is_given_what_json_has(
    services: Callable[[str], ServiceProcess],
) -> None:
    service = services("open")
    assert predict(service, {"instances": [{"text": "国足"}]}).json == {
        "predictions": [{"text": "国足", "kind": "text"}]
    }
    answer = predict(service, {"instances": [{"numbers": [[1, 2.5]]}]})
    assert answer.json == {"predictions": [{"numbers": [[2.0, 5.0]], "raw": [{"b64": "/w=="}]}]}
    for bad in ({"numbers": [[1], [2, 3]]}, {"numbers": {"a": 1}}, {"numbers": None}):
        refused = predict(service, {"instances": [bad]})
        assert (refused.status, "field 'numbers'" in refused.json["error"]) == (400, True)


def test_models_are_listed_and_told_ready(rows: ServiceProcess) -> None:
    assert rows.http("/v1/models").json["models"] == ["test"]
    told = rows.http("/v1/models/test").json
    assert (told["name"], told["ready"], told["id"]) == ("test", True, "test")
    assert rows.http("/v1/models/nope").status == predict(rows, {}, "nope").status == 404
    assert rows.http("/v1/models/test/versions/1").json["ready"] is True
    for version, status in (("0", 404), ("7", 404), ("9" * 30, 400)):
        refused = rows.http(f"/v1/models/test/versions/{version}:predict", "{}")
        assert (refused.status, "version" in refused.json["error"]) == (status, True), refused
    assert rows.http("/v1/models/test:explain", "{}").status == rows.http("/v1/nothing").status == 404
    refused = rows.http("/v1/models/test:predict")
    assert (refused.status, refused.headers["allow"], "error" in refused.json) == (405, "POST", True)


def test_a_model_op_takes_instances_by_its_own_name(model_folder: Path) -> None:
    conf = {"model_config": str(models.classifier(model_folder)), "device_type": 0}
    config = {"op": {"model": {"batch_size": 8, "local_service_conf": conf}}}
    with ServiceProcess(APPS / "model.py", config) as service:
        ids = [[1, 2, 3], [4, 5, 6]]
        instances = [{"input_ids": row, "token_type_ids": [0] * 3, "attention_mask": [1] * 3} for row in ids]
        predictions = predict(service, {"instances": instances}, "model").json["predictions"]
        feeds = {name: json.dumps([one[name] for one in instances]) for name in instances[0]}
        logits = json.loads(service.predict(feeds)["logits"])
        np.testing.assert_allclose([one["logits"] for one in predictions], logits, rtol=1e-5)


def test_overload_is_429_with_a_time_to_come_back(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    held = {"instances": [{"action": "wait", "argument": str(gate)}]}
    with (
        ServiceProcess(APPS / "echo.py", {"dag": {"max_pending_requests": 1}}) as service,
        ThreadPoolExecutor(1) as pool,
    ):
        holding = pool.submit(predict, service, held)
        wait_until(Path(f"{gate}.waiting").exists, "the worker is busy")
        refused = predict(service, {"instances": [{"number": "1"}]})
        gate.touch()
        assert holding.result().status == 200
    assert refused.status == 429 and int(refused.headers["retry-after"]) >= 1
    assert "max_pending_requests" in refused.json["error"]


def test_a_key_limits_the_rows_of_ops_without_a_maximum(services: Callable[[str], ServiceProcess]) -> None:
    unlimited = services("unlimited")
    rows = {"instances": [{"threshold": 1.0}] * 2}
    assert predict(unlimited, rows).json == {"predictions": [{"threshold": 1.0}] * 2}
    refused = predict(unlimited, {"instances": [{"threshold": 1.0}] * 3})
    assert (refused.status, "limits.kserve_rows" in refused.json["error"]) == (400, True)
    assert unlimited.http("/v2/models/test/config").json["max_batch_size"] == 2

"""What the HTTP port answers: to each body, path and method, and on its pages."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from pipeline import __version__
from tests.support.going_on import going_on
from tests.support.http_endpoint import GOOD, endpoint
from tests.support.service_process import ServiceProcess, key_value


@pytest.fixture(scope="module", params=["status", "original"])
def service(request: pytest.FixtureRequest) -> Iterator[ServiceProcess]:
    with endpoint(request.param) as process:
        yield process


@pytest.fixture(autouse=True)
def goes_on(service: ServiceProcess) -> Iterator[None]:
    with going_on(service):
        yield


def status(service: ServiceProcess, error: int) -> int:
    """The status of a refusal that Paddle Serving answered with 200."""
    return error if service.errors == "status" else 200


def test_a_good_request_is_answered_with_err_no_0_and_strings(service: ServiceProcess) -> None:
    answer = service.http("/test/prediction", GOOD)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    document = answer.json
    assert list(document) == ["err_no", "err_msg", "key", "value", "tensors"]
    assert (document["err_no"], document["err_msg"], document["tensors"]) == (0, "", [])
    assert dict(zip(document["key"], document["value"], strict=True))["doubled"] == "42"


@pytest.mark.parametrize(
    ("body", "always", "err_no", "told"),
    [
        (b"", False, 8000, "'key'"),
        (b"{}", False, 8000, "'key'"),
        (b'{"text": "a headline"}', False, 8000, "'key'"),
        (b'{"key": ["a"]', True, 8000, "JSON"),
        (b"number=1", True, 8000, "JSON"),
        (b"\xff\xfe", True, 8000, "JSON"),
        (b'["a"]', True, 8000, "object"),
        (b'{"key": "a", "value": ["b"]}', True, 8000, "'key'"),
        (b'{"key": ["a"], "value": [1]}', True, 8000, "'value"),
        (b'{"key": ["a", "b"], "value": ["1"]}', False, 8000, "'value' 1"),
        (b'{"key": ["number"], "value": ["' + b"1" * 1001 + b'"]}', False, 5000, "'number'"),
        (b'{"key": ' + b"[" * 50 + b"]" * 50 + b"}", False, 5000, "json_depth"),
    ],
    ids=[
        "empty", "no fields", "text alone", "cut off", "a form", "no text", "a list", "key is a str",
        "value of a number", "more keys than values", "text over the limit", "nested too deep",
    ],
)  # fmt: skip
def test_a_bad_body_is_told_its_field_and_a_valid_body(
    service: ServiceProcess, body: bytes, always: bool, err_no: int, told: str
) -> None:
    answer = service.http("/test/prediction", body)
    expected = 413 if err_no == 5000 else 400
    assert answer.status == (expected if always else status(service, expected))
    assert answer.json["err_no"] == err_no
    assert told in answer.json["err_msg"]
    assert '{"key": ["0"], "value": ["..."]}' in answer.json["err_msg"]
    assert answer.json["key"] == answer.json["value"] == []


def test_more_values_than_keys_are_accepted(service: ServiceProcess) -> None:
    answer = service.http("/test/prediction", b'{"key": ["number"], "value": ["4", "5"]}').json
    assert answer["err_no"] == 0


def test_any_method_name_is_served(service: ServiceProcess) -> None:
    assert service.predict({"number": "1"}, method="whatever")["doubled"] == "2"


def test_an_unknown_service_is_told_the_known_one(service: ServiceProcess) -> None:
    answer = service.http("/tset/prediction", GOOD)
    assert (answer.status, answer.json["err_no"]) == (status(service, 404), 3002)
    assert "/test/prediction" in answer.json["err_msg"]


@pytest.mark.parametrize("path", ["/test", "/test/", "//prediction", "/test/prediction/more", "/%2F"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_path_is_404_in_either_mode(service: ServiceProcess, path: str, method: str) -> None:
    answer = service.http(path, GOOD if method == "POST" else None)
    assert (answer.status, answer.json["err_no"]) == (404, 3002)
    assert "/test/prediction" in answer.json["err_msg"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_another_http_method_is_405_and_told_which(service: ServiceProcess, method: str) -> None:
    answer = service.http("/test/prediction", method=method)
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert answer.json["err_no"] != 0
    assert "POST /test/prediction" in answer.json["err_msg"]


def test_posting_to_a_page_is_405(service: ServiceProcess) -> None:
    answer = service.http("/health/live", GOOD)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


def test_a_grpc_timeout_header_is_the_deadline(service: ServiceProcess) -> None:
    answer = service.http("/test/prediction", GOOD, headers={"grpc-timeout": "0m"})
    assert (answer.status, answer.json["err_no"]) == (504, 6000)


@pytest.mark.parametrize("value", ["1", "1 S", "-1S", "123456789S", "S", "1s"])
def test_a_malformed_grpc_timeout_is_refused(service: ServiceProcess, value: str) -> None:
    answer = service.http("/test/prediction", GOOD, headers={"grpc-timeout": value})
    assert (answer.status, answer.json["err_no"]) == (status(service, 400), 5000)
    assert "grpc-timeout" in answer.json["err_msg"]


@pytest.mark.parametrize("action", ["raise", "refuse", "refuse_51"])
def test_errors_of_an_op_have_their_number_and_status(service: ServiceProcess, action: str) -> None:
    answer = service.http("/test/prediction", key_value({"action": action, "argument": "so"}))
    err_no, code = {"raise": (10000, 500), "refuse": (5000, 400), "refuse_51": (51, 400)}[action]
    assert (answer.status, answer.json["err_no"]) == (status(service, code), err_no)
    assert "so" in answer.json["err_msg"]
    assert "Traceback" not in answer.json["err_msg"]


def test_health_pages_say_live_and_ready(service: ServiceProcess) -> None:
    assert service.http("/health/live").json == {"live": True}
    ready = service.http("/health/ready")
    assert (ready.status, ready.json) == (200, {"ready": True, "ops": {"echo": {"ready": 1, "instances": 1}}})


def test_head_of_a_page_has_no_body(service: ServiceProcess) -> None:
    answer = service.http("/health/live", method="HEAD")
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "13")


def test_the_root_is_alive_and_leads_a_browser_to_the_page_to_try_the_service(
    service: ServiceProcess,
) -> None:
    assert service.http("/").json == {"status": "alive"}
    assert service.http("/", method="HEAD").status == 200
    led = service.http("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (led.status, led.headers["location"], led.body) == (302, "/docs", b"")
    assert service.http(led.headers["location"]).headers["content-type"].startswith("text/html")
    assert service.http("/", GOOD).status == 404


@pytest.mark.parametrize("path", ["/test/prediction", "/v1/models/test:predict"])
@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"\xff\xd8\xff\xe0" + b"[{" * 300, "the body is a JPEG image, no JSON"),
        (b"\x89PNG\r\n\x1a\n" + b"{" * 300, "the body is a PNG image, no JSON"),
        (b"\x1f\x8b\x08" + b"[" * 300, "the body is compressed by gzip, no JSON"),
    ],
)
def test_what_is_posted_in_place_of_json_is_named(
    service: ServiceProcess, path: str, body: bytes, told: str
) -> None:
    answer = service.http(path, body)
    assert answer.status == 400 and told in answer.body.decode()


def test_metrics_count_requests_by_outcome(service: ServiceProcess) -> None:
    def counted(err_no: str) -> float:
        return service.metric("paddlewheel_requests_total", door="http", err_no=err_no)

    before = counted("ok"), counted("8000")
    service.predict({"number": "1"})
    service.http("/test/prediction", b"{}")
    assert (counted("ok"), counted("8000")) == (before[0] + 1, before[1] + 1)


def test_metrics_know_queue_batch_and_predictor_of_each_op(service: ServiceProcess) -> None:
    service.predict({"number": "1"})
    for name in ("queue_seconds_count", "batch_rows_count", "predictor_seconds_count", "ready_instances"):
        assert service.metric(f"paddlewheel_op_{name}", op="echo") >= 1
    for name in ("tokens_total", "padding_tokens_total"):
        assert f'paddlewheel_op_{name}{{op="echo"}}' in service.http("/metrics").body.decode()
    assert 10e6 < service.metric("paddlewheel_resident_bytes", process="front") < 120e6


def test_metrics_tell_the_version_that_serves_and_what_only_grows_is_a_counter(
    service: ServiceProcess,
) -> None:
    text = service.http("/metrics").body.decode()
    assert f'paddlewheel_build_info{{version="{__version__}"}} 1.0' in text
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.M))
    grows = {name for name in kinds if name.endswith("_total")}
    assert {kinds[name] for name in grows} == {"counter"} and "paddlewheel_op_restarts_total" in grows
    assert [line for line in text.splitlines() if "_created" in line] == []

"""Key/value messages, held against the recordings of the original."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from pipeline.config.config_file import Limits
from pipeline.dialects.key_value.answers import JSON
from pipeline.dialects.key_value.front import parse_proto
from pipeline.dialects.key_value.unread import Body, decode_leniently
from pipeline.errors import BadPackage, MalformedBody, TooLarge
from tests.support.key_value_messages import LIMITS, http, refusal
from tests.support.recordings import RECORDINGS, body_of

READ_BY_THE_CODEC = [
    row
    for row in RECORDINGS
    if row["request"].get("method") == "POST"
    and row["request"]["path"] == "/bert/prediction"
    and ("body_b64" in row["request"] or row["request"].get("body") is not None)
    and not {"Content-Encoding", "Grpc-Timeout", "X-HTTP-Method-Override"} & set(row["request"]["headers"])
]
NOTHING_GIVEN = {
    "empty_body",
    "empty_object",
    "null_body",
}  # reached the Op there; here they are told what to send


@pytest.mark.parametrize("row", READ_BY_THE_CODEC, ids=[row["case"] for row in READ_BY_THE_CODEC])
def test_what_the_gateway_accepted_is_accepted_and_what_it_refused_is_refused(row: dict[str, Any]) -> None:
    answer = json.loads(row["response"]["body"]) if row["response"]["status"] == 200 else {"err_no": None}
    if row["response"]["status"] == 400:
        error = refusal(body_of(row))
        assert (type(error), error.http_status, error.always_status) == (MalformedBody, 400, True)
    elif answer["err_no"] == 8000 or row["case"] in NOTHING_GIVEN:
        error = refusal(body_of(row))
        assert (type(error), error.err_no, error.always_status) == (BadPackage, 8000, False)
        assert (
            error.message.startswith(answer["err_msg"].split(" in tensor")[0]) or row["case"] in NOTHING_GIVEN
        )
    else:
        assert row["response"]["status"] == 200
        assert http(body_of(row)).service == "bert"


def test_a_request_is_read_in_full() -> None:
    request = http(
        '{"key":["0","pipeline.profile"],"value":["体育","1"],"logid":"7","clientip":"1.2.3.4","name":"x"}'
    )
    assert (request.service, request.method) == ("bert", "prediction")
    assert request.inputs == {"0": "体育", "pipeline.profile": "1"}
    assert (request.log_id, request.client_ip) == (7, "1.2.3.4")
    assert (request.form, request.deadline) == (JSON, math.inf)


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ('{"key":["0"],"value":["a","b"]}', {"0": "a"}),
        ('{"key":["0","0"],"value":["a","b"]}', {"0": "b"}),
        ('{"key":["0"],"value":[null]}', {"0": ""}),
        ('{"key":[],"value":[]}', {}),
        ('{"value":["a"]}', {}),
        ('{"key":["0"],"value":["a"],"foo":{"bar":[1e999]}}', {"0": "a"}),
        ('{"key":["0"],"value":["a"]} {"key":', {"0": "a"}),
        ('{"key":["x"],"key":["0"],"value":["a"]}', {"0": "a"}),
        ('{"key":["0"],"value":["\\ud800\\ud83d\\ude00"]}', {"0": "\ufffd😀"}),
        (b'{"key":["0"],"value":["\xe4\xb8\xff"]}', {"0": "\ufffd\ufffd\ufffd"}),
    ],
    ids=["more-values", "key-twice", "null", "empty-lists", "no-key", "unknown", "trailing", "field-twice",
         "lone-surrogate", "bytes-no-utf8"],
)  # fmt: skip
def test_leniency_keeps_the_meaning(body: bytes | str, inputs: dict[str, str]) -> None:
    assert http(body).inputs == inputs


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('{"text": "体育"}', "the body has neither 'key', 'value' nor 'tensors'"),
        ("", "the body has neither 'key', 'value' nor 'tensors'"),
        ('{"key":["0","1"],"value":["a"]}', "'key' has 2 elements and 'value' 1"),
        ('{"key":["0"],"value":["x"', "no valid JSON: Expecting ',' delimiter at line 1, column 26"),
        ('{"key":\n["0"] x}', "no valid JSON: Expecting ',' delimiter at line 2, column 7"),
        (
            '{"key":["0"],"value":["a\nb"]}',
            "no valid JSON: Invalid control character at at line 1, column 25",
        ),
        ('{"key":["0"],"value":[NaN]}', "no valid JSON: NaN is no JSON"),
        ("\ufeff{}", "starts with a byte order mark"),
        ("[1]", "the body is a list"),
        ('{"key":"0"}', "'key': Expected `array | null`, got `str`"),
        ('{"key":["0"],"value":[{"a":1}]}', "'value[0]': Expected `str | null`, got `object`"),
        ('{"key":["0"],"value":["a"],"logid":1.5}', "'logid': Expected `int | str | null`, got `float`"),
        ('{"key":["0"],"value":["a"],"logid":"abc"}', "'logid': 'abc' is no integer"),
        (
            '{"key":["0"],"value":["a"],"logid":9223372036854775808}',
            "'logid': 9223372036854775808 is outside",
        ),
        ('{"key":["0"],"value":["a"],"logid":' + "9" * 10_000 + "}", "'logid': "),
    ],
)
def test_a_refusal_names_the_field_and_shows_a_valid_body(body: str, told: str) -> None:
    assert told in refusal(body).message


@pytest.mark.parametrize("levels", [33, 200_000])
def test_nesting_beyond_the_limit_is_refused(levels: int) -> None:
    nested = "[" * (levels - 1) + "]" * (levels - 1)
    error = refusal('{"key":["0"],"value":["a"],"foo":' + nested + "}")
    assert isinstance(error, TooLarge)
    assert f"nests {levels} levels deep; limits.json_depth is 32" in error.message


def test_brackets_in_texts_are_no_nesting() -> None:
    text = '[{"\\' * 1000
    assert http(json.dumps({"key": ["0"], "value": [text]})).inputs == {"0": text}
    assert http('{"foo":' + "[" * 31 + "]" * 31 + ',"key":["0"],"value":["a"]}').inputs == {"0": "a"}


def test_a_text_over_the_limit_is_refused_by_its_key() -> None:
    limits = Limits(text_chars=5)
    assert http('{"key":["0"],"value":["五个字符呀"]}', limits).inputs == {"0": "五个字符呀"}
    error = refusal('{"key":["0"],"value":["六个字符了呀"]}', limits)
    assert (type(error), error.err_no, error.http_status) == (TooLarge, 5000, 413)
    assert "the value of key '0' has 6 characters; limits.text_chars is 5" in error.message


@pytest.mark.parametrize(
    "body",
    [
        '{"key":["0",null],"value":["体育","\\u4f53\\n"],"logid":"-7","clientip":null,"name":"a","foo":[{}]}',
        '{"tensors":[{"name":"x","elemType":"1","floatData":[1,"NaN",2.5e3],"shape":[3],"lod":[0,3]}]}',
        '{"tensors":[null,{"str_data":["a",null],"elem_type":12,"int64_data":["1",2]}]}',
    ],
)
def test_the_fast_and_the_exact_reading_agree(body: str) -> None:
    assert msgspec.json.decode(body, type=Body) == decode_leniently(body.encode(), Body)


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(MalformedBody, match="the 3 bytes are no Request of baidu"):
        parse_proto(b"\xff\xff\xff", LIMITS)


def test_a_message_without_content_is_told_what_to_send() -> None:
    with pytest.raises(BadPackage, match="neither key, value nor tensors"):
        parse_proto(b"", LIMITS)

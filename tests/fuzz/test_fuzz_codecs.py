"""Hostile bytes for every codec, the worker and its batch plan: read, or refused with an error that tells."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from client.protos.kserve_v2_pb2 import ModelInferRequest
from client.protos.pipeline_service_pb2 import Request
from pipeline.messages.frames import decode, encode
from pipeline.wire.paddle_tensors import from_npy, to_npy
from tests.fuzz.codecs import CODECS, LIMITS, Codec
from tests.fuzz.messages import kept
from tests.fuzz.trial import described, try_inputs

BY_NAME = {codec.name: codec for codec in CODECS}
quick = settings(
    max_examples=60, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)


def unseen(number: int, data: bytes) -> None:
    """Nobody has to know which input is under way."""


def read(codec: str, data: bytes) -> bool:
    """Whether the codec took it; raises what it may not raise."""
    try:
        BY_NAME[codec].read(data)
    except BY_NAME[codec].refusals:
        return False
    return True


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_mutated_messages_are_read_or_refused(codec: Codec) -> None:
    known = len(kept(codec.name)) + len(codec.seeds())
    result = try_inputs(codec, known + 400, seed=7, begin=unseen)
    assert not result.crashes, described(result)
    assert result.answered and (result.refused or codec.name in ("v2-raw", "batch-plan"))


def test_a_codec_that_raises_anything_else_is_a_crash() -> None:
    def broken(data: bytes) -> None:
        raise KeyError("unknown")

    result = try_inputs(Codec("broken", lambda: [b"abc"], broken, (ValueError,)), 5, 1, unseen)
    assert list(result.crashes.values()) == [b"abc"]
    assert not result.kept_its_promise


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
tensor_fields = {
    "name": st.text(max_size=4), "elem_type": st.integers(-1, 14),
    "shape": st.lists(st.integers(-2, 5), max_size=4),
    "lod": st.lists(st.integers(-1, 4), max_size=4), "int64_data": st.lists(st.integers(), max_size=6),
    "float_data": st.lists(st.floats() | st.text(max_size=4), max_size=6),
    "bool_data": st.lists(st.booleans(), max_size=6),
    "str_data": st.lists(st.text(max_size=4), max_size=6), "byte_data": st.text("AZaz09+/=\n", max_size=12),
}  # fmt: skip
bodies = st.fixed_dictionaries(
    {},
    optional={
        "key": st.lists(st.text(max_size=4), max_size=3) | json_values,
        "value": st.lists(st.text(max_size=4), max_size=3) | json_values,
        "tensors": st.lists(st.fixed_dictionaries({}, optional=tensor_fields) | json_values, max_size=3),
        "logid": json_values,
    },
)


@quick
@given(bodies)
def test_any_json_document_is_read_or_refused_as_key_value(body: Any) -> None:
    data = json.dumps(body).encode()
    assert read("key-value-json", data) in (True, False)
    assert read("key-value-message", data) in (True, False)


v2_inputs = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["INPUT0", "INPUT1", "a", ""]),
        "shape": st.lists(st.integers(-2, 20) | st.integers(), max_size=10),
        "datatype": st.sampled_from(["INT32", "BYTES", "FP16", "BOOL", "UINT64", "FP64", "no"]),
    },
    optional={"data": json_values | st.lists(st.integers(-3, 3), max_size=20), "parameters": json_values},
)
v2_documents = st.fixed_dictionaries(
    {"inputs": st.lists(v2_inputs, max_size=3) | json_values},
    optional={"id": json_values, "outputs": json_values, "parameters": json_values},
)


@quick
@given(v2_documents, st.integers(-1, 400), st.binary(max_size=40))
def test_any_document_and_tail_is_read_or_refused_as_v2(document: Any, length: int, tail: bytes) -> None:
    data = b"%d\n" % length + json.dumps(document).encode() + tail
    assert read("v2-json", data) in (True, False)


@quick
@given(
    st.lists(st.text(max_size=4), max_size=4),
    st.lists(st.integers(-5, 99), max_size=9),
    st.binary(max_size=30),
)
def test_any_message_is_read_or_refused_as_protobuf(names: list[str], shape: list[int], data: bytes) -> None:
    message = Request(key=names, value=names[1:])
    message.tensors.add(name="t", elem_type=13, shape=shape, byte_data=data, str_data=names)
    assert read("pipeline-proto", message.SerializeToString()) in (True, False)
    asked = ModelInferRequest(model_name="identity", id="".join(names)[:4])
    asked.inputs.add(name="t", datatype="BYTES", shape=shape)
    asked.raw_input_contents.append(data)
    assert read("v2-proto", asked.SerializeToString()) in (True, False)


scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
plain = st.recursive(
    scalars | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)


@quick
@given(plain)
def test_any_plain_value_comes_back_as_it_was(value: Any) -> None:
    assert decode(encode(value, allow_pickle=False), allow_pickle=False) == value


@quick
@given(st.sampled_from(["<f4", "<i8", ">u2", "|b1", "<U3", "|S5"]), st.lists(st.integers(0, 4), max_size=4))
def test_any_array_comes_back_from_npy(dtype: str, shape: list[int]) -> None:
    array = np.ones(shape, dtype)
    back = from_npy(to_npy(array), "x", LIMITS)
    assert back.shape == array.shape
    assert np.array_equal(back, array)


def test_a_pickle_is_no_value_from_outside() -> None:
    assert not read("value", pickle.dumps({"a": 1}))

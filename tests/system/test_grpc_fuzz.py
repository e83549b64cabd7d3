"""Generated messages for every method of the gRPC services, made from their descriptors by Hypothesis.

Schemathesis knows no gRPC. A field holds a value of its type: names that exist and others, numbers at the
borders of their types, tensors that fit and tensors that do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from client.protos import kserve_v2_pb2, pipeline_service_pb2
from tests.support.service_process import ServiceProcess
from tests.system.test_openapi_fuzz import default_service

EXAMPLES = 60  # of each method
INFERENCES = ("ModelInfer", "ModelStreamInfer")
DEPTH, ITEMS = 4, 3
DEADLINE_S = 20.0
# Triton answers INTERNAL to what it can't parse or find, and its clients know these words (docs/errors.md).
TRITON_WORDS = ("Unable to", "failed to load", "failed to parse")
SERVER_FAULTS = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS, grpc.StatusCode.DEADLINE_EXCEEDED)
FEEDS = ("input_ids", "token_type_ids", "attention_mask")
OTHER_WORDS = (
    "",
    "bert",
    "bert_model",
    "1",
    "0",
    "text",
    "label",
    "logits",
    "priority",
    "timeout",
    "sequence_id",
)
WORDS = st.sampled_from((*OTHER_WORDS, *FEEDS, "INT64", "INT32", "BYTES", "FP32"))
STRINGS = WORDS | st.text(max_size=12)
INTEGERS = st.sampled_from([0, 1, 2, 3, 15]) | st.integers(-1, 600)
FLOATS = st.floats(width=32)
BYTES = st.sampled_from([b"", b"\1\0\0\0x", bytes(8), b"\1" + bytes(7)]) | st.binary(max_size=40)

METHODS = [
    method
    for module, service in (
        (kserve_v2_pb2, "GRPCInferenceService"),
        (pipeline_service_pb2, "PipelineService"),
    )
    for method in module.DESCRIPTOR.services_by_name[service].methods
]


def elements(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    """Return a strategy for one element of a field."""
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_MESSAGE:
        return messages(field.message_type, depth + 1)
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return BYTES if field.type == FieldDescriptor.TYPE_BYTES else STRINGS
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values])
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return FLOATS
    bits = 32 if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 64
    if kind in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64):
        return INTEGERS.map(abs) | st.just(2**bits - 1)
    return INTEGERS | st.sampled_from([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1])


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor, depth: int = 0) -> Any:
    """Draw a message of this type, with some of its fields."""
    message = GetMessageClass(descriptor)()
    if depth >= DEPTH:
        return message
    for field in descriptor.fields:
        if not draw(st.booleans()):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            for name in draw(st.lists(elements(key, depth), max_size=ITEMS)):
                drawn = draw(elements(value, depth))
                mapping = getattr(message, field.name)
                if value.message_type is None:
                    mapping[name] = drawn
                else:
                    mapping[name].CopyFrom(drawn)
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(elements(field, depth), max_size=ITEMS)))
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(draw(elements(field, depth)))
        else:
            setattr(message, field.name, draw(elements(field, depth)))
    return message


@st.composite
def almost_valid_requests(draw: st.DrawFn) -> Any:
    """Draw a request for the model of the Op with raw contents, some of another size."""
    message = kserve_v2_pb2.ModelInferRequest(model_name="bert_model")
    shape = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    for name in FEEDS:
        sizes = draw(st.just(shape) | st.lists(st.integers(0, 3), max_size=3))
        message.inputs.add(name=name, shape=sizes, datatype="INT64")
        message.raw_input_contents.append(bytes(8 * math.prod(sizes)))
    return message


def requests(method: MethodDescriptor) -> st.SearchStrategy[Any]:
    """Return a strategy for the messages of a method."""
    generated = messages(method.input_type)
    return generated | almost_valid_requests() if method.name in INFERENCES else generated


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder: Path = tmp_path_factory.mktemp("service")
    with default_service(folder) as running:
        yield running
        assert running.process.poll() is None
        assert " ERROR " not in running.log


@pytest.fixture(scope="module")
def channel(service: ServiceProcess) -> Iterator[grpc.Channel]:
    with service.channel() as opened:
        yield opened


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_no_message_makes_the_server_fail(method: MethodDescriptor, channel: grpc.Channel) -> None:
    path = f"/{method.containing_service.full_name}/{method.name}"
    call = (channel.stream_stream if method.client_streaming else channel.unary_unary)(path)

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(requests(method))
    def send(message: Any) -> None:
        data = message.SerializeToString()
        try:
            if method.client_streaming:
                answers = list(call(iter([data, data]), timeout=DEADLINE_S))
                assert len(answers) == 2
            else:
                call(data, timeout=DEADLINE_S)
        except grpc.RpcError as exc:
            error: Any = exc
            words = error.details() or ""
            assert error.code() not in SERVER_FAULTS, (error.code(), words, message)
            if error.code() is grpc.StatusCode.INTERNAL:
                assert any(word in words for word in TRITON_WORDS), (words, message)

    send()


def test_a_good_request_is_answered_after_them(service: ServiceProcess) -> None:
    service.http("/v2/repository/models/bert/load", b"")  # a message may have unloaded it
    outputs = service.rpc({"0": "国足客场两球取胜"})
    assert outputs.err_no == 0
    assert list(outputs.key) == ["label", "label_id", "confidence"]

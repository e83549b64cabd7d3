"""Our copy of the PipelineService messages: their fields, and their life beside another copy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from client.protos import pipeline_service_pb2 as messages

ROOT = Path(__file__).resolve().parent.parent

REQUEST = {"key": 1, "value": 2, "tensors": 3, "name": 4, "method": 5, "logid": 6, "clientip": 7}
RESPONSE = {"err_no": 1, "err_msg": 2, "key": 3, "value": 4, "tensors": 5}
TENSOR = {
    "int64_data": 1,
    "float_data": 2,
    "int_data": 3,
    "float64_data": 4,
    "uint32_data": 5,
    "bool_data": 6,
    "complex64_data": 7,
    "complex128_data": 8,
    "str_data": 9,
    "byte_data": 10,
    "elem_type": 20,
    "shape": 21,
    "lod": 22,
    "name": 23,
}

SECOND_COPY = """
import sys
from google.protobuf import descriptor_pool, message_factory

def import_ours():
    from client.protos import pipeline_service_pb2
    return pipeline_service_pb2.Request

def register_theirs():
    file = descriptor_pool.Default().AddSerializedFile(bytes.fromhex(sys.argv[1]))
    return message_factory.GetMessageClass(file.message_types_by_name["Request"])

first, second = {order}
first, second = first(), second()
assert first is not second
assert second.FromString(first(key=["0"], value=["text"]).SerializeToString()).value == ["text"]
print(first.DESCRIPTOR.full_name)
"""


@pytest.mark.parametrize(
    ("message", "fields"),
    [(messages.Request, REQUEST), (messages.Response, RESPONSE), (messages.Tensor, TENSOR)],
    ids=["request", "response", "tensor"],
)
def test_fields_have_the_numbers_of_paddle_serving(message: type, fields: dict[str, int]) -> None:
    assert {field.name: field.number for field in message.DESCRIPTOR.fields} == fields  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "order",
    ["import_ours, register_theirs", "register_theirs, import_ours"],
    ids=["ours-first", "theirs-first"],
)
def test_another_copy_of_the_messages_lives_in_the_same_process(order: str) -> None:
    file = descriptor_pb2.FileDescriptorProto.FromString(messages.DESCRIPTOR.serialized_pb)
    file.name = "paddle_serving_server/pipeline/proto/pipeline_service.proto"
    result = subprocess.run(
        [sys.executable, "-c", SECOND_COPY.format(order=order), file.SerializeToString().hex()],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "baidu.paddle_serving.pipeline_serving.Request"

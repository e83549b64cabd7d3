"""Our copies of the services' messages: their fields, and their life beside another copy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2

from client.protos import kserve_v2_pb2 as v2_messages
from client.protos import pipeline_service_pb2 as messages

ROOT = Path(__file__).resolve().parents[2]

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

_TYPES = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}

SECOND_COPY = """
import importlib, sys
from google.protobuf import descriptor_pool, message_factory

module, message, theirs = sys.argv[1:]

def import_ours():
    return getattr(importlib.import_module("client.protos." + module), message)

def register_theirs():
    file = descriptor_pool.Default().AddSerializedFile(bytes.fromhex(theirs))
    return message_factory.GetMessageClass(file.message_types_by_name[message])

first, second = {order}
first, second = first(), second()
assert first is not second
given = {{"Request": {{"value": ["text"]}}, "ModelInferRequest": {{"model_name": "text"}}}}[message]
assert second.FromString(first(**given).SerializeToString()) == second(**given)
print(first.DESCRIPTOR.full_name)
"""


@pytest.mark.parametrize(
    ("message", "fields"),
    [(messages.Request, REQUEST), (messages.Response, RESPONSE), (messages.Tensor, TENSOR)],
    ids=["request", "response", "tensor"],
)
def test_fields_have_the_numbers_of_paddle_serving(message: type, fields: dict[str, int]) -> None:
    assert {field.name: field.number for field in message.DESCRIPTOR.fields} == fields  # type: ignore[attr-defined]


def test_the_fields_of_kserve_v2_are_those_of_triton_s_own_client() -> None:
    ours = _fields(v2_messages.DESCRIPTOR.message_types_by_name.values())
    theirs = {}
    for module in (service_pb2, model_config_pb2):
        theirs.update(_fields(module.DESCRIPTOR.message_types_by_name.values()))
    assert ours == theirs
    assert ours["inference.ModelInferRequest"]["raw_input_contents"] == (7, "bytes")


def _fields(messages: Iterable[Any]) -> dict[str, dict[str, tuple[int, str]]]:
    """By message, nested ones included: number and type of each field."""
    found = {}
    for message in messages:
        found.update(_fields(message.nested_types))
        found[message.full_name] = {
            field.name: (
                field.number,
                field.message_type.full_name if field.message_type else _TYPES[field.type],
            )
            for field in message.fields
        }
    return found


@pytest.mark.parametrize(
    "order",
    ["import_ours, register_theirs", "register_theirs, import_ours"],
    ids=["ours-first", "theirs-first"],
)
@pytest.mark.parametrize(
    ("module", "message", "their_file"),
    [
        (messages, "Request", "paddle_serving_server/pipeline/proto/pipeline_service.proto"),
        (v2_messages, "ModelInferRequest", "grpc_service.proto"),
    ],
    ids=["pipeline", "kserve-v2"],
)
def test_another_copy_of_the_messages_lives_in_the_same_process(
    module: ModuleType, message: str, their_file: str, order: str
) -> None:
    file = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    file.name = their_file
    ours = module.__name__.rpartition(".")[2]
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            SECOND_COPY.format(order=order),
            ours,
            message,
            file.SerializeToString().hex(),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == f"{file.package}.{message}"

"""GeneralModelConfig, the protobuf message of a model's `serving_server_conf.prototxt`, for apps.

Our own code reads the file with `pipeline.models.signature`, without protobuf. The messages live in a pool of
their own, so that another copy of them in the process does no harm.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "baidu.paddle_serving.configure"
_FIELD = descriptor_pb2.FieldDescriptorProto


def _variable(kind: str) -> descriptor_pb2.DescriptorProto:
    fields = [
        ("name", 1, _FIELD.TYPE_STRING),
        ("alias_name", 2, _FIELD.TYPE_STRING),
        ("is_lod_tensor", 3, _FIELD.TYPE_BOOL),
        (f"{kind}_type", 4, _FIELD.TYPE_INT32),
        ("shape", 5, _FIELD.TYPE_INT32),
    ]
    message = descriptor_pb2.DescriptorProto(name=f"{kind.title()}Var")
    for name, number, type_ in fields:
        label = _FIELD.LABEL_REPEATED if name == "shape" else _FIELD.LABEL_OPTIONAL
        field = message.field.add(name=name, number=number, type=type_, label=label)
        if name == "is_lod_tensor":
            field.default_value = "false"
        elif name.endswith("_type"):
            field.default_value = "0"
    return message


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="general_model_config.proto", package=PACKAGE)
    file.message_type.extend([_variable("feed"), _variable("fetch")])
    config = file.message_type.add(name="GeneralModelConfig")
    for number, kind in enumerate(("feed", "fetch"), start=1):
        config.field.add(
            name=f"{kind}_var",
            number=number,
            type=_FIELD.TYPE_MESSAGE,
            type_name=f".{PACKAGE}.{kind.title()}Var",
            label=_FIELD.LABEL_REPEATED,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{message.name}"))
        for message in file.message_type
    }


_made = _messages()
FeedVar: Any = _made["FeedVar"]
FetchVar: Any = _made["FetchVar"]
GeneralModelConfig: Any = _made["GeneralModelConfig"]

"""config.pbtxt: a model's configuration in Google's text format, read into Triton's ModelConfig message."""

from __future__ import annotations

import difflib
from pathlib import Path

from google.protobuf import text_format

from client.protos.kserve_v2_pb2 import ModelConfig
from pipeline.errors import ConfigError

FILE = "config.pbtxt"
MAX_FILE_BYTES = 1 << 20
_PLATFORMS = {  # the older key, and the backend that it means
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorrt_plan": "tensorrt",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
}
_BY_FILES = ("fastdeploy",)  # a backend of several engines: the model's file tells which


def read_config(folder: Path) -> ModelConfig:
    """The configuration in a model's folder; an empty one where there is no file. Raises ConfigError."""
    path = folder / FILE
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return ModelConfig()
    except OSError as exc:
        raise ConfigError(f"{path} can't be read: {exc.strerror}") from exc
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} is over {MAX_FILE_BYTES} bytes; a configuration is some KB")
    try:
        text = content.decode("utf-8-sig")  # editors of Windows write a mark before it
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        raise ConfigError(
            f"{path}, line {line}: byte 0x{content[exc.start]:02x} is no UTF-8; save the file as UTF-8"
        ) from None
    return parse_config(text, str(path))


def parse_config(text: str, source: str) -> ModelConfig:
    """A configuration in text format. source: for messages. Raises ConfigError that names the line."""
    config = ModelConfig()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as exc:
        raise ConfigError(f"{source}, line {exc.GetLine()}: {_describe_parse_error(exc)}") from None
    except RecursionError:
        raise ConfigError(f"{source}: messages are nested too deeply") from None
    return config


def get_backend(config: ModelConfig) -> str:
    """The backend that runs the model, whichever key names it; "ensemble" for one; empty where none does, or
    the one that is named leaves it to the files."""
    if config.platform == "ensemble" or config.WhichOneof("scheduling_choice") == "ensemble_scheduling":
        return "ensemble"
    named = config.backend or _PLATFORMS.get(config.platform, config.platform)
    return "" if named in _BY_FILES else named


def _describe_parse_error(exc: text_format.ParseError) -> str:
    """What protobuf says of the mistake, without the place, and the field that was probably meant."""
    _, _, words = str(exc).partition(" : ")
    words = words.replace('Message type "inference.', 'message "')
    kind, _, field = words.partition(" has no field named ")
    if field:
        message, name = kind.rpartition('"inference.')[2].split('"')[1], field.strip('".')
        near = difflib.get_close_matches(name, _list_fields(message), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"unknown field {name!r} in {message}{hint}"
    return words


def _list_fields(message: str) -> list[str]:
    kind = ModelConfig.DESCRIPTOR.file.pool.FindMessageTypeByName(f"inference.{message}")
    return list(kind.fields_by_name)

"""Every codec as fuzzing sees it: bytes to begin with, a function of bytes, and what it may raise.

The worker and its batch plan are two more: the bytes say what a dispatch holds (tests/fuzz/worker.py).
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgpack

from client.protos.model_files_pb2 import GeneralModelConfig
from pipeline.api.app import ServedModel
from pipeline.config.config_file import Limits, LoggingConfig
from pipeline.config.trace_section import TraceConfig
from pipeline.dialects.key_value import front as key_value
from pipeline.dialects.kserve import json_fields
from pipeline.dialects.kserve.models import KServeModel
from pipeline.dialects.kserve.refusals import KServeRefusal
from pipeline.dialects.kserve.unread import UnreadTensor
from pipeline.dialects.kserve_v1 import instances
from pipeline.dialects.kserve_v1.unread_rows import UnreadRows
from pipeline.dialects.kserve_v2 import infer_request, rpc_methods
from pipeline.dialects.kserve_v2.answers import JSON, PROTO
from pipeline.dialects.kserve_v2.http_routes import decompress, parse_generate, parse_registration
from pipeline.dialects.openai import http_route
from pipeline.dialects.tei.http_routes import ROUTES
from pipeline.dialects.text_models import TextModel, decode_body
from pipeline.dialects.text_values import UnreadTexts
from pipeline.dialects.triton_extensions.repository_api import parse_ready_only
from pipeline.dialects.triton_extensions.server import LogSettings, parse_log_settings
from pipeline.dialects.triton_extensions.shared_memory import SharedMemory, Span
from pipeline.dialects.triton_extensions.trace_settings import TraceSettings, parse_trace_settings
from pipeline.errors import BadPackage, ConfigError, InvalidInput, ServingError, TooLarge
from pipeline.front.dag_run import Request
from pipeline.front.tracing.traces import Traces
from pipeline.messages.frames import FrameReader, decode, encode, frame, stow, will_read
from pipeline.messages.messages import CallMessage, DispatchMessage
from pipeline.models.protobuf_text import format_message, parse_message
from pipeline.models.tensor_spec import BY_DATATYPE, Signature, TensorSpec
from pipeline.triton.ensemble import build_model_dag
from pipeline.wire.paddle_tensors import from_npy
from pipeline.wire.v2_tensors import from_raw
from tests.fuzz import messages, seeds, worker
from tests.fuzz.connection import feed

LIMITS = Limits(
    body_bytes=1 << 20, text_chars=1 << 16, header_count=16, header_bytes=4096, json_depth=16, tensor_rank=8
)
_ENGINE: Any = SimpleNamespace(
    app=SimpleNamespace(config=SimpleNamespace(limits=LIMITS)), is_cached=lambda model: False
)
_SIMPLE = KServeModel(
    "simple", "", Signature(tuple(TensorSpec(n, "INT32", (-1, 16)) for n in ("INPUT0", "INPUT1")), (), 8)
)
_IMAGES = KServeModel(
    "images", "", Signature((TensorSpec("image", "UINT8", (-1, 2, 2)), TensorSpec("text", "BYTES", (-1, 1))))
)
_OPEN = KServeModel("identity", "", Signature())
_OF_MESSAGES = replace(_OPEN, takes_messages=True)
_TEXTS = build_model_dag("texts")
_TEXT_MODELS = (  # of a script, of pairs, and of a repository
    TextModel(ServedModel("texts", _TEXTS), "text", ""),
    TextModel(ServedModel("texts", _TEXTS), "text", "other"),
    TextModel(ServedModel("texts", _TEXTS, config={}), "text", ""),
)
will_read([UnreadTensor, UnreadRows, UnreadTexts])


class Codec(NamedTuple):
    """read: returns for what it takes. refusals: what it may raise; anything else is a crash."""

    name: str
    seeds: Callable[[], Sequence[bytes]]
    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    words: Sequence[bytes] = ()


def _passed_on(request: Request) -> None:
    """What the front does with a request that it has read, and then the worker."""
    _there_and_back(request.inputs)
    int(request.log_id).to_bytes(8, "little", signed=True)


def _there_and_back(inputs: dict[str, Any]) -> None:
    parts = encode(inputs, allow_pickle=False)
    tail: list[Any] = []
    call = CallMessage(0, 0, 0, "", None, "", None, 0.0, [("@", stow(parts, tail))])
    (got,) = FrameReader(None).feed(b"".join(map(bytes, frame(DispatchMessage(0, [call]), tail))))
    assert isinstance(got.message, DispatchMessage)
    decode(
        got.tail.unstow(got.message.calls[0].inputs[0][1]), allow_pickle=True
    )  # as the first Op's worker has it


def _v2_json(data: bytes) -> None:
    header, _, body = data.partition(b"\n")
    try:
        length = int(header[:20])
    except ValueError:
        length = -1
    given = min(length, len(body)) if length >= 0 else None
    for model in (_SIMPLE, _OPEN, _OF_MESSAGES):
        asked = infer_request.parse_infer(body, given, model, LIMITS, _find)
        _deadline(asked.timeout_s)
        try:
            request = asked.build_request(model, JSON, _ENGINE)
        except KServeRefusal:
            continue
        _passed_on(request)


@functools.cache
def _memory() -> SharedMemory:
    """The regions that the recordings name, in a file without a name."""
    memory = SharedMemory("always")
    for region in ("r_in", "r_out"):
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
            file.write(bytes(128))
            file.flush()
            memory.register(region, Path(file.name).name, 0, 128)
    return memory


def _find(name: str, offset: int, size: int) -> Span:
    return _memory().span("", name, offset, size)


def _v2_settings(data: bytes) -> None:
    document = json_fields.parse_json(data)
    for take in (_set_traces, _set_logs, _register):
        with contextlib.suppress(KServeRefusal):
            take(document)


def _set_traces(document: Any) -> None:
    TraceSettings(Traces(TraceConfig())).update(parse_trace_settings(document))


def _set_logs(document: Any) -> None:
    settings = LogSettings(LoggingConfig(), None)
    settings.update(parse_log_settings(document, settings.kinds()))


def _register(document: Any) -> None:
    memory = SharedMemory("always")
    memory.register("a", *parse_registration(document))
    memory.unregister()


def _v2_raw(data: bytes) -> None:
    specs = (("BYTES", (1,)), ("INT32", (-1, 16)), ("FP64", (0, -1)))
    models = [KServeModel("raw", "", Signature((TensorSpec("A", *spec),), (), 0)) for spec in specs]
    _by_any(
        lambda model: _passed_on(infer_request.parse_raw(data, model).build_request(model, JSON, _ENGINE)),
        models,
    )


def _by_any(read: Callable[[Any], None], ways: Iterable[Any]) -> None:
    """Every way is gone; raises a refusal where none has taken it."""
    refusal: InvalidInput | None = None
    taken = False
    for way in ways:
        try:
            read(way)
            taken = True
        except InvalidInput as exc:
            refusal = exc
    if refusal is not None and not taken:
        raise refusal


def _v2_proto(data: bytes) -> None:
    message = rpc_methods.parse_message(data, LIMITS)
    for model in (_SIMPLE, _OPEN, _OF_MESSAGES):
        try:
            asked = rpc_methods.parse_infer(message, model, _find)
            _deadline(asked.timeout_s)
            _passed_on(asked.build_request(model, PROTO, _ENGINE))
        except KServeRefusal:
            continue


def _deadline(timeout_s: float) -> None:
    assert timeout_s > 0


def _v1(data: bytes) -> None:
    def read(model: KServeModel) -> None:
        given = instances.parse_instances(data, model.signature, LIMITS)
        for name, value in given.parameters.items():
            json_fields.check_parameter(name, value)
        _passed_on(Request(model.name, "predict", dict(given.fields)))

    _by_any(read, (_SIMPLE, _OPEN, _IMAGES))


def _generate(data: bytes) -> None:
    def read(model: KServeModel) -> None:
        asked = parse_generate(data, model, LIMITS)
        _deadline(asked.timeout_s)
        _passed_on(asked.build_request(model, JSON, _ENGINE))

    _by_any(read, (_SIMPLE, _OPEN, _OF_MESSAGES))


def _openai(data: bytes) -> None:
    given = http_route.parse(data, LIMITS)
    for model in _TEXT_MODELS:
        _passed_on(Request("texts", "predict", {"text": model.texts(given.input, "input", LIMITS)}))


def _tei(data: bytes) -> None:
    def read(way: tuple[str, TextModel]) -> None:
        path, model = way
        route = ROUTES[path]
        asked = route.parse(decode_body(data, route.body, LIMITS), model, LIMITS)
        _passed_on(Request("texts", "predict", asked.inputs))

    _by_any(read, [(path, model) for path in ROUTES for model in _TEXT_MODELS])


def _bytes_tensor(data: bytes) -> None:
    """shape and datatype lie in the first bytes."""
    rank = data[0] % 4 if data else 0
    shape = [length - 256 * (length > 250) for length in data[1 : 1 + rank]]
    datatype = list(BY_DATATYPE)[data[4] % len(BY_DATATYPE)] if len(data) > 4 else "BYTES"
    from_raw(data[5:], datatype, shape)


def _npy(data: bytes) -> None:
    array = from_npy(data, "x", LIMITS)
    assert array.dtype.kind not in "OV"
    _there_and_back({"x": array})


def _prototxt(data: bytes) -> None:
    message = parse_message(data.decode("utf-8", "replace"), GeneralModelConfig, "fuzz")
    assert parse_message(format_message(message), GeneralModelConfig, "again") == message


def _value(data: bytes) -> None:
    decode([data, b"\0" * 64], allow_pickle=False)


def _wire(data: bytes) -> None:
    reader = FrameReader(None)
    middle = len(data) // 2
    for piece in (data[:middle], data[middle:]):
        for each in reader.feed(piece):
            each.tail.unstow([7, b"x"])


def _compressed(data: bytes) -> None:
    decompress(data[1:], ("gzip", "deflate")[data[0] % 2] if data else "gzip", 1 << 16)


_REFUSED = (InvalidInput,)  # BadPackage, MalformedBody, TooLarge and KServeRefusal
CODECS = [
    Codec(
        "key-value-json", messages.key_value_bodies,
        lambda data: _passed_on(key_value.parse_http(data, "test", "prediction", LIMITS)), _REFUSED,
        seeds.JSON_WORDS,
    ),
    Codec(
        "key-value-message", messages.key_value_bodies,
        lambda data: _passed_on(key_value.pass_http_on(data, "test", "prediction", LIMITS)), _REFUSED,
        seeds.JSON_WORDS,
    ),
    Codec(
        "pipeline-proto", messages.pipeline_messages,
        lambda data: _passed_on(key_value.parse_proto(data, LIMITS)), _REFUSED,
    ),
    Codec(
        "pipeline-message", messages.pipeline_messages,
        lambda data: _passed_on(key_value.pass_proto_on(data, LIMITS)), _REFUSED,
    ),
    Codec("v2-json", messages.v2_bodies, _v2_json, _REFUSED, seeds.JSON_WORDS),
    Codec("v2-raw", messages.v2_bodies, _v2_raw, _REFUSED),
    Codec("v2-proto", messages.v2_messages, _v2_proto, _REFUSED),
    Codec("v2-settings", messages.v2_settings, _v2_settings, _REFUSED, seeds.JSON_WORDS),
    Codec(
        "v2-repository", lambda: [b"", b'{"ready": true}', b"[]"], parse_ready_only, _REFUSED,
        seeds.JSON_WORDS,
    ),
    Codec("v1", seeds.v1, _v1, _REFUSED, seeds.V1_WORDS),
    Codec("v2-generate", seeds.generate, _generate, _REFUSED, seeds.JSON_WORDS),
    Codec("openai", seeds.openai, _openai, _REFUSED, seeds.JSON_WORDS),
    Codec("tei", seeds.tei, _tei, _REFUSED, seeds.JSON_WORDS),
    Codec("bytes-tensor", seeds.bytes_tensor, _bytes_tensor, (ValueError,)),
    Codec("npy", seeds.npy, _npy, (BadPackage, TooLarge), seeds.NPY_WORDS),
    Codec("value", seeds.value, _value, (ValueError, TypeError, SyntaxError, msgpack.UnpackException)),
    Codec("wire", seeds.wire, _wire, (ValueError, TypeError, msgpack.UnpackException)),
    Codec("prototxt", seeds.prototxt, _prototxt, (ConfigError,), seeds.PROTOTXT_WORDS),
    Codec("grpc-timeout", lambda: [b"1S", b"500m", b"99999999H"], key_value.parse_grpc_timeout, _REFUSED),
    Codec("compression", seeds.compressed, _compressed, _REFUSED),
    Codec("http", seeds.http, lambda data: feed(data, LIMITS), (ServingError,), seeds.HTTP_WORDS),
    Codec("worker", worker.seeds, worker.run_dispatch, (worker.AllRefused,)),
    Codec("batch-plan", worker.seeds, worker.run_plan, ()),
]  # fmt: skip

"""What the mutations begin with where no recording has it: small good messages, and the words of a format."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import zlib
from typing import Any

import numpy as np

from pipeline.messages.frames import encode, frame, stow
from pipeline.messages.messages import CallMessage, DispatchMessage, Reply, Timings
from pipeline.wire.paddle_tensors import to_npy
from tests.fuzz import messages

JSON_WORDS = [
    b"null", b"true", b"false", b'""', b'"\\ud800"', b'"\\u0000"', b"[]", b"{}", b'"key":', b'"value":',
    b'"tensors":',
    b'"elem_type":13', b'"shape":[-1]', b'"lod":[0]', b'"str_data":["a"]', b'"byte_data":"k05VTVBZ"',
    b'"int64_data":',
    b'"logid":', b'"INPUT0"', b'"BYTES"', b'"parameters":{', b'"binary_data_size":', b'"classification":',
    b'"priority":',
    b'"timeout":', b'"shared_memory_region":"a"', b'"data":', b'"outputs":[', b'"datatype":', b"/*", b"\\u",
    b",,",
]  # fmt: skip
NPY_WORDS = [b"'descr': ", b"'|O'", b"'<f8'", b"(-1,)", b"(9**9,)", b"True"]
PROTOTXT_WORDS = [b"{", b"}", b"<", b"[", b":", b"'", b'"', b"\\x", b"1e", b".f"]
HTTP_WORDS = [
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\0", b" ", b"\t", b": ", b"Content-Length: 3\r\n",
    b"Content-Length: -3\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Connection: close\r\n",
    b"HTTP/1.1",
    b"HTTP/9.9", b"Expect: 100-continue\r\n", b"Upgrade: websocket\r\nConnection: upgrade\r\n", b"%00",
    b"%zz", b"/../", b"#",
    b"CONNECT a:1 HTTP/1.1\r\n\r\n", b"X: " + b"y" * 5000 + b"\r\n", b"a: b\r\n" * 40,
    b"ffffffffffffffff\r\n", b"0\r\n\r\n",
]  # fmt: skip


V1_WORDS = [*JSON_WORDS, b'"instances":', b'"inputs":', b'{"b64":"YQ=="}', b'"b64"', b'"image"', b'"text"']


class Anything:
    """What only pickle can carry."""


def npy() -> list[bytes]:
    arrays: list[Any] = [np.arange(6.0).reshape(2, 3), np.array(["a", "bc"]), np.zeros(())]
    arrays.append(np.asfortranarray(np.ones((2, 2), ">i4")))
    objects, archive = io.BytesIO(), io.BytesIO()
    np.save(objects, np.array([{}], dtype=object), allow_pickle=True)
    np.savez(archive, a=arrays[0])
    return [*map(to_npy, arrays), objects.getvalue(), archive.getvalue()]


def value() -> list[bytes]:
    plain = {"a": [1, "b", None, 2.5, b"c", (1, 2)]}
    arrays = [{"x": np.arange(8), "y": np.float32(2)}, {"t": np.zeros((2, 600))}]
    trees = [bytes(encode(each, allow_pickle=False)[0]) for each in (plain, *arrays)]
    return [*trees, bytes(encode(Anything(), allow_pickle=True)[0]), pickle.dumps(plain)]


def wire() -> list[bytes]:
    tail: list[Any] = []
    call = CallMessage(0, 0, 0, "", None, "", None, 1.5, [("a", stow([b"x" * 5000, b"y"], tail))])
    dispatch, reply = frame(DispatchMessage(1, [call]), tail), frame(Reply(1, True, [], Timings()))
    return [b"".join(dispatch), b"".join(reply), b"".join([*dispatch, *reply])]


def v1() -> list[bytes]:
    image = b'{"image":[[1,2],[3,4]],"text":"a"}'
    row = b"[%b]" % b",".join(b"%d" % i for i in range(16))
    return [
        b'{"instances":[{"INPUT0":%b,"INPUT1":%b}],"parameters":{"a":1}}' % (row, row),
        b'{"inputs":{"INPUT0":[%b],"INPUT1":[%b]}}' % (row, row),
        b'{"instances":[%b,%b]}' % (image, image),
        b'{"inputs":{"image":[[[1,2],[3,4]]],"text":[{"b64":"YQ=="}]}}',
        b'{"instances":["a"],"signature_name":"serving_default"}',
        b'{"instances":[{"b64":"YQ=="}]}',
    ]


def generate() -> list[bytes]:
    return [
        b'{"text_input":"hello","parameters":{"stream":false,"temperature":0},"id":"1"}',
        b'{"INPUT0":[1,2,3],"INPUT1":4,"timeout":5}',
        b'{"a":["b","c"],"d":"e","priority":1}',
    ]


def openai() -> list[bytes]:
    return [
        b'{"model": "m", "input": "text", "encoding_format": "base64", "dimensions": 2}',
        b'{"input": ["a", "\xe5\x9b\xbd"]}',
        b'{"input": [2, 3, 4]}',
        b'{"input": [[2, 3], [4]]}',
    ]


def tei() -> list[bytes]:
    return [
        b'{"inputs": ["a", "b"], "normalize": false, "truncate": true}',
        b'{"inputs": [["a", "d"], ["b", "c"]], "parameters": {"top_k": 2}}',
        b'{"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}}',
        b'{"query": "a", "texts": ["b", "c"], "return_text": true}',
    ]


def bytes_tensor() -> list[bytes]:
    elements = b"".join(struct.pack("<I", len(e)) + e for e in (b"a", b"", b"hello"))
    numbers = b"\x01\x02\x00\x00\x0b" + bytes(8)
    return [b"\x01\x03\x00\x00\x0d" + elements, b"\x02\x01\x03\x00\x0d" + elements, numbers]


def prototxt() -> list[bytes]:
    files = sorted(messages.FIXTURES.glob("**/*.prototxt"))[:6]
    written = b"feed_var {\n name: \"x\"\n alias_name: 'y\\101'\n shape: [-1, 0x10]\n} # end\n"
    return [written, *(file.read_bytes()[:4096] for file in files)]


def compressed() -> list[bytes]:
    """The first byte says which encoding."""
    bomb = gzip.compress(bytes(1 << 20))
    texts = [b"\0" + gzip.compress(b"hello" * 9), b"\1" + zlib.compress(b"hello" * 9)]
    return [*texts, b"\0" + bomb, b"\0" + gzip.compress(bomb)]


def http() -> list[bytes]:
    v2 = [body.partition(b"\n")[2] for body in messages.v2_bodies()[:20]]
    bodies = [*messages.key_value_bodies()[:20], *v2]
    length = b"Content-Length: %d\r\n"
    heads = [
        b"POST /test/prediction HTTP/1.1\r\nHost: a\r\n%b\r\n" % length,
        b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: test\r\n%bExpect: 100-continue\r\n\r\n" % length,
        b"POST /te%%73t/prediction?a=b HTTP/1.0\r\n" + length + b"Connection: keep-alive\r\n\r\n",
        b"PUT http://a:1/x HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n%b\r\n" % length,
    ]
    whole = [heads[i % len(heads)] % len(body) + body for i, body in enumerate(bodies)]
    chunked = b"POST /a/b HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n"
    chunked += b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nx: y\r\n\r\n"
    pages = b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n" * 5
    return [*whole, chunked, chunked * 3, pages, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]

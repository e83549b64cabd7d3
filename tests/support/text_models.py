"""Models that take texts: programs that begin with a `faster_tokenizer` operator.

    texts(folder)       text -> score [-1, 2]: the sum of a text's ids, and how many there are
    bare_tokens(..)     text -> ids [-1, -1], score [-1, 2], which counts what fills up a row, too

Written operator by operator, for Paddle 3's functions make no such programs, and their parameters byte by
byte, as Paddle 2 did: 3.3.1 ends with SIGSEGV when it saves a vocabulary with a weight.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from tests.support.built_apart import built_apart

VOCABULARY = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "我",
    "是",
    "中",
    "国",
    "人",
    "hello",
    "world",
    "##s",
)
CONF = """feed_var {{ name: "text" alias_name: "text" feed_type: 20 shape: -1 }}
{fetches}"""
FETCH = 'fetch_var {{ name: "{}" alias_name: "{}" feed_type: {} shape: {} }}'.replace(
    "feed_type", "fetch_type"
)


def texts(folder: Path) -> Path:
    """Padding is nothing to it."""
    return built_apart(__file__, folder, "texts")


def bare_tokens(folder: Path) -> Path:
    """Its answer depends on how long the longest text of the batch is."""
    return built_apart(__file__, folder, "bare_tokens")


def _build(target: Path) -> None:
    import numpy as np
    import paddle
    from paddle.base.proto import framework_pb2

    bare = target.name == "bare_tokens"
    kinds = paddle.base.core.VarDesc.VarType
    paddle.enable_static()
    program = paddle.static.Program()
    with paddle.static.program_guard(program):
        block = program.global_block()
        text = block.create_var(name="text", type=kinds.STRINGS, dtype=kinds.STRING, shape=[-1], is_data=True)
        vocabulary = block.create_var(name="ernie.vocab", type=kinds.VOCAB, dtype=kinds.RAW, persistable=True)
        ids, segments = (block.create_var(name=name, dtype="int64") for name in ("ids.tmp_0", "ids.tmp_1"))
        attributes = {"do_lower_case": True, "is_split_into_words": False}
        block.append_op(
            type="faster_tokenizer",
            inputs={"Vocab": [vocabulary], "Text": [text]},
            outputs={"InputIds": [ids], "SegmentIds": [segments]},
            attrs={**attributes, "max_seq_len": 8, "pad_to_max_seq_len": False},
        )
        table = paddle.static.create_parameter([len(VOCABULARY), 2], "float32", "table")
        rows, score = (block.create_var(name=name, dtype="float32") for name in ("rows.tmp_0", "score.tmp_0"))
        lookup = {"W": [table], "Ids": [ids]}
        block.append_op(
            type="lookup_table_v2", inputs=lookup, outputs={"Out": [rows]}, attrs={"padding_idx": -1}
        )
        summed = {"dim": [1], "keep_dim": False, "reduce_all": False}
        block.append_op(type="reduce_sum", inputs={"X": [rows]}, outputs={"Out": [score]}, attrs=summed)
        fetches = [ids, score] if bare else [score]
        whole = paddle.static.normalize_program(program, [text], fetches)
    desc = framework_pb2.ProgramDesc.FromString(
        paddle.static.serialize_program([text], fetches, program=whole)
    )
    outputs = [op.inputs[0].arguments[0] for op in desc.blocks[0].ops if op.type == "fetch"]
    values = np.stack([np.arange(len(VOCABULARY)), np.ones(len(VOCABULARY))], 1).astype("float32")
    values[0] *= bare  # what fills up a row counts, or does not
    target.mkdir(parents=True)
    (target / "inference.pdmodel").write_bytes(desc.SerializeToString())
    (target / "inference.pdiparams").write_bytes(
        _vocabulary() + _tensor(values)
    )  # in the order of their names
    described = [FETCH.format(outputs[-1], "score", 1, 2)]
    if bare:
        described.append(FETCH.format(outputs[0], "ids", 0, -1))
    (target / "serving_server_conf.prototxt").write_text(CONF.format(fetches="\n".join(described)), "utf-8")


def _vocabulary() -> bytes:
    """As framework::StringMapToStream writes it."""
    tokens = ((token.encode(), number) for number, token in enumerate(VOCABULARY))
    return struct.pack("<Q", len(VOCABULARY)) + b"".join(
        struct.pack("<Q", len(token)) + token + struct.pack("<i", number) for token, number in tokens
    )


def _tensor(values):  # type: ignore[no-untyped-def]
    """As framework::SerializeToStream writes it."""
    from paddle.base.proto import framework_pb2

    desc = framework_pb2.VarType.TensorDesc(data_type=framework_pb2.VarType.FP32, dims=values.shape)
    described = desc.SerializeToString()
    return struct.pack("<IQIi", 0, 0, 0, len(described)) + described + values.tobytes()


if __name__ == "__main__":
    _build(Path(sys.argv[1]))

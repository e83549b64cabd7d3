"""Programs that take texts: those that begin with a `faster_tokenizer` operator, as PaddleNLP exported them.

Paddle 3.3.1 ends with SIGSEGV where a vocabulary shares its file with weights, and such a program runs
neither with oneDNN nor with memory optimisation. So it is cut in two: the tokenizer, which makes ids of
texts, and the rest, which is a program like any other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

TOKENIZER = "faster_tokenizer"
TEXTS, VOCABULARY = 26, 27  # of framework.proto's VarType.Type: STRINGS and VOCAB
_LENGTH, _ID = struct.Struct("<Q"), struct.Struct("<i")


@dataclass(frozen=True)
class Half:
    """A program and its parameters, as the bytes of their files."""

    program: bytes
    params: bytes


@dataclass(frozen=True)
class TextProgram:
    """A program cut in two. texts: the tokenizer's feeds. tokens: what it hands to the rest, by name.

    fetched: those of `tokens` that are outputs of the whole; `rest` is None where there are no others.
    """

    tokenizer: Half
    rest: Half | None
    texts: tuple[str, ...]
    tokens: tuple[str, ...]
    fetched: frozenset[str]


def skip_vocabulary(file: BinaryIO, size: int) -> None:
    """Go past one vocabulary of a parameter file: its length, then each token's length, bytes and id.

    Raises struct.error or ValueError where it ends before.
    """
    (count,) = _LENGTH.unpack(file.read(_LENGTH.size))
    for _ in range(min(count, size)):
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        file.seek(length + _ID.size, 1)
        if file.tell() > size:
            raise ValueError("the vocabulary is cut off")


def cut_in_two(
    program: Any, params: Path, stored: Iterable[str], skip: Callable[[BinaryIO, str], None]
) -> TextProgram:
    """The halves of a ProgramDesc whose parameters are `stored` in one file, in this order.

    skip: goes past one of them in the file.
    """
    block = program.blocks[0]
    kinds = {variable.name: variable.type.type for variable in block.vars}
    tokenizers = [op for op in block.ops if op.type == TOKENIZER]
    texts = tuple(name for name in _outputs(block.ops, "feed") if kinds[name] == TEXTS)
    made = [name for op in tokenizers for name in _names(op.outputs)]
    others = [op for op in block.ops if op.type not in (TOKENIZER, "feed", "fetch")]
    used = {name for op in others for name in _names(op.inputs)}
    fetched = frozenset(made) & set(_inputs(block.ops, "fetch"))
    tokens = tuple(name for name in made if name in used or name in fetched)
    parts = {True: b"", False: b""}
    with params.open("rb") as file:
        for name in stored:
            start = file.tell()
            skip(file, name)
            end = file.tell()
            file.seek(start)
            parts[kinds[name] == VOCABULARY] += file.read(end - start)
    first, second = type(program)(), type(program)()
    first.CopyFrom(program)
    second.CopyFrom(program)
    _prune_program(first, tokenizers, feeds=texts, fetches=tokens)
    feeds = [name for name in _outputs(block.ops, "feed") if name not in texts]
    given = [name for name in tokens if name in used]
    fetches = [name for name in _inputs(block.ops, "fetch") if name not in fetched]
    _prune_program(second, others, feeds=[*feeds, *given], fetches=fetches)
    tokenizer = Half(first.SerializeToString(), parts[True])
    rest = Half(second.SerializeToString(), parts[False]) if fetches else None
    return TextProgram(tokenizer, rest, texts, tokens, fetched)


def _names(slots: Iterable[Any]) -> list[str]:
    return [name for slot in slots for name in slot.arguments]


def _outputs(ops: Iterable[Any], kind: str) -> list[str]:
    return [name for op in ops if op.type == kind for name in _names(op.outputs)]


def _inputs(ops: Iterable[Any], kind: str) -> list[str]:
    return [name for op in ops if op.type == kind for name in _names(op.inputs)]


def _prune_program(program: Any, ops: Sequence[Any], feeds: Sequence[str], fetches: Sequence[str]) -> None:
    """Leave these operators in the program, with these feeds and fetches, and the variables they need."""
    block = program.blocks[0]
    feed, fetch = (next(op for op in block.ops if op.type == kind) for kind in ("feed", "fetch"))
    kept = [
        *(_numbered(feed, feed.outputs[0], name, at) for at, name in enumerate(feeds)),
        *ops,
        *(_numbered(fetch, fetch.inputs[0], name, at) for at, name in enumerate(fetches)),
    ]
    copies = [type(op).FromString(op.SerializeToString()) for op in kept]
    needed = {name for op in copies for name in (*_names(op.inputs), *_names(op.outputs))}
    variables = [type(v).FromString(v.SerializeToString()) for v in block.vars if v.name in needed]
    del block.ops[:]
    del block.vars[:]
    block.ops.extend(copies)
    block.vars.extend(variables)


def _numbered(pattern: Any, slot: Any, name: str, number: int) -> Any:
    """A feed or fetch operator like `pattern`, of another variable."""
    slot.arguments[:] = [name]
    for attribute in pattern.attrs:
        if attribute.name == "col":
            attribute.i = number
    return type(pattern).FromString(pattern.SerializeToString())

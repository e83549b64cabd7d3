"""Paddle's model files (programs): shapes, weights and operators, and text models cut into two halves.

The files are checked before the engine loads them. Paddle Inference 3.3.1 ends the process with SIGSEGV on a
damaged .pdmodel. It loads a truncated parameter file, and starts without weights if the file is missing.

A text program begins with a `faster_tokenizer` operator, as PaddleNLP exports it. Paddle 3.3.1 ends with
SIGSEGV if a vocabulary shares its file with weights, and runs text programs neither with oneDNN nor with
memory optimisation. So the program is cut in two: the tokenizer, and the rest, which is an ordinary program.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.errors import ConfigError
from pipeline.models.serving_model import ServingModel, Variable
from pipeline.models.tensor_spec import BY_PROGRAM

TOKENIZER = "faster_tokenizer"
TEXTS, VOCABULARY = 26, 27  # of framework.proto's VarType.Type: STRINGS and VOCAB
_LENGTH, _ID = struct.Struct("<Q"), struct.Struct("<i")


@dataclass(frozen=True)
class Half:
    """One of the two parts of a cut text model: a graph and its weights, as contents of files."""

    program: bytes
    params: bytes


@dataclass(frozen=True)
class TextProgram:
    """A text model cut in two: the tokenizer, and the remaining model."""

    tokenizer: Half
    rest: Half | None  # None: all outputs are the tokenizer's
    texts: tuple[str, ...]  # feeds of the tokenizer
    tokens: tuple[str, ...]  # outputs of the tokenizer that the rest reads or the program returns
    fetched: frozenset[str]  # tokens that the program returns


def skip_vocabulary(file: BinaryIO, size: int) -> None:
    """Seek past a vocabulary in a weight file: its length, then each token's length, bytes and id.

    Raises struct.error or ValueError if the file, of `size` bytes, ends too early.
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
    """Cut the graph of a text model (a ProgramDesc) into its tokenizer and the rest, each with its weights.

    `stored` names the weights in the order of the file `params`. `skip` seeks past a weight in that file.
    """
    block = program.blocks[0]
    kinds = {variable.name: variable.type.type for variable in block.vars}
    tokenizers = [op for op in block.ops if op.type == TOKENIZER]
    texts = tuple(name for name in _outputs(block.ops, "feed") if kinds[name] == TEXTS)
    produced = [name for op in tokenizers for name in _list_arguments(op.outputs)]
    rest_ops = [op for op in block.ops if op.type not in (TOKENIZER, "feed", "fetch")]
    used = {name for op in rest_ops for name in _list_arguments(op.inputs)}
    fetched = frozenset(produced) & set(_inputs(block.ops, "fetch"))
    tokens = tuple(name for name in produced if name in used or name in fetched)
    params_by_half = {True: b"", False: b""}
    with params.open("rb") as file:
        for name in stored:
            start = file.tell()
            skip(file, name)
            end = file.tell()
            file.seek(start)
            params_by_half[kinds[name] == VOCABULARY] += file.read(end - start)
    first, second = type(program)(), type(program)()
    first.CopyFrom(program)
    second.CopyFrom(program)
    _prune_program(first, tokenizers, feeds=texts, fetches=tokens)
    feeds = [name for name in _outputs(block.ops, "feed") if name not in texts]
    ids = [name for name in tokens if name in used]
    fetches = [name for name in _inputs(block.ops, "fetch") if name not in fetched]
    _prune_program(second, rest_ops, feeds=[*feeds, *ids], fetches=fetches)
    tokenizer = Half(first.SerializeToString(), params_by_half[True])
    rest = Half(second.SerializeToString(), params_by_half[False]) if fetches else None
    return TextProgram(tokenizer, rest, texts, tokens, fetched)


def _list_arguments(slots: Iterable[Any]) -> list[str]:
    return [name for slot in slots for name in slot.arguments]


def _outputs(ops: Iterable[Any], kind: str) -> list[str]:
    return [name for op in ops if op.type == kind for name in _list_arguments(op.outputs)]


def _inputs(ops: Iterable[Any], kind: str) -> list[str]:
    return [name for op in ops if op.type == kind for name in _list_arguments(op.inputs)]


def _prune_program(program: Any, ops: Sequence[Any], feeds: Sequence[str], fetches: Sequence[str]) -> None:
    """Reduce a graph to these operators, inputs and outputs, and to the variables that they need."""
    block = program.blocks[0]
    feed, fetch = (next(op for op in block.ops if op.type == kind) for kind in ("feed", "fetch"))
    ops_to_keep = [
        *(_numbered(feed, feed.outputs[0], name, at) for at, name in enumerate(feeds)),
        *ops,
        *(_numbered(fetch, fetch.inputs[0], name, at) for at, name in enumerate(fetches)),
    ]
    copies = [type(op).FromString(op.SerializeToString()) for op in ops_to_keep]
    needed = {name for op in copies for name in (*_list_arguments(op.inputs), *_list_arguments(op.outputs))}
    variables = [type(v).FromString(v.SerializeToString()) for v in block.vars if v.name in needed]
    del block.ops[:]
    del block.vars[:]
    block.ops.extend(copies)
    block.vars.extend(variables)


def _numbered(pattern: Any, slot: Any, name: str, number: int) -> Any:
    """Return a copy of a feed or fetch operator for the variable `name`, with the index `number`."""
    slot.arguments[:] = [name]
    for attribute in pattern.attrs:
        if attribute.name == "col":
            attribute.i = number
    return type(pattern).FromString(pattern.SerializeToString())


# framework.proto's VarType.Type to bytes per element; 23 and 24 are complex numbers, which weights may be.
_ELEMENT_BYTES = {number: dtype.numpy.itemsize for number, dtype in BY_PROGRAM.items()} | {23: 8, 24: 16}
_DENSE_TENSOR = 7
_TOKENIZER = re.compile(TOKENIZER.encode())

# Operators whose number of output rows depends on the data.
_FINDER = re.compile(rb"\w*(nms|generate_proposals|nonzero|where_index|masked_select|detection_output)\d?")
# Operators with a list of doubles in PIR programs, which Paddle 3.3.1 can't pass to oneDNN, even if oneDNN is
# switched off for them (Paddle issue 79749).
_NATIVE_ALONE = re.compile(rb"(bilinear|nearest)_interp")
# An operator's name in a program: "#":"1.nonzero" in JSON, field 3 of framework.proto's OpDesc.
_OPERATOR = re.compile(rb'"#":"\d+\.(\w+)"|\x1a[\x03-\x30]([a-z][a-z_0-9]+)')


@dataclass(frozen=True)
class ProgramFacts:
    """Facts of a Paddle model file: shapes of variables, and names of weights, ragged and text variables."""

    shapes: Mapping[str, tuple[int, ...]]  # by variable, including all feeds
    parameters: int  # number of parameters
    names: tuple[str, ...] = ()  # of the parameters, sorted; empty for PIR programs
    ragged: frozenset[str] = frozenset()  # variables with sequences (LoD)
    texts: frozenset[str] = frozenset()  # text variables of a tokenizer; empty for PIR programs
    vocabularies: frozenset[str] = frozenset()  # of a tokenizer; empty for PIR programs


def find_row_finder(program: Path) -> str | None:
    """Return an operator of a model file whose number of output rows depends on the data, or None.

    A batch with such an operator can't be split: two boxes for two images may both belong to one image.
    """
    return _first_operator(program, _FINDER)


def run_natively_for(model: ServingModel) -> str | None:
    """Return an operator of a model that oneDNN runs wrongly or not at all; None if oneDNN can run it.

    oneDNN's adaptive pooling to more than 1x1 reuses the algorithm of the first run. If the output size does
    not divide the input size, later results are 1 to 9 % off. The whole program runs without oneDNN, because
    Paddle 3.3.1 can't exclude a single operator of a PIR program.
    """
    if model.format == "pir":
        operator = _first_operator(model.program, _NATIVE_ALONE)
        return operator or ("adaptive pool2d" if _pools_adaptively(_pir_ops(model.program)) else None)
    return "adaptive pool2d" if _pools_adaptively_in_pdmodel(model.program) else None


def _first_operator(program: Path, pattern: re.Pattern[bytes]) -> str | None:
    names = (match[1] or match[2] for match in _OPERATOR.finditer(program.read_bytes()))
    return next((name.decode() for name in names if pattern.fullmatch(name)), None)


def inspect_program(model: ServingModel) -> ProgramFacts:
    """Return the facts of a model file.

    Raises ConfigError if the model file or its weight file is damaged or missing.
    """
    try:
        facts = _pir_facts(model.program) if model.format == "pir" else _pdmodel_facts(model.program)
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as exc:
        raise ConfigError(
            f"{model.program} is not a Paddle program ({type(exc).__name__}): copy or export the model again"
        ) from exc
    if separate_params(model):
        _check_separate(model.program, facts.names)
    elif facts.parameters and model.params is None:
        raise ConfigError(
            f"{model.program} has {facts.parameters} parameters, but no .pdiparams is beside it"
        )
    if model.params is not None:
        stored = _count_stored_tensors(model.params, facts.parameters, facts)
        if stored < facts.parameters:
            raise ConfigError(
                f"{model.params} holds {stored} whole tensors, {model.program.name} has {facts.parameters} "
                "parameters: copy or export the model again"
            )
    return facts


def separate_params(model: ServingModel) -> bool:
    """Whether each weight of a model has its own file, as in models saved by the first versions of Paddle."""
    return model.program.name == "__model__" and model.params is None


def parameter_names(program: Path) -> tuple[str, ...]:
    """Return the names of the weights of a .pdmodel file, in the order of the weight file."""
    return _pdmodel_facts(program).names


def ragged_variables(program: Path) -> frozenset[str]:
    """Return the names of the ragged (LoD) variables of a .pdmodel file."""
    return _pdmodel_facts(program).ragged


def find_tokenizer_op(model: ServingModel) -> str | None:
    """Return the name of the tokenizer operator in a text model; None for other models."""
    return _first_operator(model.program, _TOKENIZER) if model.format == "pdmodel" else None


def text_program(model: ServingModel) -> TextProgram:
    """Read a text model, and cut it into the tokenizer and the remaining model.

    Raises ConfigError if each weight has a separate file.
    """
    if model.params is None:
        raise ConfigError(
            f"{model.program} has a tokenizer, and its weights in a file each: convert it with "
            "paddle_serving_client.io.inference_model_to_serving"
        )
    facts = _pdmodel_facts(model.program)
    size = model.params.stat().st_size
    program = _parsed(_framework().ProgramDesc, model.program.read_bytes())
    return cut_in_two(program, model.params, facts.names, lambda file, name: _skip(file, name, size, facts))


def corrected_feeds(model: ServingModel, facts: ProgramFacts) -> tuple[Variable, ...]:
    """Return the model's inputs with the shapes and raggedness (LoD) that its graph file declares.

    Older conversions of Paddle Serving drop every open axis: [-1, -1] and the shape of a ragged feed are
    stored as no shape at all. Other conversions store lengths that the program does not require.
    """
    return tuple(_corrected(variable, facts) for variable in model.feeds)


def _check_separate(program: Path, names: Sequence[str]) -> None:
    for name in names:
        file = program.parent / name
        if not file.is_file():
            raise ConfigError(
                f"{program} has the weight {name}, but neither {name} nor __params__ is beside it"
            )
        if not _count_stored_tensors(file, 1):
            raise ConfigError(f"{file} holds no whole tensor: copy or export the model again")


def _corrected(variable: Variable, facts: ProgramFacts) -> Variable:
    if variable.name in facts.texts:
        return dataclasses.replace(variable, shape=(-1,), dtype="string", is_lod=False)
    shape = facts.shapes.get(variable.name, ())
    if not shape:
        return variable
    ragged = variable.is_lod and variable.name in facts.ragged
    return dataclasses.replace(variable, shape=(-1, *shape[1:]) if ragged else shape, is_lod=ragged)


def _pools_adaptively(ops: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a Paddle 3 model, including inner blocks, has adaptive pooling to more than 1x1.

    ops: the model's operators, decoded from JSON.
    """
    for op in ops:
        if op["#"].endswith(".pool2d"):
            attributes = {attribute["N"]: attribute["AT"].get("D") for attribute in op["A"]}
            sides = op["O"][0]["TT"]["D"][1]  # [rows, channels, height, width], or the channels last
            spatial = sides[1:3] if attributes.get("data_format") == "NHWC" else sides[2:4]
            if attributes.get("adaptive") and list(spatial) != [1, 1]:
                return True
        inner = (block for region in op.get("regions", ()) for block in region["blocks"])
        if any(_pools_adaptively(block["ops"]) for block in inner):
            return True
    return False


def _pools_adaptively_in_pdmodel(program: Path) -> bool:
    data = program.read_bytes()
    if b"adaptive" not in data:  # most programs are not parsed
        return False
    for block in _parsed(_framework().ProgramDesc, data).blocks:
        for op in block.ops:
            attributes = {attribute.name: attribute for attribute in op.attrs}
            adaptive = op.type == "pool2d" and "adaptive" in attributes and attributes["adaptive"].b
            if adaptive and list(attributes["ksize"].ints) != [1, 1]:
                return True
    return False


def _pir_ops(program: Path) -> Sequence[Mapping[str, Any]]:
    block = json.loads(program.read_bytes())["program"]["regions"][0]["blocks"][0]
    ops: Sequence[Mapping[str, Any]] = block["ops"]
    return ops


def _pir_facts(program: Path) -> ProgramFacts:
    """Return the facts of a .json model file (PIR), from its `data` (input) and weight operators."""
    ops = _pir_ops(program)
    shapes = {}
    for op in ops:
        if op["#"].endswith(".data"):
            attributes = {attribute["N"]: attribute["AT"].get("D") for attribute in op["A"]}
            shapes[attributes["name"]] = tuple(attributes["shape"])
    return ProgramFacts(shapes, sum(map(_is_stored, ops)))


def _is_stored(op: Mapping[str, Any]) -> bool:
    """Whether an operator of a .json model file (PIR) is a weight that is stored in the weight file.

    A recurrent layer's `dropout_state` is not stored: its persistable flag, the first element of the key OA,
    is 0.
    """
    return op["#"] in ("p", "0.parameter") and op.get("OA", [])[:1] != [0]


def _pdmodel_facts(program: Path) -> ProgramFacts:
    """Return the facts of a .pdmodel file, from the variables in the first block of its ProgramDesc."""
    framework = _framework()
    variables = _parsed(framework.ProgramDesc, program.read_bytes()).blocks[0].vars
    # By number: "lod_tensor" and "lod_level" have other names since Paddle 2.6.
    field = framework.VarType.DESCRIPTOR.fields_by_number[3]
    tensor, level = (field.message_type.fields_by_number[number].name for number in (1, 2))
    dense = {v.name: getattr(v.type, field.name) for v in variables if v.type.type == _DENSE_TENSOR}
    shapes = {name: tuple(getattr(variable_type, tensor).dims) for name, variable_type in dense.items()}
    of_kind = {v.name: v.type.type for v in variables}
    vocabularies = frozenset(name for name, kind in of_kind.items() if kind == VOCABULARY)
    texts = frozenset(name for name, kind in of_kind.items() if kind == TEXTS)
    stored = dense.keys() | vocabularies
    names = tuple(sorted(v.name for v in variables if v.persistable and v.name in stored))
    ragged = frozenset(name for name, variable_type in dense.items() if getattr(variable_type, level))
    return ProgramFacts(shapes, len(names), names, ragged, texts, vocabularies)


def _count_stored_tensors(params: Path, limit: int, facts: ProgramFacts | None = None) -> int:
    """Count the complete tensors in a weight file, up to `limit`. Vocabularies in `facts` count too.

    Any bytes may follow the last tensor, and zeros would look like empty tensors.
    """
    size, count = params.stat().st_size, 0
    with params.open("rb") as file:
        while count < limit and file.tell() < size:
            try:
                name = facts.names[count] if facts is not None and facts.names else ""
                _skip(file, name, size, facts)
            except (struct.error, ValueError, LookupError, OverflowError):
                break
            count += 1
    return count


def _skip(file: BinaryIO, name: str, size: int, facts: ProgramFacts | None) -> None:
    """Seek past a weight in a weight file.

    Raises one of several exceptions if the file of `size` bytes ends too early.
    """
    if facts is not None and name in facts.vocabularies:
        skip_vocabulary(file, size)
        return
    _, levels = struct.unpack("<IQ", file.read(12))  # version, levels of detail
    for _ in range(min(levels, 16)):
        file.seek(struct.unpack("<Q", file.read(8))[0], 1)
    _, length = struct.unpack("<Ii", file.read(8))
    desc = _parsed(_framework().VarType.TensorDesc, file.read(max(0, min(length, 4096))))
    end = file.tell() + math.prod(desc.dims) * _ELEMENT_BYTES[desc.data_type]
    if end > size:
        raise ValueError("the tensor is cut off")
    file.seek(end)


def _parsed(kind: Any, data: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(data)
    except DecodeError as exc:
        raise ValueError(str(exc)) from exc


def _framework() -> Any:
    from paddle.base.proto import framework_pb2

    return framework_pb2

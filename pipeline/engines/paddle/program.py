"""What a Paddle program says of itself, read before the engine sees it.

Paddle Inference 3.3.1 ends the process with SIGSEGV on a damaged .pdmodel, loads a parameter file that is cut
off in its last tensor, and starts without weights when it is given none. Each is told in one sentence here.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.engines.paddle.text_program import (
    TEXTS,
    TOKENIZER,
    VOCABULARY,
    TextProgram,
    cut_in_two,
    skip_vocabulary,
)
from pipeline.errors import ConfigError
from pipeline.models.dtypes import BY_PROGRAM
from pipeline.models.serving_model import ServingModel, Variable

# framework.proto's VarType.Type to bytes an element; 23 and 24 are complex numbers, which weights may be.
_ELEMENT_BYTES = {number: dtype.numpy.itemsize for number, dtype in BY_PROGRAM.items()} | {23: 8, 24: 16}
_DENSE_TENSOR = 7
_TOKENIZER = re.compile(TOKENIZER.encode())

# Operators that give as many rows as they find.
_FINDER = re.compile(rb"\w*(nms|generate_proposals|nonzero|where_index|masked_select|detection_output)\d?")
# Operators that PIR programs have with a list of doubles, which Paddle 3.3.1 can't hand to oneDNN, whether it
# is told to use oneDNN for them or not (Paddle issue 79749).
_NATIVE_ALONE = re.compile(rb"(bilinear|nearest)_interp")
# Where a program tells an operator's name: "#":"1.nonzero" in JSON, field 3 of framework.proto's OpDesc.
_OPERATOR = re.compile(rb'"#":"\d+\.(\w+)"|\x1a[\x03-\x30]([a-z][a-z_0-9]+)')


@dataclass(frozen=True)
class ProgramFacts:
    """Shapes of the program's variables by name (its feeds at least), and how many parameters it has.

    `names` are the parameters' own, sorted; a PIR program's are not read. `ragged` are the variables with
    sequences (LoD), `texts` and `vocabularies` those of a tokenizer, which PIR programs don't have.
    """

    shapes: Mapping[str, tuple[int, ...]]
    parameters: int
    names: tuple[str, ...] = ()
    ragged: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    vocabularies: frozenset[str] = frozenset()


def rows_found_by(program: Path) -> str | None:
    """The operator by which a program's outputs may have another number of rows than its feeds; or None.

    Two boxes fetched for two images are one each, or both of one image: what was found can't be cut apart.
    """
    return _first_operator(program, _FINDER)


def run_natively_for(model: ServingModel) -> str | None:
    """Return the operator for which a program can't be run with oneDNN; or None.

    oneDNN's adaptive pooling to more than 1x1 keeps the way of computing that suited the first run: sizes
    that the output doesn't divide are 1 to 9 % off afterwards. The whole program runs without oneDNN, for
    Paddle 3.3.1 can exclude no single operator of a PIR program.
    """
    if model.format == "pir":
        operator = _first_operator(model.program, _NATIVE_ALONE)
        return operator or ("adaptive pool2d" if _pools_adaptively(_pir_ops(model.program)) else None)
    return "adaptive pool2d" if _pools_adaptively_in_pdmodel(model.program) else None


def _first_operator(program: Path, wanted: re.Pattern[bytes]) -> str | None:
    names = (match[1] or match[2] for match in _OPERATOR.finditer(program.read_bytes()))
    return next((name.decode() for name in names if wanted.fullmatch(name)), None)


def inspect_program(model: ServingModel) -> ProgramFacts:
    """Read the program file. Raises ConfigError when it or its parameter file is damaged or missing."""
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
        stored = _stored_tensors(model.params, facts.parameters, facts)
        if stored < facts.parameters:
            raise ConfigError(
                f"{model.params} holds {stored} whole tensors, {model.program.name} has {facts.parameters} "
                "parameters: copy or export the model again"
            )
    return facts


def separate_params(model: ServingModel) -> bool:
    """Whether each weight has a file of its own, as the first versions of Paddle saved them."""
    return model.program.name == "__model__" and model.params is None


def parameter_names(program: Path) -> tuple[str, ...]:
    """The names of a .pdmodel's weights, in the order in which one file holds them all."""
    return _pdmodel_facts(program).names


def ragged_variables(program: Path) -> frozenset[str]:
    """The names of a .pdmodel's variables with sequences."""
    return _pdmodel_facts(program).ragged


def find_tokenizer_op(model: ServingModel) -> str | None:
    """The operator by which a program takes texts; or None."""
    return _first_operator(model.program, _TOKENIZER) if model.format == "pdmodel" else None


def text_program(model: ServingModel) -> TextProgram:
    """The halves of a program that takes texts. Raises ConfigError where its weights are in a file each."""
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
    """The model's feeds with the program's own shapes, and as ragged as the program has them.

    Older conversions of Paddle Serving drop every axis of any length: [-1, -1] is stored as no shape at all,
    and so is the shape of a ragged feed. Others have lengths that the program does not ask for.
    """
    return tuple(_corrected(variable, facts) for variable in model.feeds)


def _check_separate(program: Path, names: Sequence[str]) -> None:
    for name in names:
        file = program.parent / name
        if not file.is_file():
            raise ConfigError(
                f"{program} has the weight {name}, but neither {name} nor __params__ is beside it"
            )
        if not _stored_tensors(file, 1):
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
    """Return whether a PIR program, in a block inside another too, pools adaptively to more than 1x1."""
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
    """The facts of a PIR program, by the `data` and parameter operators in its JSON."""
    ops = _pir_ops(program)
    shapes = {}
    for op in ops:
        if op["#"].endswith(".data"):
            attributes = {attribute["N"]: attribute["AT"].get("D") for attribute in op["A"]}
            shapes[attributes["name"]] = tuple(attributes["shape"])
    return ProgramFacts(shapes, sum(map(_is_stored, ops)))


def _is_stored(op: Mapping[str, Any]) -> bool:
    """Whether an operator of a PIR program is a parameter of the parameter file.

    A recurrent layer's `dropout_state` is none: its persistable, the first of a parameter's OA, is 0.
    """
    return op["#"] in ("p", "0.parameter") and op.get("OA", [])[:1] != [0]


def _pdmodel_facts(program: Path) -> ProgramFacts:
    """The facts of a .pdmodel, by the variables in the first block of its ProgramDesc."""
    framework = _framework()
    variables = _parsed(framework.ProgramDesc, program.read_bytes()).blocks[0].vars
    # By number: "lod_tensor" and "lod_level" have other names since Paddle 2.6.
    field = framework.VarType.DESCRIPTOR.fields_by_number[3]
    tensor, level = (field.message_type.fields_by_number[number].name for number in (1, 2))
    dense = {v.name: getattr(v.type, field.name) for v in variables if v.type.type == _DENSE_TENSOR}
    shapes = {name: tuple(getattr(found, tensor).dims) for name, found in dense.items()}
    of_kind = {v.name: v.type.type for v in variables}
    vocabularies = frozenset(name for name, kind in of_kind.items() if kind == VOCABULARY)
    texts = frozenset(name for name, kind in of_kind.items() if kind == TEXTS)
    stored = dense.keys() | vocabularies
    names = tuple(sorted(v.name for v in variables if v.persistable and v.name in stored))
    ragged = frozenset(name for name, found in dense.items() if getattr(found, level))
    return ProgramFacts(shapes, len(names), names, ragged, texts, vocabularies)


def _stored_tensors(params: Path, most: int, facts: ProgramFacts | None = None) -> int:
    """How many complete tensors a parameter file holds, up to `most` of them.

    What follows these may be anything, and zeros look like as many empty tensors. facts: of the program; its
    vocabularies count as tensors.
    """
    size, count = params.stat().st_size, 0
    with params.open("rb") as file:
        while count < most and file.tell() < size:
            try:
                name = facts.names[count] if facts is not None and facts.names else ""
                _skip(file, name, size, facts)
            except (struct.error, ValueError, LookupError, OverflowError):
                break
            count += 1
    return count


def _skip(file: BinaryIO, name: str, size: int, facts: ProgramFacts | None) -> None:
    """Go past one parameter. Raises one of several errors where the file of `size` bytes ends before."""
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

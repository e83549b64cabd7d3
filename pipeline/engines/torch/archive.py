"""Reads PyTorch's model files without PyTorch: TorchScript archives and programs of torch.export.

Both are zip files. A TorchScript archive has the code of the model as text, but no dtypes or shapes. A
program of torch.export has its graph as JSON, with both. Other files of PyTorch are pickles, which can run
any code when they are read, so they are refused unread.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from client.protos.model_files_pb2 import GeneralModelConfig
from pipeline.errors import ConfigError
from pipeline.models.protobuf_text import parse_message
from pipeline.models.signature import Variable, parse_signature

TORCHSCRIPT, EXPORTED = "torchscript", "exported"
SIGNATURE_FILE = "signature.prototxt"  # an extra file that a TorchScript archive may hold
MAX_TEXT_BYTES = 64 << 20  # of the code or of the graph, without weights
MAX_MEMBERS = 1 << 16

_TO_TORCHSCRIPT = "save it by torch.jit.trace(model, inputs).save(...), or convert it to ONNX"
_DTYPES = {  # torch.export's numbers of element types; bfloat16, which NumPy lacks, is converted
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
    12: "bool", 13: "float32", 28: "uint16", 34: "uint32", 35: "uint64",
}  # fmt: skip

Signature = tuple[Sequence[Variable], Sequence[Variable]]


def detect_format(program: Path) -> str:
    """Return the format of a model file: TORCHSCRIPT or EXPORTED.

    Raises ConfigError for other files, and says what they contain.
    """
    with _open(program) as archive:
        return _get_format(program, _list_members(program, archive))


def read_signature_in(program: Path) -> Signature:
    """Return the inputs and outputs that a model file declares.

    Raises ConfigError for a TorchScript archive without signature.prototxt, because the archive declares no
    inputs and outputs.
    """
    signature = find_signature(program)
    if signature is None:
        raise ConfigError(
            f"{program} is TorchScript, which declares no dtypes and shapes: write "
            "serving_server_conf.prototxt beside it, serve it with a config.pbtxt, or convert it with "
            "`paddlewheel convert all`"
        )
    return signature


def find_signature(program: Path) -> Signature | None:
    """Return the inputs and outputs that a model file declares; None for TorchScript without a signature."""
    with _open(program) as archive:
        members = _list_members(program, archive)
        if _get_format(program, members) == EXPORTED:
            return _read_exported(program, _read_graph(program, archive, members))
        if (extra := f"extra/{SIGNATURE_FILE}") in members:
            text = _read_text(program, archive, members[extra])
            config = parse_message(text, GeneralModelConfig, f"{program}: {extra}")
            return parse_signature(config, program, batched=False)
    return None


def find_operators(program: Path) -> set[str]:
    """Return the operators of a TorchScript archive that other libraries add, e.g. "torchvision::nms"."""
    operators = set()
    for text in _read_code(program):
        operators |= {f"{space}::{name}" for space, name in re.findall(r"\bops\.(\w+)\.(\w+)\(", text)}
    return {name for name in operators if name.partition("::")[0] not in _OWN_OPERATORS}


_OWN_OPERATORS = ("aten", "prim", "prims", "quantized", "prepacked", "inductor", "onednn", "mkldnn")


def names_cuda(program: Path) -> bool:
    """Whether the code of a TorchScript archive names a CUDA device."""
    return any('"cuda' in text or "torch.cuda(" in text for text in _read_code(program))


def _read_code(program: Path) -> Iterator[str]:
    with _open(program) as archive:
        members = _list_members(program, archive)
        for name, member in members.items():
            if name.startswith("code/") and name.endswith(".py"):
                yield _read_text(program, archive, member)


def _open(program: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(program)
    except zipfile.BadZipFile as exc:
        with program.open("rb") as file:
            is_pickle = file.read(2) in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
        what = "is a pickle of torch.save, which is never read" if is_pickle else f"can't be read ({exc})"
        raise ConfigError(f"{program} {what}: {_TO_TORCHSCRIPT}") from exc
    except OSError as exc:
        raise ConfigError(f"{program} can't be read: {exc.strerror}") from exc


def _list_members(program: Path, archive: zipfile.ZipFile) -> Mapping[str, zipfile.ZipInfo]:
    """Return the files of an archive, by their path within the archive's single top folder."""
    files = archive.infolist()
    if len(files) > MAX_MEMBERS:
        raise ConfigError(f"{program} holds {len(files)} files; at most {MAX_MEMBERS} are read")
    texts = [file for file in files if file.filename.endswith((".py", ".json"))]
    if sum(file.file_size for file in texts) > MAX_TEXT_BYTES:
        raise ConfigError(f"{program} has over {MAX_TEXT_BYTES} bytes of code: export a smaller graph")
    return {file.filename.partition("/")[2] or file.filename: file for file in files}


def _get_format(program: Path, members: Mapping[str, zipfile.ZipInfo]) -> str:
    if any(name.startswith("data/aotinductor/") for name in members):
        raise ConfigError(f"{program} holds machine code of AOTInductor: save it by torch.export.save")
    if "archive_format" in members:
        return EXPORTED
    if "serialized_exported_program.json" in members:
        raise ConfigError(f"{program} is of torch.export before PyTorch 2.7: export it with 2.8 or later")
    if any(name.startswith("code/") for name in members) and "constants.pkl" in members:
        return TORCHSCRIPT
    if "data.pkl" in members:
        raise ConfigError(
            f"{program} holds weights or a module as a pickle of torch.save, which is never read, and no "
            f"code: {_TO_TORCHSCRIPT}"
        )
    raise ConfigError(f"{program} is neither TorchScript nor a program of torch.export: {_TO_TORCHSCRIPT}")


def _read_text(program: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> str:
    try:
        with archive.open(member) as file:
            return file.read(MAX_TEXT_BYTES).decode("utf-8")
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError) as exc:
        raise ConfigError(f"{program}: {member.filename} can't be read ({exc}): copy the file again") from exc


def _read_json(program: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Any:
    try:
        return json.loads(_read_text(program, archive, member))
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{program}: {member.filename} is no JSON ({exc}): export the model again") from exc


def _read_graph(
    program: Path, archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]
) -> Mapping[str, Any]:
    """Return the JSON of an exported program. Raises ConfigError for a file that PyTorch would unpickle."""
    models = [name for name in members if name.startswith("models/") and name.endswith(".json")]
    if len(models) != 1:
        raise ConfigError(f"{program} holds {len(models)} models: save a single one by torch.export.save")
    document = _read_json(program, archive, members[models[0]])
    for name in members:
        folder, _, file = name.rpartition("/")
        if folder in ("data/weights", "data/constants"):
            if file.endswith(".pt") or file.startswith(("custom_obj_", "opaque_obj_")):
                _refuse_pickle(program, name)
            if file.endswith("_config.json"):
                _check_payloads(program, name, _read_json(program, archive, members[name]))
    _check_graph(program, document)
    if not isinstance(document, dict):
        raise ConfigError(f"{program}: {models[0]} is no graph: export the model again")
    return document


def _check_payloads(program: Path, name: str, document: Any) -> None:
    for value in _walk(document):
        if isinstance(value, dict) and value.get("use_pickle"):
            _refuse_pickle(program, name)
        device = value.get("device") if isinstance(value, dict) else None
        if isinstance(device, dict) and device.get("type") != "cpu":
            raise ConfigError(
                f"{program} was exported on the device {device.get('type')}: export the model on the CPU, "
                "which a GPU runs, too"
            )


def _refuse_pickle(program: Path, name: str) -> None:
    raise ConfigError(
        f"{program} holds a pickle ({name}), which is never read: export a model of plain tensors, without "
        "tensor subclasses and script objects"
    )


# PyTorch looks operators up by attribute, and evaluates expressions of sizes: both are limited to arithmetic.
_TARGET = re.compile(
    r"torch\.ops\.(aten|prims|quantized|quantized_decomposed|higher_order|torchvision)\.\w+(\.\w+)?|"
    r"torch\.sym_\w+|torch\._sym_sqrt|math\.\w+|"
    r"_operator\.(add|sub|mul|truediv|floordiv|mod|pow|neg|pos|abs|eq|ne|lt|le|gt|ge|and_|or_|not_|getitem)"
)
_EXPRESSION = re.compile(r"[\w\s+\-*/(),.<>=&|~]*")
_FUNCTIONS = {
    "Max", "Min", "Mod", "PythonMod", "FloorDiv", "CeilDiv", "CleanDiv", "IntTrueDiv", "FloatTrueDiv",
    "ModularIndexing", "Where", "ToFloat", "TruncToInt", "TruncToFloat", "CeilToInt", "FloorToInt",
    "RoundToInt", "RoundDecimal", "PowByNatural", "FloatPow", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And",
    "Or", "Not", "Abs", "floor", "ceiling", "True", "False", "int_oo", "oo", "Identity",
    "OpaqueUnaryFn_sqrt", "BitwiseFn_bitwise_and", "BitwiseFn_bitwise_or", "LShift", "RShift", "Piecewise",
    "Symbol", "Integer", "Rational", "Float", "Add", "Mul", "Pow", "positive", "nonnegative", "negative",
    "integer", "real", "nonzero", "precision", "One", "Zero", "Half", "NegativeOne",
}  # fmt: skip
_SYMBOL = re.compile(r"[suzf]+\d+")
_QUOTED = re.compile(r"'([suzf]+\d+|[\d.]+)'")


def _check_graph(program: Path, document: Any) -> None:
    for value in _walk(document):
        if not isinstance(value, dict):
            continue
        target, expression = value.get("target"), value.get("expr_str")
        if isinstance(target, str) and not _TARGET.fullmatch(target):
            raise ConfigError(f"{program} calls {target[:100]!r}, which is no operator: export it again")
        if isinstance(expression, str) and not _is_arithmetic(expression):
            raise ConfigError(f"{program} has the size {expression[:100]!r}: export with simpler shapes")


def _is_arithmetic(expression: str) -> bool:
    unquoted = _QUOTED.sub(r"\1", expression)  # Symbol('s0', positive=True, integer=True)
    words = re.findall(r"[A-Za-z_]\w*", unquoted)
    return bool(_EXPRESSION.fullmatch(unquoted)) and all(
        word in _FUNCTIONS or _SYMBOL.fullmatch(word) for word in words
    )


def _walk(document: Any) -> Iterator[Any]:
    """Yield a JSON document and all values in it, without recursion."""
    stack = [document]
    while stack:
        value = stack.pop()
        yield value
        if isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)


def _read_exported(program: Path, document: Mapping[str, Any]) -> Signature:
    try:
        module = document["graph_module"]
        tensors = module["graph"]["tensor_values"]
        signature = module["signature"]
        inputs = [spec["user_input"]["arg"] for spec in signature["input_specs"] if "user_input" in spec]
        outputs = [spec["user_output"]["arg"] for spec in signature["output_specs"] if "user_output" in spec]
        names = _get_output_names(module["module_call_graph"][0]["signature"]["out_spec"], len(outputs))
        feeds = [_build_variable(program, "input", arg, tensors) for arg in inputs]
        fetches = [
            _build_variable(program, "output", arg, tensors, name)
            for arg, name in zip(outputs, names, strict=True)
        ]
    except (KeyError, TypeError, IndexError, AttributeError) as exc:
        raise ConfigError(
            f"{program} is of a version of torch.export that is not known here ({exc!r}): export it with "
            "PyTorch 2.8 or later"
        ) from exc
    return feeds, fetches


def _build_variable(
    program: Path, kind: str, argument: Mapping[str, Any], tensors: Mapping[str, Any], name: str = ""
) -> Variable:
    if "as_tensor" not in argument:
        raise ConfigError(
            f"{program}: an {kind} of forward is no tensor ({next(iter(argument), 'nothing')}): make it a "
            "constant of the model, and export it again"
        )
    tensor = argument["as_tensor"]["name"]
    meta = tensors[tensor]
    if meta["dtype"] not in _DTYPES:
        raise ConfigError(f"{program}: {kind} {tensor!r} has an element type that NumPy lacks: cast it")
    shape = tuple(size.get("as_int", -1) for size in meta["sizes"])
    return Variable(name or tensor, name or tensor, _DTYPES[meta["dtype"]], shape)


def _get_output_names(out_spec: str, count: int) -> list[str]:
    """Return names for the outputs of an exported program: the keys of a dict, else output__0, output__1."""
    _, spec = json.loads(out_spec)
    if spec["type"] == "builtins.dict":
        keys = json.loads(spec["context"])
        if len(keys) == count and all(isinstance(key, str) for key in keys):
            return list(keys)
    return [f"output__{number}" for number in range(count)]

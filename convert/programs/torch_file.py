"""Finds TorchScript files and programs of torch.export, and the description of their inputs and outputs.

Imports no PyTorch, and reads no pickle.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

from convert.programs.program_feeds import ProgramTensor, parse_input_spec
from pipeline.engines.torch.archive import (
    EXPORTED,
    SIGNATURE_FILE,
    TORCHSCRIPT,
    Signature,
    detect_format,
    find_signature,
)
from pipeline.errors import ConfigError, ConversionError
from pipeline.models.serving_model import SERVER_CONF, TRITON_CONF
from pipeline.models.signature import Variable, read_signature, signature_text
from pipeline.triton.config_file import read_config
from pipeline.triton.model_folder import declare_variables

__all__ = [
    "EXPORTED",
    "SUFFIXES",
    "TORCHSCRIPT",
    "WEIGHTS",
    "as_program_tensors",
    "copy_with_signature",
    "find_torch_file",
    "read_file_signature",
    "read_format",
]

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
SUFFIXES = (".pt", ".pth", ".pt2")
_BUILT_BY_CODE = "or name module:factory, a function that builds the model"


def find_torch_file(source: str) -> Path | None:
    """Return the model file that `source` names: a .pt, .pth or .pt2 file, or a folder with one such file.

    None for other sources, including a Hugging Face directory.
    """
    path = Path(source)
    if path.is_file():
        return path if path.suffix in SUFFIXES else None
    if not path.is_dir() or any((path / name).is_file() for name in WEIGHTS):
        return None
    files = [file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file()]
    return files[0] if len(files) == 1 else None


def read_format(file: Path) -> str:
    """Return the format of a model file, TORCHSCRIPT or EXPORTED.

    Raises ConversionError for other files, and says what they contain.
    """
    try:
        return detect_format(file)
    except ConfigError as exc:
        raise ConversionError(f"{exc.message.rstrip('.')}, {_BUILT_BY_CODE}.") from exc


def read_file_signature(file: Path, input_spec: str = "") -> Signature:
    """Return the inputs and outputs of a model file; empty if they are not described.

    They are described in the file itself, in a prototxt beside it, or in the config.pbtxt of a Triton
    repository. The value of --input-spec overrides the inputs of a TorchScript file, and describes no
    outputs. Raises ConversionError.
    """
    try:
        if read_format(file) == EXPORTED and input_spec:
            raise ConversionError(f"{file} describes its inputs itself; leave out --input-spec.")
        if input_spec:
            return [Variable(v.name, v.name, v.dtype, v.shape) for v in parse_input_spec(input_spec)], []
        return find_signature(file) or _find_signature_beside(file) or ([], [])
    except ConfigError as exc:
        raise ConversionError(f"{exc.message.rstrip('.')}.") from exc


def _find_signature_beside(file: Path) -> Signature | None:
    if (file.parent / SERVER_CONF).is_file():
        return read_signature(file.parent / SERVER_CONF, batched=False)
    for folder in (file.parent, file.resolve().parent.parent):
        if (folder / TRITON_CONF).is_file():
            config = read_config(folder)
            return declare_variables(config) if config.input and config.output else None
    return None


def copy_with_signature(
    file: Path, target: Path, feeds: Sequence[Variable], fetches: Sequence[Variable]
) -> None:
    """Copy a TorchScript file and add the description of its inputs and outputs to the copy.

    A file that has a description is copied unchanged.
    """
    shutil.copyfile(file, target)
    if find_signature(target) is not None:
        return
    with zipfile.ZipFile(target, "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/extra/{SIGNATURE_FILE}", signature_text(feeds, fetches))


def as_program_tensors(variables: Sequence[Variable]) -> tuple[ProgramTensor, ...]:
    """Return the name, dtype and shape of each variable."""
    return tuple(ProgramTensor(v.name, v.dtype, v.shape) for v in variables)

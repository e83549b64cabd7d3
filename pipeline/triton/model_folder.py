"""A model's folder in a repository: its versions, its files, and its configuration."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from client.protos.kserve_v2_pb2 import ModelConfig, ModelInput, ModelOutput
from pipeline.errors import ConfigError
from pipeline.models.tensor_spec import Signature, TensorSpec

_DATA_TYPES = ModelConfig.DESCRIPTOR.file.enum_types_by_name["DataType"]
NO_VERSION = "at least one version must be available under the version policy of model '{}'"


def select_versions(folder: Path, config: ModelConfig) -> list[str]:
    """The versions that the policy wants to be served, of those in the folder; ascending."""
    there = sorted(
        int(path.name)
        for path in folder.iterdir()
        if path.is_dir() and re.fullmatch(r"[1-9]\d{0,17}", path.name)
    )
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "specific":
        chosen = [version for version in there if version in policy.specific.versions]
    elif choice == "all":
        chosen = there
    else:
        chosen = there[-(policy.latest.num_versions or 1) :]
    return list(map(str, chosen))


def find_program(folder: Path, name: str) -> Path:
    """The program in a version's folder: a file, or the file of the same name in a folder of this name, where
    its weights are beside it."""
    path = folder / name
    return path / name if path.is_dir() else path


def build_signature(config: ModelConfig, folder: Path) -> Signature:
    """The tensors as clients send and get them. Raises ConfigError for a file of labels that is not there."""
    most = config.max_batch_size
    inputs, outputs = build_specs(config.input, most), build_specs(config.output, most)
    return Signature(
        tuple(spec._replace(optional=one.optional) for spec, one in zip(inputs, config.input, strict=True)),
        tuple(
            spec._replace(labels=_labels(one, folder))
            for spec, one in zip(outputs, config.output, strict=True)
        ),
        most,
    )


def build_specs(tensors: Sequence[ModelInput] | Sequence[ModelOutput], most: int) -> list[TensorSpec]:
    """Inputs or outputs as they are declared. most: rows; 0: they have none."""
    rows = (-1,) if most else ()
    return [TensorSpec(one.name, get_datatype(one.data_type), (*rows, *one.dims)) for one in tensors]


def get_datatype(number: int) -> str:
    """KServe's name of a data_type."""
    name = _DATA_TYPES.values_by_number[number].name.removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def get_data_type(datatype: str) -> int:
    """The number of a data_type, by KServe's name."""
    name = "STRING" if datatype == "BYTES" else datatype
    return int(_DATA_TYPES.values_by_name[f"TYPE_{name}"].number)


def _labels(output: ModelOutput, folder: Path) -> tuple[str, ...]:
    if not output.label_filename:
        return ()
    path = folder / output.label_filename
    try:
        return tuple(path.read_text("utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is no UTF-8"
        raise ConfigError(f"Internal: failed to open text file for read {path}: {why}") from None

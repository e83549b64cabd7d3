"""`model_warmup` of config.pbtxt: requests that a model answers before it is ready."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.errors import ConfigError
from pipeline.models.dtypes import BY_DATATYPE
from pipeline.triton import raw_texts

FOLDER = "warmup"  # in the model's: the files that samples name
_Config = Mapping[str, Any]


class Sample(NamedTuple):
    """One sample: its name, the tensors of its request, and how many times that is run."""

    name: str
    feed: dict[str, Any]
    times: int


def find_sample_error(config: _Config, folder: Path) -> str:
    """Why the samples can't be run, as far as that shows without the model, in Triton's words; empty: they
    can."""
    for sample in config["model_warmup"]:
        needed = {one["name"] for one in config["input"] if not one["optional"]}
        if missing := sorted(needed - sample["inputs"].keys()):
            got, told = (",".join(f"'{name}'" for name in names) for names in (sample["inputs"], missing))
            return (
                f"Invalid argument: [request id: <id_unknown>] expected {len(needed)} inputs but got "
                f"{len(sample['inputs'])} inputs for model '{config['name']}'. Got input(s) [{got}], but "
                f"missing required input(s) [{told}]. Please provide all required input(s)."
            )
        for one in sample["inputs"].values():
            path = folder / FOLDER / one.get("input_data_file", "")
            if "input_data_file" in one and not path.is_file():
                return f"Internal: failed to open text file for read {path}: No such file or directory"
    return ""


def load_samples(config: _Config, folder: Path) -> Iterator[Sample]:
    """The samples with their tensors. Raises ConfigError for one that is not as the model declares it."""
    known = {one["name"]: one["data_type"] for one in config["input"]}
    for sample in config["model_warmup"]:
        if not sample["batch_size"]:
            continue
        feed = {}
        for name, one in sample["inputs"].items():
            about = f"model_warmup: input '{name}' of sample '{sample['name']}'"
            if one["data_type"] != known.get(name, ""):
                told = known.get(name, "no input of the model")
                raise ConfigError(f"{about} is {one['data_type']}; in the model it is {told}")
            rows = [sample["batch_size"]] if config["max_batch_size"] else []
            feed[name] = _tensor(one, [*rows, *one["dims"]], folder, about)
        yield Sample(sample["name"], feed, max(1, sample["count"]))


def _tensor(one: _Config, shape: list[int], folder: Path, about: str) -> Any:
    if any(length < 0 for length in shape):
        raise ConfigError(f"{about} has the dims {one['dims']}: a sample has lengths, none open")
    texts = one["data_type"] == "TYPE_STRING"
    if "input_data_file" in one:
        data = (folder / FOLDER / one["input_data_file"]).read_bytes()
        return _texts(data, shape, about) if texts else _numbers(data, one["data_type"], shape, about)
    if texts:
        return np.full(shape, b"", object)
    dtype = BY_DATATYPE[one["data_type"].removeprefix("TYPE_")].numpy
    if one.get("random_data"):
        size = math.prod(shape) * dtype.itemsize
        # Small numbers: ids beyond a vocabulary, and floats of all bits, are no warm-up.
        return np.random.default_rng(0).integers(0, 2, size // dtype.itemsize).astype(dtype).reshape(shape)
    return np.zeros(shape, dtype)


def _numbers(data: bytes, data_type: str, shape: list[int], about: str) -> Any:
    dtype = BY_DATATYPE[data_type.removeprefix("TYPE_")].numpy
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise ConfigError(f"{about}: {len(data)} bytes in its file do not fill {data_type} {shape}")
    return np.frombuffer(data, dtype).reshape(shape)


def _texts(data: bytes, shape: list[int], about: str) -> Any:
    try:
        elements = raw_texts.read(data)
    except ValueError:
        elements = []
    if len(elements) != math.prod(shape):
        raise ConfigError(f"{about}: its file does not hold {math.prod(shape)} texts, each after its length")
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)

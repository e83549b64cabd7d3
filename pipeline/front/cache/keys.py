"""Keys of the response cache: the model, the options and the raw inputs of a request, compared in full."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from pipeline import __version__
from pipeline.api.app import ServedModel
from pipeline.api.request_options import NO_OPTIONS
from pipeline.front.dag_run import DagRun, Inputs, Request
from pipeline.messages.frames import NotEncodable, Part, Unread, encode

_encode = msgspec.msgpack.Encoder().encode


def hash_key(data: bytes) -> int:
    """Return the hash of a key. Two keys may have the same hash: the cache compares the bytes, too."""
    return hash(data)


class CacheKey:
    """The key of a response in the response cache. Two keys are equal only if all their bytes are equal."""

    __slots__ = ("_hash", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._hash = hash_key(data)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CacheKey) and self.data == other.data


def build_request_key(domain: bytes, request: Request, max_bytes: int) -> CacheKey | None:
    """Return the cache key of a request's response.

    domain: bytes that identify the loaded model. Returns None for inputs of more than `max_bytes`, and for
    inputs that have no encoding.
    """
    options = request.form, request.wish, request.log_id, *_get_model_options(request)
    try:
        return _join(domain, options, _describe_values(request.inputs), max_bytes)
    except NotEncodable:
        return None


def build_step_key(
    domain: bytes, dag_run: DagRun, node: str, inputs: Inputs, max_bytes: int
) -> CacheKey | None:
    """Return the cache key of the output of one step of an ensemble; None as in `build_request_key`.

    inputs: outputs of the previous steps. Of the ensemble's own inputs, the key contains only those that this
    step uses.
    """
    request, dag = dag_run.request, dag_run.entry.dag
    tensors = dag.tensors.get(node) or (None,) * len(inputs)
    if node == dag.response:
        answer: tuple[Any, ...] = (dag_run.entry.model, request.form, request.wish, request.log_id)
    else:
        answer = ()
    contents: list[tuple[Any, Part]] = []
    try:
        for (source, parts), names in zip(inputs, tensors, strict=True):
            if source == dag.source and names is not None and node != dag.response:
                picked = {name: request.inputs[name] for name in names if name in request.inputs}
                contents += _describe_values(picked)
            else:
                contents += [((source, number), part) for number, part in enumerate(parts)]
    except NotEncodable:
        return None
    return _join(domain, (answer, tensors, *_get_model_options(request)), contents, max_bytes)


def _get_model_options(request: Request) -> tuple[Any, ...]:
    """Return the request options that belong to the cache key: parameters and requested outputs.

    Models may read these. The key does not contain the id, priority and timeout.
    """
    options = request.options or NO_OPTIONS
    return dict(options.parameters), options.outputs


def _describe_values(values: Mapping[str, Any]) -> list[tuple[Any, Part]]:
    """Return the type and the raw bytes of each input."""
    contents: list[tuple[Any, Part]] = []
    for name, value in values.items():
        if type(value) is np.ndarray and value.dtype.kind not in "OV":
            array = np.ascontiguousarray(value)
            contents.append(((name, array.dtype.str, value.shape), array.reshape(-1).view(np.uint8).data))
        elif isinstance(value, Unread):
            contents.append(((name, value.kind, *value.describe()), value.data))
        else:
            contents += [
                ((name, number), part) for number, part in enumerate(encode(value, allow_pickle=False))
            ]
    return contents


def _join(
    domain: bytes, options: Sequence[Any], contents: Sequence[tuple[Any, Part]], max_bytes: int
) -> CacheKey | None:
    """Return the key of a request: its options and the lengths of its inputs, then the inputs' raw bytes."""
    if sum(len(part) for _, part in contents) > max_bytes:
        return None
    description = _encode((domain, options, [(kind, len(part)) for kind, part in contents]))
    return CacheKey(b"".join([description, *(part for _, part in contents)]))


def get_step_domain(op: str, load: int) -> bytes:
    """Return the cache domain of an Op: the part of its keys that identifies the loaded Op.

    load: unique number of the Op's load. A reload changes the domain, so older entries no longer match.
    """
    return f"step {op} {load}".encode()


def get_model_domain(model: ServedModel, loads: Sequence[int]) -> bytes:
    """Return the cache domain of a model: the part of its keys that identifies the loaded model.

    loads: unique numbers of the loads of its Ops. The domain contains a hash of the model's description,
    because a reload may change the graph of an ensemble without its models.
    """
    return f"model {model.key} {_hash(msgspec.to_builtins(model))} {list(loads)}".encode()


def get_shared_domain(model: ServedModel, files: Iterable[tuple[str, int, int, int]]) -> bytes:
    """Return the cache domain of a model for a cache that several servers share, such as Redis.

    files: path, inode, size and change time of each file of the model. The inodes are ignored: they differ
    between servers that have copies of one image or volume.
    """
    states = sorted((path, size, changed_ns) for path, _, size, changed_ns in files)
    return f"shared {model.key} {_hash([__version__, msgspec.to_builtins(model), states])}".encode()


def _hash(description: object) -> str:
    return hashlib.sha256(json.dumps(description).encode("utf-8", "surrogatepass")).hexdigest()

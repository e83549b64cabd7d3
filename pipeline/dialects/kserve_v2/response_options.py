"""The options of a KServe v2 response, which the front sends to the worker with the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

# The forms of an answer:
JSON = "kserve_v2.json"  # the JSON document, then a part for each binary output
PROTO = "kserve_v2.proto"  # a serialized ModelInferResponse with raw contents
GENERATED = "kserve_v2.generated"  # of `generate`: {"OUTPUT": element or list, "model_name": ...}


class RequestedOutput(NamedTuple):
    """An output that is asked for, and in which form."""

    name: str
    binary: bool  # as raw bytes after the JSON document
    classes: int  # so many, the best of each row; 0: as it is
    room: int | None = None  # bytes in shared memory, where its raw bytes are to go; None: it is sent


class ResponseOptions(NamedTuple):
    """The options of one response: fields that it repeats from the request, and the form of each output."""

    model: str
    request_id: str
    binary: bool = False  # how outputs are sent that are not among those asked for
    outputs: Sequence[Sequence[Any]] | None = None  # those asked for, each a RequestedOutput; None for all
    by_rows: bool = False  # the first axis of an output is the batch
    parameters: Mapping[str, Any] = MappingProxyType({})  # what the answer says beside its outputs

"""What a request over KServe v2 tells the worker of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

# The forms of an answer:
JSON = "kserve_v2.json"  # the JSON document, then a part for each binary output
PROTO = "kserve_v2.proto"  # a serialized ModelInferResponse with raw contents
GENERATED = "kserve_v2.generated"  # of `generate`: {"OUTPUT": element or list, "model_name": ...}


class WantedOutput(NamedTuple):
    """binary: as raw bytes after the JSON document. classes: so many, the best of each row; 0: as it is.

    room: bytes in the client's shared memory, where its raw bytes are to go; None: it is sent.
    """

    name: str
    binary: bool
    classes: int
    room: int | None = None


class Wish(NamedTuple):
    """What the answer repeats of the request, and which outputs it has in which form.

    outputs: those asked for, WantedOutput; None for all. binary: how the others are sent. by_rows: the first
    axis of an output is the batch.
    """

    model: str
    request_id: str
    binary: bool = False
    outputs: Sequence[Sequence[Any]] | None = None
    by_rows: bool = False

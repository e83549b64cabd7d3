"""The form of an answer: what the worker that answers prints, and what each dialect leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple


class AnswerForm(IntEnum):
    """What the worker that answers prints: the door's complete response body."""

    JSON = 0  # key/value JSON, {"err_no": 0, "err_msg": "", "key": [...], "value": [...], "tensors": []}
    PROTO = 1  # a serialized PipelineService Response with text values
    V2_JSON = 2  # a KServe v2 answer over HTTP: the JSON document, then a part for each binary output
    V2_PROTO = 3  # a serialized KServe v2 ModelInferResponse with raw contents
    V1_JSON = 4  # a KServe v1 answer: {"predictions": [...]}, or {"outputs": {...}}
    V2_GENERATED = 5  # the answer of KServe v2's generate: {"OUTPUT": element or list, "model_name": ...}


class WantedOutput(NamedTuple):
    """binary: as raw bytes after the JSON document. classes: so many, the best of each row; 0: as it is.

    room: bytes in the client's shared memory, where its raw bytes are to go; None: it is sent.
    """

    name: str
    binary: bool
    classes: int
    room: int | None = None


class Wish(NamedTuple):
    """What the answer's form leaves open: what it repeats of the request, and which outputs in which form.

    outputs: those asked for, WantedOutput; None for all. binary: how the others are sent. by_rows: the first
    axis of an output is the batch.
    """

    model: str
    version: str
    request_id: str
    binary: bool = False
    outputs: Sequence[Sequence[Any]] | None = None
    by_rows: bool = False


class V1Wish(NamedTuple):
    """rows: how many instances were sent, 0 where the only one has no axis of rows. by_columns: they were
    sent as `inputs`, and are answered as `outputs`."""

    rows: int
    by_columns: bool

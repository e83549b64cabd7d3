"""One request on its way through the engine, and the form its answer shall have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.server.clients import Client
    from pipeline.server.timings import Timings
    from pipeline.v1_answers import V1Wish
    from pipeline.v2_answers import Wish


class AnswerForm(IntEnum):
    """What the worker that answers prints: the door's complete response body."""

    JSON = 0  # key/value JSON, {"err_no": 0, "err_msg": "", "key": [...], "value": [...], "tensors": []}
    PROTO = 1  # a serialized PipelineService Response with text values
    V2_JSON = 2  # a KServe v2 answer over HTTP: the JSON document, then a part for each binary output
    V2_PROTO = 3  # a serialized KServe v2 ModelInferResponse with raw contents
    V2_GENERATED = 5  # the answer of KServe v2's generate: {"OUTPUT": element or list, "model_name": ...}
    V1_JSON = 4  # a KServe v1 answer: {"predictions": [...]}, or {"outputs": {...}}


@dataclass(slots=True)
class Request:
    """What a codec makes of one message.

    inputs: str, bytes, ndarray or list by name, in the order given. log_id: the client's own, 0 without.
    deadline: an instant of time.monotonic(), math.inf for none. priority: smaller leaves first.
    timings: where its time goes, kept where the answer shall tell (dag.use_profile). op: the Op that is asked
    by itself, with its model's feeds as `inputs`; empty: the whole DAG. rows: what statistics count it for.
    version: the one of the model that the client asks for; empty: the one that is served.
    wish: what the answer's form leaves open, as `pipeline.v2_answers.Wish` for the forms of KServe v2
    and `pipeline.v1_answers.V1Wish` for that of v1.
    finish: makes what is sent of the worker's answer, or an error in its place; it raises nothing.
    parameters: the client's own, for the hooks: str, bool, int of 64 bits or float by name.
    client: who asks, for the door to set. turn: its place in line, see `pipeline.server.turns`.
    """

    service: str
    method: str
    inputs: dict[str, Any]
    log_id: int = 0
    client_ip: str = ""
    form: AnswerForm = AnswerForm.JSON
    deadline: float = math.inf
    priority: int = 0
    timings: Timings | None = None
    op: str = ""
    rows: int = 1
    version: str = ""
    wish: Wish | V1Wish | None = None
    finish: Callable[[Any], Any] | None = None
    parameters: Mapping[str, Any] | None = None
    client: Client | None = None
    turn: int = 0

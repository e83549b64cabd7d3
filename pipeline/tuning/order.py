"""Orders to a timing process, which loads a model and times its runs."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from pipeline.process.environment import MODEL_PROCESS
from pipeline.process.helper_process import HelperFailed, run_helper
from pipeline.tuning.choice import Timed

LOAD_S = 120.0  # added to the budget: a large model takes long to load
_ERROR_LINES = 3


class Order(msgspec.Struct, frozen=True):
    """An order to time one way to run a model."""

    engine: str
    precision: str
    conf: dict[str, Any]  # `local_service_conf`
    rows: list[int]  # numbers of rows to time
    lengths: list[int]  # lengths to time
    budget_s: float  # for the runs, without loading the model
    agreeing: bool = False  # whether the answers on real rows must agree with fp32
    onednn: bool = False  # whether oneDNN is tried, and must agree with the native program on real rows


def timed(order: Order) -> Timed:
    """Run the order in a child process, and wait for it. A crash or a hang is a refusal."""
    refusal = Timed(order.engine, order.precision, onednn=order.onednn)
    # In memory: a container may have no folder that can be written.
    with os.fdopen(os.memfd_create("paddlewheel-timed"), "rb") as answer:
        try:
            result = run_helper(
                "pipeline.tuning",
                f"/proc/self/fd/{answer.fileno()}",
                stdin=msgspec.json.encode(order),
                env={**MODEL_PROCESS, **os.environ},
                pass_fds=(answer.fileno(),),
                timeout_s=LOAD_S + 2 * order.budget_s,
            )
        except HelperFailed as exc:
            return msgspec.structs.replace(refusal, refused=f"its process {exc.message}")
        try:
            return msgspec.json.decode(answer.read(), type=Timed)
        except msgspec.DecodeError:  # it wrote nothing, or not all of it
            last_lines = result.stderr.strip().splitlines()[-_ERROR_LINES:]
            why = ": ".join(
                [f"its process ended with {result.status}", *filter(None, [" ".join(last_lines)])]
            )
            return msgspec.structs.replace(refusal, refused=why)

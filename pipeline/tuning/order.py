"""Orders to a timing process, which loads a model and times its runs."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import msgspec

from pipeline.process.environment import MODEL_PROCESS
from pipeline.process.processes import python_module
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
    parent: int = 0  # the timing process ends with this process


def timed(order: Order) -> Timed:
    """Run the order in a child process, and wait for it. A crash or a hang is a refusal."""
    refusal = Timed(order.engine, order.precision, onednn=order.onednn)
    order = msgspec.structs.replace(order, parent=os.getpid())
    # In memory: a container may have no folder that can be written.
    with os.fdopen(os.memfd_create("paddlewheel-timed"), "rb") as answer:
        try:
            done = subprocess.run(
                [*python_module("pipeline.tuning"), f"/proc/self/fd/{answer.fileno()}"],
                input=msgspec.json.encode(order),
                capture_output=True,
                env={**MODEL_PROCESS, **os.environ},
                pass_fds=(answer.fileno(),),
                timeout=LOAD_S + 2 * order.budget_s,
                check=False,
            )
        except subprocess.TimeoutExpired as exc:
            return msgspec.structs.replace(refusal, refused=f"it was not through after {exc.timeout:.0f} s")
        try:
            return msgspec.json.decode(answer.read(), type=Timed)
        except msgspec.DecodeError:  # it wrote nothing, or not all of it
            last_lines = done.stderr.decode(errors="replace").strip().splitlines()[-_ERROR_LINES:]
            why = ": ".join(
                [f"its process ended with {done.returncode}", *filter(None, [" ".join(last_lines)])]
            )
            return msgspec.structs.replace(refusal, refused=why)

"""What a timing process is asked for, and how it is asked."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import msgspec

from pipeline.process.environment import MODEL_PROCESS
from pipeline.process.processes import python_module
from pipeline.tuning.choice import Timed

LOAD_S = 120.0  # beside the budget: a large model takes long to load
_SAID_LINES = 3


class Order(msgspec.Struct, frozen=True):
    """Time one way to run a model.

    conf: `local_service_conf` as config.yml would have it. rows, lengths: the sizes to time. budget_s: for
    the runs, after the model is loaded. agreeing: whether it must answer as in fp32 on real rows.
    onednn: whether oneDNN is tried, and must answer on real rows as the program itself.
    parent: the process with which the timing one ends.
    """

    engine: str
    precision: str
    conf: dict[str, Any]
    rows: list[int]
    lengths: list[int]
    budget_s: float
    agreeing: bool = False
    onednn: bool = False
    parent: int = 0


def timed(order: Order) -> Timed:
    """Run the order in a process of its own, and wait for it. A crash or a hang is a refusal."""
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
            said = done.stderr.decode(errors="replace").strip().splitlines()[-_SAID_LINES:]
            why = ": ".join([f"its process ended with {done.returncode}", *filter(None, [" ".join(said)])])
            return msgspec.structs.replace(refusal, refused=why)

"""A service of one Op that uses 10 ms of CPU per request, as a model that fills its core.

With BENCH_ON_CARD in the environment it sleeps instead, as a model that runs on a GPU and leaves the CPU
idle.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BURN_S = 0.010
ON_CARD = "BENCH_ON_CARD"


def burn(seconds: float) -> None:
    """Use this many seconds of this thread's CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from pipeline import Op, WebService
    from pipeline.script import prepare_from_arguments

    take = time.sleep if ON_CARD in os.environ else burn

    class BurningOp(Op):
        def preprocess(self, input_dicts: Any, data_id: Any, log_id: Any) -> Any:
            (inputs,) = input_dicts.values()
            take(BURN_S)
            return inputs, False, None, ""

    class BurningService(WebService):
        def get_pipeline_response(self, read_op: Any) -> Any:
            return BurningOp(name="burn", input_ops=[read_op])

    service = BurningService(name="bert")
    prepare_from_arguments(service, ROOT / "config.yml")
    service.run_service()


if __name__ == "__main__":
    main()

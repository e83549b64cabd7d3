"""The default service, whose worker dies of a text that holds the mark of poison."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from bench.instrumented_service import default_service
    from pipeline.script import prepare_from_arguments
    from tests.chaos.questions import POISON

    default: Any = default_service()

    class MortalBertOp(default.BertOp):  # type: ignore[misc]
        def preprocess_batch(self, requests: Any) -> Any:
            for request in requests:
                if any(POISON in str(value) for value in request.inputs.values()):
                    os.kill(os.getpid(), signal.SIGKILL)
            return super().preprocess_batch(requests)

    class MortalBertService(default.BertService):  # type: ignore[misc]
        def get_pipeline_response(self, read_op: Any) -> Any:
            return MortalBertOp(name="bert", input_ops=[read_op])

    service = MortalBertService(name="bert")
    prepare_from_arguments(service, ROOT / "config.yml")
    service.run_service()


if __name__ == "__main__":
    main()

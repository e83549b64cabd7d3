"""A service that answers from the answer key, and hands on what is a request's own on `self`, hook by hook.

Its process tells a request's texts by what preprocess has left on `self`, and its postprocess takes the
answer from what process has left there: a mix-up on the way is a wrong answer. A hook that finds what
another request or another batch has left raises. There is no model, so that instances can be threads.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
KEY_FILE = "key.json"  # beside the configuration: the answer key
STALL_FILE = "stall"  # beside it: whose process takes this away is late
STALL_S = 1.5
OP_CONFIG = {"timeout": 500, "retry": 30}  # ms and tries: a stall costs a try


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from pipeline import Op, WebService
    from pipeline.ops.texts import numbered_texts
    from pipeline.script import prepare_from_arguments
    from tests.chaos.questions import POISON

    folder = Path(sys.argv[sys.argv.index("--config") + 1]).parent

    class KeepingOp(Op):
        input_tensors = {"text": "BYTES [-1]"}
        output_tensors = {"label": "BYTES [-1]", "confidence": "FP32 [-1]"}

        def init_op(self) -> None:
            texts, labels, confidences = zip(*json.loads((folder / KEY_FILE).read_text()), strict=True)
            self.number_of = {text: number for number, text in enumerate(texts)}
            self.all_labels, self.all_confidences = np.array(labels), np.array(confidences)

        def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
            self.must_lack("numbers", "batch", "confidences", "answered")
            texts = numbered_texts(input_dicts["@DAGExecutor"], 1000)
            if any(POISON in text for text in texts):
                os.kill(os.getpid(), signal.SIGKILL)
            self.numbers = np.array([self.number_of[text] for text in texts])
            return {"number": self.numbers}

        def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
            self.must_lack("batch", "confidences", "answered")
            self.batch = feed_batch[0]["number"].copy()
            self.batch[-len(self.numbers) :] = self.numbers  # the last request's, as its preprocess left them
            stall()
            time.sleep(0)  # other threads go on
            self.confidences = self.all_confidences[self.batch]
            return {"place": np.arange(len(self.batch))}

        def postprocess(self, input_dicts: Any, fetch_dict: Any, data_id: int = 0, log_id: int = 0) -> Any:
            self.must_lack("answered")
            self.answered = True
            return {
                "label": self.all_labels[self.numbers],
                "confidence": self.confidences[fetch_dict["place"]].astype(np.float32),
            }

        def must_lack(self, *names: str) -> None:
            found = sorted(vars(self).keys() & names)
            if found:
                raise AssertionError(f"another request has left {', '.join(found)}")

    def stall() -> None:
        try:
            (folder / STALL_FILE).unlink()
        except FileNotFoundError:
            return
        time.sleep(STALL_S)

    class KeepingService(WebService):
        def get_pipeline_response(self, read_op: Any) -> Any:
            return KeepingOp(name="bert", input_ops=[read_op])

    service = KeepingService(name="bert")
    prepare_from_arguments(service, ROOT / "config.yml")
    service.run_service()


if __name__ == "__main__":
    main()

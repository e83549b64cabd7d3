"""The default service, but one answer in a hundred is the one before it, as if callers were mixed up."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from bench.instrumented_service import default_service  # noqa: E402
from pipeline.script import prepare_from_arguments  # noqa: E402

default = default_service()


class LyingBertOp(default.BertOp):
    told = 0
    last = None

    def postprocess_batch(self, requests, fetches):
        answers = super().postprocess_batch(requests, fetches)
        for number, answer in enumerate(answers):
            self.told += 1
            if self.told % 100 == 0:
                answers[number] = self.last
            self.last = answer
        return answers


class LyingBertService(default.BertService):
    def get_pipeline_response(self, read_op):
        return LyingBertOp(name="bert", input_ops=[read_op])


if __name__ == "__main__":
    service = LyingBertService(name="bert")
    prepare_from_arguments(service, ROOT / "config.yml")
    service.run_service()

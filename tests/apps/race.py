"""Branches that race for a join; the first argument names the shape. Any Op answers with its trail.

An input `wait_<op>` makes that Op wait for a file, `fail_<op>` makes it refuse with that number.
"""

import os
import sys
import time
from pathlib import Path

from pipeline import Op, ProductError, WebService


class RaceOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        inputs = dict(next(iter(input_dicts.values())))
        gate = inputs.get(f"wait_{self.name}")
        if gate:
            Path(gate + ".waiting").touch()
            while not Path(gate).exists():
                time.sleep(0.005)
        if f"fail_{self.name}" in inputs:
            raise ProductError(f"{self.name} refuses", err_no=int(inputs[f"fail_{self.name}"]))
        inputs["came"] = " ".join(input_dicts)
        inputs["trail"] = f"{inputs['trail']}>{self.name}" if "trail" in inputs else self.name
        return inputs


def two(read_op):
    """`last` takes what comes first of `short`, and of `long` by way of `middle`."""
    long = RaceOp("long", [read_op])
    middle = RaceOp("middle", [long])
    return RaceOp("last", [RaceOp("short", [read_op]), middle])


def twice(read_op):
    """Both joins have `a` and `b`; the answer needs both joins' consumer."""
    a, b = RaceOp("a", [read_op]), RaceOp("b", [read_op])
    return RaceOp("last", [RaceOp("one", [a, b]), RaceOp("other", [b, a])])


class RaceService(WebService):
    def get_pipeline_response(self, read_op):
        return globals()[sys.argv[1]](read_op)


service = RaceService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

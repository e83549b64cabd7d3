"""DAGs of Ops that say where a request has been; the first argument names the shape.

An Op's `trail` is its name after the trails of its inputs: "a", "b(a)", "d(b(a),c(a))". An input `wait_<op>`
makes that Op wait for a file; `jumps` says how often the Op that may jump does so.
"""

import os
import sys
import time
from pathlib import Path

from pipeline import Op, WebService


class TrailOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        inputs = {key: value for given in input_dicts.values() for key, value in given.items()}
        gate = inputs.get(f"wait_{self.name}")
        if gate and int(inputs.get("jumped", 0)) == 0:
            Path(gate + ".waiting").touch()
            while not Path(gate).exists():
                time.sleep(0.005)
        trails = [given.get("trail", "") for _, given in sorted(input_dicts.items())]
        inside = ",".join(sorted(filter(None, trails)))
        inputs["trail"] = f"{self.name}({inside})" if inside else self.name
        inputs["inputs"] = " ".join(sorted(input_dicts))
        return inputs

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return fetch_dict

    def check_jumping(self, input_data):
        (output,) = (data.parse() for data in input_data.values())
        output["jumped"] = str(int(output.get("jumped", 0)) + 1)
        return int(output["jumped"]) <= int(output.get("jumps", 0))


def mixed(read_op):
    """A diamond, and an Op that joins its end with its start and with the request."""
    a = TrailOp("a", [read_op])
    b, c = TrailOp("b", [a]), TrailOp("c", [a])
    d = TrailOp("d", [b, c])
    return TrailOp("e", [a, d, read_op])


def loop(read_op):
    """`c` jumps back to the consumers of `a`, or else goes on to `d`."""
    a = TrailOp("a", [read_op])
    b = TrailOp("b", [a])
    c = TrailOp("c", [b], jump_to_ops=[a])
    return TrailOp("d", [c])


def loop_of_a_branch(read_op):
    """One branch of a diamond jumps back to where it forks."""
    a = TrailOp("a", [read_op])
    b = TrailOp("b", [a], jump_to_ops=[a])
    c = TrailOp("c", [a])
    return TrailOp("d", [b, c])


class ShapeService(WebService):
    def get_pipeline_response(self, read_op):
        return globals()[sys.argv[1]](read_op)


service = ShapeService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

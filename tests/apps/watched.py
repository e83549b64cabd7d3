"""Three Ops for the page at /docs: one is slow, and one raises an exception for each number below zero.

With `gate`, the slow Op creates the file `<gate>.waiting` and then waits for the file `gate`.
"""

import os
import time
from pathlib import Path

from pipeline import Op, WebService

SLOW_S = 0.3


class ParseOp(Op):
    def preprocess(self, input_dicts, data_id=0, log_id=0):
        ((_, inputs),) = input_dicts.items()
        number = int(inputs["number"])
        if number < 0:
            raise ValueError(f"{number} is negative")
        return {"number": number, "gate": inputs.get("gate", "")}


class RankOp(Op):
    def postprocess(self, input_dicts, fetch_dict, data_id=0, log_id=0):
        time.sleep(SLOW_S)
        if gate := fetch_dict["gate"]:
            Path(f"{gate}.waiting").touch()
            while not Path(gate).exists():
                time.sleep(0.01)
        return fetch_dict


class FormatOp(Op):
    def preprocess(self, input_dicts, data_id=0, log_id=0):
        return {"number": input_dicts["rank"]["number"] + input_dicts["parse"]["number"]}

    def postprocess(self, input_dicts, fetch_dict, data_id=0, log_id=0):
        return {"number": str(fetch_dict["number"])}


class WatchedService(WebService):
    def get_pipeline_response(self, read_op):
        parse = ParseOp(name="parse", input_ops=[read_op])
        rank = RankOp(name="rank", input_ops=[parse])
        return FormatOp(name="format", input_ops=[parse, rank])


if __name__ == "__main__":
    service = WatchedService(name="test")
    service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
    service.run_service()

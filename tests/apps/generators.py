"""Ops whose hooks are generators: `how` says what an Op does, `number` how often.

`gate` and `held` are files that an Op waits for: behind its first answer, and before all.
"""

import asyncio
import os
import time
from pathlib import Path

import numpy as np

from pipeline import Op, ProductError, WebService

KIND = os.environ.get("KIND", "postprocess")


class Reading(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (self.inputs,) = input_dicts.values()
        if held := self.inputs.get("held"):
            Path(f"{held}.waiting").touch()
            while not Path(held).exists():
                time.sleep(0.01)
        return {"number": np.array([[int(self.inputs["number"])]])}

    def answer(self, number):
        how = self.inputs.get("how", "")
        if how == "raise" and number == 3:
            raise ValueError("no more of them")
        if how == "refuse" and number == 1:
            return {}, 51, "refused by the app"
        if how == "wrong":
            return [number]
        return {"text": str(number), "instance": str(os.getpid())}


class Postprocess(Reading):
    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        try:
            for number in range(int(fetch_dict["number"][0, 0])):
                yield self.answer(number)
                gate = self.inputs.get("gate")
                while gate and not Path(gate).exists() and number == 0:
                    time.sleep(0.01)
                    yield self.answer(number)
        finally:
            if closed := self.inputs.get("closed"):
                Path(closed).touch()


class AsyncPostprocess(Reading):
    async def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        for number in range(int(fetch_dict["number"][0, 0])):
            await asyncio.sleep(0)
            yield self.answer(number)


class Process(Reading):
    """Each step adds one to the rows of a batch, up to the greatest number."""

    def process(self, feed_batch, typical_logid):
        numbers = feed_batch[0]["number"]
        for step in range(int(numbers.max())):
            yield {"step": np.full_like(numbers, step), "rows": np.full_like(numbers, len(numbers))}, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        (step,) = fetch_dict["step"].ravel()
        if self.inputs.get("how") == "refuse" and step == 1:
            raise ProductError("refused by the app", err_no=51)
        return {"text": str(step), "rows": str(fetch_dict["rows"][0, 0])}


class Upper(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        return {"text": f"<{inputs['text']}>"}, True, None, ""


class Generators(WebService):
    def get_pipeline_response(self, read_op):
        kinds = {"postprocess": Postprocess, "async": AsyncPostprocess, "process": Process}
        if KIND == "step":
            return Upper(name="upper", input_ops=[Postprocess(name="gen", input_ops=[read_op])])
        return kinds[KIND](name="gen", input_ops=[read_op])


if __name__ == "__main__":
    service = Generators(name="test")
    service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
    service.run_service()

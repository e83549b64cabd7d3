"""The echo Op, whose answers also tell of the instance that made them.

Action "meet": wait until as many requests as `argument` says are in this hook, in one process. Action
"wait_and_die": wait for the file `argument`, then die.
"""

import os
import threading
from collections import defaultdict

import numpy as np
from echo import ACTIONS, EchoOp

from pipeline import WebService

rooms = defaultdict(lambda: None)
endpoint = threading.Lock()


def meet(number: str) -> None:
    with endpoint:
        room = rooms[number] = rooms[number] or threading.Barrier(int(number))
    room.wait(60)


def wait_and_die(path: str) -> None:
    ACTIONS["wait"](path)
    ACTIONS["die"]("")


ACTIONS |= {"meet": meet, "wait_and_die": wait_and_die}
inits = []


class InstanceOp(EchoOp):
    def init_op(self):
        super().init_op()
        inits.append(threading.get_ident())
        np.set_printoptions(precision=3)

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        answer, _, _ = super().postprocess(input_dicts, fetch_dict, data_id, log_id)
        facts = {
            "inits": len(inits),
            "index": self.concurrency_idx,
            "thread": threading.get_ident(),
            "printed": np.array([np.pi, np.float32(0.5)]),
        }
        return answer | {name: str(fact) for name, fact in facts.items()}, None, ""


class InstanceService(WebService):
    def get_pipeline_response(self, read_op):
        return InstanceOp(name="echo", input_ops=[read_op])


service = InstanceService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

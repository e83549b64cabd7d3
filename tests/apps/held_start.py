"""The echo Op, whose workers start as the folder STARTS says and leave word there.

While `hold` is there, or `hold.<concurrency_idx>`, `init_op` waits. Each worker leaves `<pid>`, with the
Op's name and the span of its start in seconds since the machine's. CORES limits the cores of all processes.
With two arguments the DAG has two Ops, of these names.
"""

import os
import sys
import time
from pathlib import Path

from echo import EchoOp

from pipeline import WebService

STARTS = Path(os.environ["STARTS"])
if "CORES" in os.environ:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(os.environ["CORES"])])


def spawned_at():
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return int(ticks) / os.sysconf("SC_CLK_TCK")


class HeldOp(EchoOp):
    def init_op(self):
        super().init_op()
        mark = STARTS / str(os.getpid())
        mark.write_text(f"{self.name} {spawned_at()}")
        while (STARTS / "hold").exists() or (STARTS / f"hold.{self.concurrency_idx}").exists():
            time.sleep(0.02)
        mark.write_text(f"{self.name} {spawned_at()} {time.clock_gettime(time.CLOCK_BOOTTIME)}")


class HeldService(WebService):
    def get_pipeline_response(self, read_op):
        for name in sys.argv[1:] or ["echo"]:
            read_op = HeldOp(name=name, input_ops=[read_op])
        return read_op


service = HeldService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

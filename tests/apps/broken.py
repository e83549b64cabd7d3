"""A script that, in its worker, does not do what it did when it was started; its first argument says how.

"init_op" raises; "no run_service", "another op" and "import" concern the script itself; "start_timeout" never
gets ready; "async" has an init_op that nobody awaits; "later" starts once, the second time it raises; "dies"
does so at the start as often as the file of the second argument has bytes.
"""

import os
import signal
import sys
from pathlib import Path

from pipeline import Op, WebService

HOW = sys.argv[1]
IN_WORKER = not Path("/proc/self/cmdline").read_bytes().split(b"\0")[1].endswith(b"broken.py")


class BrokenOp(Op):
    def init_op(self):
        if HOW == "init_op":
            raise RuntimeError("there is no vocabulary")
        if HOW == "start_timeout":
            signal.pause()
        if HOW == "dies" and (left := Path(sys.argv[2]).stat().st_size):
            os.truncate(sys.argv[2], left - 1)
            os.kill(os.getpid(), signal.SIGKILL)
        if HOW == "later":
            try:
                Path(sys.argv[2]).touch(exist_ok=False)
            except FileExistsError:
                raise RuntimeError("only once") from None


class AsyncOp(Op):
    async def init_op(self):
        """Nobody would await it."""


class BrokenService(WebService):
    def get_pipeline_response(self, read_op):
        if HOW == "async":
            return AsyncOp(name="broken", input_ops=[read_op])
        other = IN_WORKER and HOW == "another op"
        return BrokenOp(name="another" if other else "broken", input_ops=[read_op])


if IN_WORKER and HOW == "import":
    import no_such_module  # noqa: F401
if not (IN_WORKER and HOW == "no run_service"):
    service = BrokenService(name="test")
    service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
    service.run_service()

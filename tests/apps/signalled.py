"""The echo service, which is sent a signal while its script starts it: arguments, the signal's name and when.

"library": in one of the script's, which names what it made another error of; "script": after that; "made":
when its service is made; "now": by `run_service`; "later": when the server has taken over this process.
"""

import os
import signal
import sys
import threading

from echo import EchoService

number = signal.Signals[sys.argv[1]]

if sys.argv[2] == "library":
    try:
        os.kill(os.getpid(), number)
    except KeyboardInterrupt as exc:
        raise ImportError("initialization failed") from exc
if sys.argv[2] == "script":
    os.kill(os.getpid(), number)


class Signalled(EchoService):
    def get_pipeline_response(self, read_op):
        if sys.argv[2] == "later":
            signal.pthread_sigmask(signal.SIG_BLOCK, [number])
            signal.pthread_kill(threading.get_ident(), number)
        else:
            os.kill(os.getpid(), number)
        return super().get_pipeline_response(read_op)


service = Signalled(name="test")
if sys.argv[2] == "made":
    os.kill(os.getpid(), number)
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()

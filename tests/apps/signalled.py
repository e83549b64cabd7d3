"""The echo service, which is sent a signal while its script starts it: arguments, the signal's name and
"now", or "later": when the server has taken over this process."""

import os
import signal
import sys
import threading

from echo import EchoService

number = signal.Signals[sys.argv[1]]


class Signalled(EchoService):
    def get_pipeline_response(self, read_op):
        if sys.argv[2] == "later":
            signal.pthread_sigmask(signal.SIG_BLOCK, [number])
            signal.pthread_kill(threading.get_ident(), number)
        else:
            os.kill(os.getpid(), number)
        return super().get_pipeline_response(read_op)


service = Signalled(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()
